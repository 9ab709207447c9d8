#include <charconv>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/paper_models.h"
#include "cli/report_file.h"
#include "cli/reproduction.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/files.h"
#include "core/text.h"

namespace refold::cli::reproduce_verb {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string path;
    bool list = false;
    ReproductionOptions options;
    OutputOptions output;
    ReportOptions report;
};

// What a table can tell: "from configurations", "all columns", "some columns", "nothing to measure".
std::string state_of(const PaperTable& table) {
    if (!table.why.empty()) return "nothing to measure";
    if (table.planned()) return "from configurations";
    size_t columns = 0;
    for (const PaperColumn& c : table.columns) columns += c.measure != PaperMeasure::none ? 1 : 0;
    bool all = columns == table.columns.size();
    for (const PaperRow& row : table.rows) all &= row.why.empty();
    return columns == 0 ? "nothing to measure" : all ? "all columns" : "some columns";
}

std::string needs_text(const PaperTable& table, const PaperNeeds& needs) {
    std::vector<std::string> parts;
    if (!needs.models.empty()) parts.push_back(join(needs.models, ", "));
    if (needs.tasks) parts.emplace_back("tasks' data");
    if (needs.texts) parts.emplace_back("texts");
    if (needs.calibration) parts.emplace_back("calibration text");
    if (needs.training) parts.emplace_back("training text");
    if (!table.needs.empty()) parts.push_back(table.needs);
    return join(parts, "; ");
}

void list(const Arguments& a) {
    const auto tables = read_paper_tables(a.path.empty() ? "papers" : a.path);
    Json out = Json::array();
    std::string text;
    for (const PaperTable& table : tables) {
        const PaperNeeds needs = needs_of(table, a.options.models);
        const std::string what = needs_text(table, needs);
        text += fmt::format("{}  {}: {}\n    {}{}{}\n", table.path, table.place, table.title, state_of(table),
                            what.empty() ? "" : "; needs " + what,
                            needs.missing_models.empty()
                                ? ""
                                : fmt::format(" - not here: {}", join(needs.missing_models, ", ")));
        out.push_back({{"file", table.path},
                       {"paper", table.paper},
                       {"place", table.place},
                       {"title", table.title},
                       {"section", table.section},
                       {"state", state_of(table)},
                       {"why", table.why},
                       {"needs", what},
                       {"missing_models", needs.missing_models}});
    }
    a.report.json ? print_json(out) : print(text);
}

std::string output_text(const PaperResult& result, ReportFormat format) {
    switch (format) {
        case ReportFormat::markdown: return to_markdown(result);
        case ReportFormat::json: return to_json(result).dump(2) + "\n";
        default: return to_html(result);
    }
}

void run(const Arguments& given) {
    if (given.list) return list(given);
    if (given.path.empty()) fail(ErrorCode::usage, "reproduce", "give TABLE, a file of papers/, or --list");
    Arguments a = given;
    a.options.quiet = a.report.quiet;
    std::optional<AtomicFile> file;
    ReportFormat format = ReportFormat::html;
    if (!a.output.path.empty()) {
        format = report_format("", a.output.path);
        file.emplace(a.output.path, a.output.overwrite);
    }
    const PaperResult result = reproduce(read_paper_table(a.path), a.options);
    if (file) {
        file->write(output_text(result, format));
        file->commit();
    }
    if (a.report.json) {
        print_json(to_json(result));
    } else {
        print(to_table(result));
    }
    if (file && !a.report.quiet) log("wrote {}", a.output.path);
}

// NAME and VALUE of "NAME=VALUE"; an empty name and the whole text where there is no NAME.
std::pair<std::string, std::string> named(const std::string& text) {
    const size_t at = text.find('=');
    if (at == std::string::npos || at == 0) return {"", text};
    return {text.substr(0, at), text.substr(at + 1)};
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    ReproductionOptions& o = a->options;
    app.add_option("TABLE", a->path,
                   "A table or figure of a paper (papers/000/table-3.yaml); with --list a folder [papers]")
        ->type_name("FILE");
    app.add_flag("--list", a->list, "List all tables and figures: what they need, and whether it is here");
    app.add_option("--models", o.models,
                   "Folder with the papers' models by name: DIR/llama2-7b or DIR/llama2-7b.gguf")
        ->type_name("DIR");
    app.add_option("--model", o.model, "Run the table on this model instead: the rows of its first model")
        ->type_name("MODEL");
    app.add_option("--rows", o.rows, "Only this row; may be repeated")
        ->type_name("NAME")
        ->allow_extra_args(false);
    app.add_option("--columns", o.columns, "Measure only this column; may be repeated")
        ->type_name("NAME")
        ->allow_extra_args(false);
    app.add_option("--texts", o.texts, "Folder with the texts that columns name")->type_name("DIR");
    app.add_option("--data", o.data, "Folder with the tasks' data (default: from the hub)")->type_name("DIR");
    app.add_option("--calib", o.calibration, "Calibration text, as for compress; may be repeated")
        ->type_name("FILE")
        ->allow_extra_args(false);
    app.add_option("--calib-tokens", o.calibration_tokens, "Calibration tokens [as in the recipe]")
        ->type_name("N")
        ->check(CLI::PositiveNumber);
    app.add_option("--train", o.training, "Text to train on, as --data of compress; may be repeated")
        ->type_name("FILE")
        ->allow_extra_args(false);
    app.add_option_function<std::vector<std::string>>(
           "--task",
           [&o](const std::vector<std::string>& given) {
               for (const std::string& text : given) {
                   auto [task, other] = named(text);
                   if (task.empty() || other.empty())
                       throw CLI::ValidationError("--task", "expected NAME=OTHER, got " + text);
                   o.other_tasks[task] = other;
               }
           },
           "Measure task OTHER where the table has task NAME, whose data is not at hand; may be repeated")
        ->type_name("NAME=OTHER")
        ->allow_extra_args(false);
    app.add_option_function<std::vector<std::string>>(
           "--limit",
           [&o](const std::vector<std::string>& given) {
               for (const std::string& text : given) {
                   const auto [task, number] = named(text);
                   const char* const end = number.data() + number.size();
                   int64_t items = 0;
                   const auto read = std::from_chars(number.data(), end, items);
                   if (read.ec != std::errc() || read.ptr != end || items < 1)
                       throw CLI::ValidationError("--limit", "expected N or NAME=N, got " + text);
                   (task.empty() ? o.items : o.items_of[task]) = items;
               }
           },
           "Only the first N items of each task; NAME=N: of the task with this name; may be repeated")
        ->type_name("[NAME=]N")
        ->allow_extra_args(false);
    app.add_option("--max-windows", o.windows, "Only the first N windows of a text")
        ->type_name("N")
        ->check(CLI::PositiveNumber);
    add_threads(app, o.threads);
    app.add_option("--work", o.work,
                   "Folder for numbers that are known, so that a run goes on where it was [in the cache]")
        ->type_name("DIR");
    add_output(app, a->output, "Page to write: .html, .md or .json");
    add_report_options(app, a->report);
    add_examples(
        app,
        {"refold reproduce --list", "refold reproduce papers/000/table-3.yaml",
         "refold reproduce papers/003/table-2.yaml --models models --rows \"GPT-J, FEVER\" -o table.html",
         "refold reproduce papers/000/table-2.yaml --model smollm2-135m-instruct --limit 200 --json"});
    return [a] { run(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"reproduce", VerbGroup::measurement,
                   "Run a table of one of the papers: published, here, difference", declare};

}  // namespace refold::cli::reproduce_verb
