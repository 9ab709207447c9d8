#include "cli/reproduction.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "cli/child.h"
#include "cli/output.h"
#include "core/error.h"
#include "core/files.h"
#include "core/text.h"
#include "eval/provenance.h"
#include "hub/resolve.h"
#include "model/load.h"
#include "papers/known_numbers.h"
#include "papers/other_depth.h"
#include "papers/planned_number.h"

namespace refold::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Path of a model of the papers: in the folder of models, or the one that its config.json names on the hub;
// empty when it is not there.
std::string find_model(const PaperTable& table, const std::string& name, const std::string& folder) {
    if (!folder.empty()) {
        for (const char* ending : {"", ".gguf"})
            if (const fs::path path = fs::path(folder) / (name + ending); fs::exists(path))
                return path.string();
    }
    const Json config = Json::parse(read_text_file(paper_model_config(table, name)), nullptr, false);
    if (!config.is_object() || !config.contains("_name_or_path")) return "";
    try {
        return resolve_model(config["_name_or_path"].get<std::string>());
    } catch (const Error&) {  // it has not been pulled
        return "";
    }
}

// Tells whether a file or folder is the one that was measured.
std::string identity(const std::string& path) {
    std::error_code none;
    if (fs::is_directory(path, none)) return identity((fs::path(path) / "config.json").string());
    return fmt::format("{} {} {}", path, fs::file_size(path, none),
                       fs::last_write_time(path, none).time_since_epoch().count());
}

// It takes the model to run.
bool is_measured(const PaperColumn& column) {
    return column.measure != PaperMeasure::none && column.measure != PaperMeasure::planned &&
           column.measure != PaperMeasure::mean;
}

// The number that a JSON pointer leads to.
double number_at(const Json& printed, const std::string& pointer) {
    const Json::json_pointer place(pointer);
    if (!printed.contains(place) || !printed[place].is_number())
        fail(ErrorCode::input, "reproduce", "there is no number '{}' in what the command printed", pointer);
    return printed[place].get<double>();
}

fs::path work_folder(const PaperTable& table, const ReproductionOptions& options) {
    if (!options.work.empty()) return options.work;
    const std::string name = table.paper + "-" + fs::path(table.path).stem().string();
    return cache_directory() / "reproduce" / name;
}

class Reproduction {
public:
    Reproduction(const PaperTable& table, const ReproductionOptions& options)
        : table_(table),
          options_(options),
          folder_(work_folder(table, options)),
          numbers_((folder_ / "numbers.jsonl").string()) {
        if (!options.model.empty()) model_path_ = resolve_model(options.model);
    }

    PaperResult run() {
        PaperResult result;
        result.table = table_;
        result.table.rows.clear();
        const auto chosen = chosen_rows();
        for (size_t r = 0; r < chosen.size(); ++r) {
            if (!options_.quiet)
                log("{} {}, row {} of {}: {}", table_.paper, table_.place, r + 1, chosen.size(),
                    chosen[r]->name);
            result.table.rows.push_back(*chosen[r]);
            name_ = fmt::format("row-{}", chosen[r] - table_.rows.data() + 1);
            result.cells.push_back(row(*chosen[r]));
            std::error_code none;
            fs::remove(made(), none);
        }
        result.version = REFOLD_VERSION;
        result.date = utc_now("%Y-%m-%d");
        result.machine = cpu_name();
        result.model = options_.model;
        result.commands = commands_;
        result.settings = settings();
        return result;
    }

private:
    using Cells = std::vector<PaperCell>;

    std::vector<const PaperRow*> chosen_rows() const {
        std::vector<const PaperRow*> out;
        for (const PaperRow& row : table_.rows) {
            // On one model, the rows of the table's other models would be the same again.
            if (!options_.model.empty() && row.model != table_.rows.front().model) continue;
            if (options_.rows.empty() || std::ranges::find(options_.rows, row.name) != options_.rows.end())
                out.push_back(&row);
        }
        check_names("row", options_.rows, table_.rows);
        check_names("column", options_.columns, table_.columns);
        for (const auto& [task, other] : options_.other_tasks) {
            if (std::ranges::find(table_.columns, task, &PaperColumn::task) == table_.columns.end())
                fail(ErrorCode::usage, "reproduce", "{}: no column has the task '{}'", table_.path, task);
        }
        return out;
    }

    // Throws Error(usage) for a name that is none of the rows or columns.
    template <class Named>
    void check_names(const char* what, const std::vector<std::string>& given,
                     const std::vector<Named>& all) const {
        std::vector<std::string> names;
        for (const Named& named : all) names.push_back(named.name);
        for (const std::string& name : given) {
            if (std::ranges::find(names, name) == names.end())
                fail(ErrorCode::usage, "reproduce", "{}: there is no {} '{}'; {}", table_.path, what, name,
                     suggestion(name, names));
        }
    }

    std::string settings() const {
        std::vector<std::string> parts;
        const bool tasks = measures(PaperMeasure::task);
        const bool texts = measures(PaperMeasure::perplexity) || measures(PaperMeasure::loss);
        if (tasks && options_.items > 0)
            parts.push_back(fmt::format("{} items of each task", options_.items));
        if (texts && options_.windows > 0)
            parts.push_back(fmt::format("{} windows of a text", options_.windows));
        for (const auto& [task, other] : options_.other_tasks)
            parts.push_back(fmt::format("{} instead of {}", other, task));
        return join(parts, ", ");
    }
    bool measures(PaperMeasure measure) const {
        return std::ranges::any_of(table_.columns,
                                   [&](const PaperColumn& c) { return c.measure == measure; });
    }

    fs::path made() const { return folder_ / (name_ + ".gguf"); }
    // Where compress would write it.
    fs::path recipe_path() const { return folder_ / (name_ + ".recipe.yaml"); }

    Cells row(const PaperRow& row) {
        Cells cells(table_.columns.size());
        for (size_t c = 0; c < cells.size(); ++c) {
            cells[c].published = row.published[c];
            const PaperColumn& column = table_.columns[c];
            if (row.misprints.contains(column.name))
                cells[c].note = row.misprints.at(column.name);
            else if (!row.why.empty())
                cells[c].note = row.why;
            else if (column.measure == PaperMeasure::none)
                cells[c].note = column.why;
        }
        if (!row.why.empty()) return cells;
        recipe_ = adapted(row);
        plan_numbers(row, cells);
        measure(row, cells);
        add_means(cells);
        return cells;
    }

    void add_means(Cells& cells) const {
        for (size_t c = 0; c < cells.size(); ++c) {
            const auto& of = table_.columns[c].of;
            double sum = 0;
            size_t known = 0;
            for (size_t other = 0; other < c; ++other) {
                if (std::ranges::find(of, table_.columns[other].name) == of.end() || !cells[other].here)
                    continue;
                sum += *cells[other].here;
                ++known;
            }
            if (known > 0 && known == of.size())
                cells[c].here = sum / static_cast<double>(known) * table_.columns[c].scale;
        }
    }

    // The row's recipe, for the model that it runs on.
    std::optional<Recipe> adapted(const PaperRow& row) const {
        if (options_.model.empty()) return row.recipe;
        std::optional<Recipe> recipe = row.recipe_for(options_.model);
        if (!recipe || row.recipes.contains(options_.model)) return recipe;
        const auto layers = [](const std::string& path) { return load_model(path).topology.layers.size(); };
        return for_depth(*recipe, layers(paper_model_config(table_, row.model)), layers(model_path_));
    }

    void plan_numbers(const PaperRow& row, Cells& cells) const {
        if (!measures(PaperMeasure::planned)) return;
        const Model model =
            load_model(model_path_.empty() ? paper_model_config(table_, row.model) : model_path_);
        const auto planned = planned_cells(table_, row, model, recipe_);
        for (size_t c = 0; c < cells.size(); ++c)
            if (planned[c]) cells[c].here = planned[c];
    }

    // What a measured number is of: the model, what was done to it, and the words of the command.
    std::string key(const std::vector<std::string>& words, const std::string& value) const {
        Json of = {{"source", identity(source_)}, {"words", words}, {"value", value}};
        std::error_code none;
        for (const std::string& word : filled(words))
            if (word != measured() && fs::is_regular_file(word, none)) of["files"].push_back(identity(word));
        if (recipe_) {
            of["recipe"] = to_yaml(*recipe_);
            for (const std::string& file : options_.calibration) of["calibration"].push_back(identity(file));
            for (const std::string& file : options_.training) of["training"].push_back(identity(file));
            of["calibration_tokens"] = options_.calibration_tokens;
        }
        return of.dump();
    }

    void measure(const PaperRow& row, Cells& cells) {
        row_model_ = row.model;
        source_ = model_path_.empty() ? find_model(table_, row.model, options_.models) : model_path_;
        is_made_ = false;
        making_failed_.clear();
        printed_.clear();
        for (size_t c = 0; c < cells.size(); ++c) {
            const PaperColumn& column = table_.columns[c];
            if (!is_measured(column)) continue;
            if (!chosen(column)) {
                cells[c].note = "left out";
                continue;
            }
            if (row.published[c].empty() && is_published(c)) continue;
            if (const std::string reason = missing(row, column); !reason.empty()) {
                cells[c].note = reason;
                continue;
            }
            try {
                cells[c].here = number(row, column) * column.scale;
            } catch (const Error& error) {
                if (error.code() == ErrorCode::interrupted || error.code() == ErrorCode::internal) throw;
                log("refold: warning: row '{}', column '{}': {}", row.name, column.name, error.what());
                cells[c].note = "failed: see the messages";
            }
        }
    }

    bool chosen(const PaperColumn& column) const {
        return options_.columns.empty() ||
               std::ranges::find(options_.columns, column.name) != options_.columns.end();
    }

    // The paper prints the column for some rows: those that it leaves empty are not measured either.
    bool is_published(size_t column) const {
        return std::ranges::any_of(table_.rows,
                                   [&](const PaperRow& row) { return !row.published[column].empty(); });
    }

    // Why a column cannot be measured here; empty: it can.
    std::string missing(const PaperRow& row, const PaperColumn& column) const {
        if (source_.empty()) return fmt::format("needs the model {} (--models)", row.model);
        if (recipe_ && first_calibrated(*recipe_) != nullptr && options_.calibration.empty())
            return "needs calibration text (--calib)";
        if (recipe_ && needs_training_text(*recipe_) && options_.training.empty())
            return "needs text to train on (--train)";
        if (!column.text.empty() && !fs::exists(fs::path(options_.texts) / column.text))
            return fmt::format("needs the text {} (--texts)", column.text);
        if (column.measure == PaperMeasure::task && row.kv_budget < 1)
            return "tasks go back to the common beginning of prompts, which an evicting cache cannot";
        return "";
    }

    double number(const PaperRow& row, const PaperColumn& column) {
        switch (column.measure) {
            case PaperMeasure::perplexity: return of_text(row, column, "/perplexity");
            case PaperMeasure::loss: return std::log(of_text(row, column, "/perplexity"));
            case PaperMeasure::task: return of_task(row, column);
            default: return of_command(row, column.words, column.value);
        }
    }

    double of_text(const PaperRow& row, const PaperColumn& column, const std::string& value) {
        std::vector<std::string> words = {"eval", "ppl", "{model}", "--text",
                                          (fs::path(options_.texts) / column.text).string()};
        if (options_.windows > 0)
            words.insert(words.end(), {"--max-windows", std::to_string(options_.windows)});
        if (row.kv_budget < 1)
            words.insert(words.end(),
                         {"--kv-policy", "h2o", "--kv-budget", fmt::format("{}", row.kv_budget)});
        return of_command(row, words, value);
    }

    double of_task(const PaperRow& row, const PaperColumn& column) {
        const auto other = options_.other_tasks.find(column.task);
        const std::string& task = other == options_.other_tasks.end() ? column.task : other->second;
        std::vector<std::string> words = {"eval", "tasks", "{model}", "--tasks", task};
        if (column.shots) words.insert(words.end(), {"--shots", std::to_string(*column.shots)});
        if (!options_.data.empty()) words.insert(words.end(), {"--data", options_.data});
        if (options_.items > 0) words.insert(words.end(), {"--limit", std::to_string(options_.items)});
        const std::string name = fs::path(task).stem().string();
        return of_command(row, words, fmt::format("/results/{}/{},none", name, column.metric));
    }

    double of_command(const PaperRow& row, std::vector<std::string> words, const std::string& value) {
        words.insert(words.end(), row.options.begin(), row.options.end());
        const std::string of = key(words, value);
        if (const double* known = numbers_.find(of)) {
            if (recipe_) describe(compression());
            describe(filled(words));
            return *known;
        }
        // Several columns may have numbers of one command.
        const auto printed = printed_.find(words);
        const Json& result = printed != printed_.end()
                                 ? printed->second
                                 : printed_.emplace(words, printed_by(words)).first->second;
        const double found = number_at(result, value);
        numbers_.keep(of, found);
        return found;
    }

    Json printed_by(const std::vector<std::string>& words) {
        make();
        std::vector<std::string> command = filled(words);
        describe(command);
        if (options_.threads > 0)
            command.insert(command.end(), {"--threads", std::to_string(options_.threads)});
        if (options_.quiet) command.emplace_back("--quiet");
        return run_refold(command);
    }

    // The model that the row measures: the source, or what the recipe makes of it.
    std::string measured() const { return recipe_ ? made().string() : source_; }
    std::vector<std::string> filled(const std::vector<std::string>& words) const {
        std::vector<std::string> out;
        for (std::string word : words) {
            const auto fill = [&](const std::string& name, const std::string& path) {
                for (size_t at = 0; (at = word.find(name)) != std::string::npos;)
                    word.replace(at, name.size(), path);
            };
            fill("{model}", measured());
            fill("{dense}", source_);
            fill("{texts}", options_.texts);
            out.push_back(word);
        }
        return out;
    }

    std::vector<std::string> compression() const {
        std::vector<std::string> words = {
            "compress", source_, "-o", made().string(), "--recipe", recipe_path().string(), "--overwrite"};
        if (first_calibrated(*recipe_) != nullptr) {
            for (const std::string& file : options_.calibration) words.insert(words.end(), {"--calib", file});
            if (options_.calibration_tokens > 0)
                words.insert(words.end(), {"--calib-tokens", std::to_string(options_.calibration_tokens)});
        }
        if (needs_training_text(*recipe_))
            for (const std::string& file : options_.training) words.insert(words.end(), {"--data", file});
        return words;
    }

    void make() {
        if (!recipe_ || is_made_) return;
        if (!making_failed_.empty()) fail(ErrorCode::input, "reproduce", "{}", making_failed_);
        write_file(recipe_path().string(), to_yaml(*recipe_));
        auto words = compression();
        describe(words);
        if (options_.threads > 0) words.insert(words.end(), {"--threads", std::to_string(options_.threads)});
        if (options_.quiet) words.emplace_back("--quiet");
        making_failed_ = "the model could not be made";  // for the other columns, if this throws
        run_refold(words);
        making_failed_.clear();
        is_made_ = true;
    }

    // Keeps a command for the reader, once: with the model's name, and files of the work folder without it.
    void describe(const std::vector<std::string>& words) {
        std::vector<std::string> shown;
        for (const std::string& word : words) {
            const fs::path path(word);
            if (word == source_) {
                shown.push_back(options_.model.empty() ? row_model_ : options_.model);
            } else {
                shown.push_back(path.parent_path() == folder_ ? path.filename().string() : word);
            }
        }
        const std::string line = "refold " + join(shown, " ");
        if (std::ranges::find(commands_, line) == commands_.end()) commands_.push_back(line);
    }

    const PaperTable& table_;
    const ReproductionOptions& options_;
    fs::path folder_;
    KnownNumbers numbers_;
    std::string model_path_;  // of --model
    std::vector<std::string> commands_;
    // Of the row at hand.
    std::string name_, row_model_;
    std::optional<Recipe> recipe_;
    std::string source_;
    bool is_made_ = false;
    std::string making_failed_;
    std::map<std::vector<std::string>, Json> printed_;  // by commands
};

}  // namespace

PaperNeeds needs_of(const PaperTable& table, const std::string& models) {
    PaperNeeds needs;
    for (const PaperColumn& c : table.columns) {
        needs.tasks |= c.measure == PaperMeasure::task;
        needs.texts |= !c.text.empty();
    }
    const bool measured = std::ranges::any_of(table.columns, is_measured);
    if (!measured) return needs;
    needs.calibration = table.calibrates();
    needs.training = table.trains();
    needs.models = table.models();
    for (const std::string& name : needs.models)
        if (find_model(table, name, models).empty()) needs.missing_models.push_back(name);
    return needs;
}

PaperResult reproduce(const PaperTable& table, const ReproductionOptions& options) {
    if (!table.why.empty())
        fail(ErrorCode::usage, "reproduce", "{}: {} has nothing to measure: {}", table.path, table.place,
             table.why);
    return Reproduction(table, options).run();
}

}  // namespace refold::cli
