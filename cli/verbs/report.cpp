#include <filesystem>

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/report_file.h"
#include "cli/verb.h"
#include "core/error.h"
#include "core/files.h"
#include "hub/resolve.h"

namespace refold::cli::report_verb {
namespace {

struct Arguments {
    std::vector<std::string> runs;
    std::string format, original;
    CollectOptions collect;
    bool no_weights = false;
    OutputOptions output;
    ReportOptions report;
};

void add_run(const std::string& argument, Runs& runs) {
    if (std::filesystem::exists(argument)) return add_runs(argument, "", runs);
    const std::string path = resolve_model(argument);
    add_runs(path, argument, runs);
}

void report(const Arguments& a) {
    const bool file = !a.output.path.empty();
    const ReportFormat format =
        file || !a.format.empty() ? report_format(a.format, a.output.path) : ReportFormat::html;
    std::optional<AtomicFile> output;
    if (file) output.emplace(a.output.path, a.output.overwrite);
    CollectOptions options = a.collect;
    options.version = REFOLD_VERSION;
    options.reconstruction = !a.no_weights;
    Runs runs;
    runs.output = a.output.path;
    if (!a.original.empty()) {
        options.original = resolve_model(a.original);
        runs.models.push_back(named_model(a.original, options.original));
    }
    for (const auto& run : a.runs) add_run(run, runs);
    const Comparison comparison = collect(runs, options);
    if (output) {
        output->write(report_text(comparison, format));
        output->commit();
        if (!a.report.quiet) log("wrote {}", a.output.path);
    }
    if (a.report.json) {
        print(to_json(comparison));
    } else if (!file) {
        print(a.format.empty() ? to_table(comparison) : report_text(comparison, format));
    }
}

Action declare(CLI::App& app) {
    auto a = std::make_shared<Arguments>();
    app.add_option(
           "RUN", a->runs,
           "Models (.gguf files, Hugging Face directories, names that `refold pull` has fetched), results "
           "that compress, eval, compare, bench, run and analyze have printed with --json, training runs "
           "(metrics.jsonl), reports as .json, and directories of those")
        ->required();
    add_output(app, a->output, "Report to write: .html, .md or .json; without it a table is printed");
    app.add_option("--format", a->format, "html, md or json, whatever the output is called")
        ->type_name("FORMAT")
        ->check(CLI::IsMember({"html", "md", "json"}));
    app.add_option("--title", a->collect.title, "Heading [made of the models' names]")->type_name("TEXT");
    app.add_option("--original", a->original,
                   "Model that all others are compared with [the one that they were made of]")
        ->type_name("MODEL");
    app.add_flag("--no-weights", a->no_weights,
                 "Do not compare the weights with the original's: reads no weights, only hashes files");
    add_report_options(app, a->report);
    add_examples(
        app, {"refold report smollm2-135m-instruct small.gguf -o report.html",
              "refold report smollm2-135m-instruct small.gguf small.ppl.json small.bench.json -o report.html",
              "refold report monday.json tuesday.json -o both.html",
              "refold report runs/ -o report.md --title \"Sharing heads\""});
    return [a] { report(*a); };
}

}  // namespace

extern const Verb verb;
const Verb verb = {"report", VerbGroup::measurement,
                   "Put models and results together as one page with figures", declare};

}  // namespace refold::cli::report_verb
