#include "cli/row_model.h"

#include <algorithm>
#include <utility>

#include "cli/child.h"
#include "cli/paper_models.h"
#include "compress/training/kept_models.h"
#include "core/error.h"
#include "core/files.h"
#include "core/sha256.h"
#include "core/text.h"
#include "model/load.h"
#include "papers/other_depth.h"

namespace refold::cli {
namespace {

namespace fs = std::filesystem;

std::optional<Recipe> adapted(const ReproductionRun& run, const PaperRow& row) {
    const std::string& model = run.options.model;
    if (model.empty()) return row.recipe;
    std::optional<Recipe> recipe = row.recipe_for(model);
    if (!recipe || row.recipes.contains(model)) return recipe;
    const auto layers = [](const std::string& path) { return load_model(path).topology.layers.size(); };
    return for_depth(*recipe, layers(paper_model_config(run.table, row.model)), layers(run.model));
}

// Models of rows are made and removed here, where nobody else has files of such names.
fs::path rows_folder(const ReproductionRun& run) { return run.folder / ".rows"; }

// The path within the folder; the path itself where it is outside.
std::string name_in(const fs::path& folder, const std::string& path) {
    const fs::path inside = fs::path(path).lexically_relative(folder);
    return inside.empty() || *inside.begin() == ".." ? path : inside.string();
}

// The number of the first row with the same model and recipe.
ptrdiff_t first_alike(const ReproductionRun& run, const PaperRow& row) {
    const auto text = [&](const PaperRow& r) {
        const auto& recipe = r.recipe_for(run.options.model);
        return fmt::format("{} {} {}", r.model, r.kept, recipe ? to_yaml(*recipe) : "");
    };
    return std::ranges::find(run.table.rows, text(row), text) - run.table.rows.begin() + 1;
}

// Tells trainings apart, in names of files.
std::string hash_of(const std::string& text) {
    return sha256_hex(std::as_bytes(std::span(text))).substr(0, 12);
}

// Where compress would write it.
std::string recipe_beside(const fs::path& model) {
    return fs::path(model).replace_extension(".recipe.yaml").string();
}

}  // namespace

nlohmann::json ReproductionRun::refold(std::vector<std::string> words) const {
    if (options.threads > 0) words.insert(words.end(), {"--threads", std::to_string(options.threads)});
    if (options.quiet) words.emplace_back("--quiet");
    return run_refold(words);
}

std::string file_identity(const std::string& path) {
    std::error_code none;
    if (fs::is_directory(path, none)) return file_identity((fs::path(path) / "config.json").string());
    return fmt::format("{} {} {}", path, fs::file_size(path, none),
                       fs::last_write_time(path, none).time_since_epoch().count());
}

RowModel::RowModel(ReproductionRun& run, const PaperRow& row)
    : run_(run),
      row_(row),
      recipe_(adapted(run, row)),
      source_(run.model.empty() ? find_paper_model(run.table, row.model, run.options.models) : run.model),
      path_(source_) {
    if (recipe_ && !source_.empty()) plan_makings();
}

void RowModel::plan_makings() {
    Recipe rest = *recipe_;
    if (row_.kept > 0) {
        const size_t step = keeping_step(rest);
        const int64_t count = rest.steps[step - 1].options.integer("keep");
        const Recipe training = first_steps(rest, step);
        const std::string name = "training-" + hash_of(identity_of(training).dump());
        const fs::path output = run_.folder / (name + ".gguf");
        makings_.push_back({source_, "", training, output});
        run_.trainings.insert(output);
        path_ = kept_model_path((run_.folder / (name + ".train")).string(), step, row_.kept, count);
        rest.steps.erase(rest.steps.begin(), rest.steps.begin() + static_cast<ptrdiff_t>(step));
        if (rest.steps.empty()) return;
    }
    const fs::path output = rows_folder(run_) / fmt::format("row-{}.gguf", first_alike(run_, row_));
    makings_.push_back({path_, path_ == source_ ? "" : source_, rest, output});
    path_ = output.string();
}

std::string RowModel::configuration() const {
    return run_.model.empty() ? paper_model_config(run_.table, row_.model) : run_.model;
}

std::string RowModel::missing() const {
    if (source_.empty()) return fmt::format("needs the model {} (--models)", row_.model);
    if (recipe_ && first_calibrated(*recipe_) != nullptr && run_.options.calibration.empty())
        return "needs calibration text (--calib)";
    if (recipe_ && needs_training_text(*recipe_) && run_.options.training.empty())
        return "needs text to train on (--train)";
    return "";
}

std::vector<std::string> RowModel::words_of(const Making& making) const {
    const ReproductionOptions& options = run_.options;
    std::vector<std::string> words = {
        "compress",   making.source, "-o", making.output.string(), "--recipe", recipe_beside(making.output),
        "--overwrite"};
    if (!making.original.empty()) words.insert(words.end(), {"--original", making.original});
    if (first_calibrated(making.recipe) != nullptr) {
        for (const std::string& file : options.calibration) words.insert(words.end(), {"--calib", file});
        if (options.calibration_tokens > 0)
            words.insert(words.end(), {"--calib-tokens", std::to_string(options.calibration_tokens)});
    }
    if (needs_training_text(making.recipe))
        for (const std::string& file : options.training) words.insert(words.end(), {"--data", file});
    return words;
}

void RowModel::make() {
    if (!failed_.empty()) fail(ErrorCode::input, "reproduce", "{}", failed_);
    failed_ = "the model could not be made";  // for the other columns, if this throws
    for (const Making& making : makings_) make(making);
    failed_.clear();
}

void RowModel::make(const Making& making) {
    // The name of a training tells it from all others; other rows and earlier runs leave it.
    const bool training = run_.trainings.contains(making.output);
    if (training ? fs::exists(making.output) : making.output == run_.made) return;
    if (!training) fs::remove(std::exchange(run_.made, {}));
    fs::create_directories(making.output.parent_path());
    write_file(recipe_beside(making.output), to_yaml(making.recipe));
    run_.refold(words_of(making));
    if (!training) run_.made = making.output;
}

nlohmann::json RowModel::identity() const {
    nlohmann::json of = recipe_ ? identity_of(*recipe_) : nlohmann::json{{"source", file_identity(source_)}};
    if (row_.kept > 0) of["kept"] = row_.kept;
    return of;
}

nlohmann::json RowModel::identity_of(const Recipe& recipe) const {
    nlohmann::json of = {{"source", file_identity(source_)}, {"recipe", to_yaml(recipe)}};
    for (const std::string& file : run_.options.calibration) of["calibration"].push_back(file_identity(file));
    for (const std::string& file : run_.options.training) of["training"].push_back(file_identity(file));
    of["calibration_tokens"] = run_.options.calibration_tokens;
    return of;
}

std::vector<std::string> RowModel::filled(const std::vector<std::string>& words) const {
    std::vector<std::string> out;
    for (std::string word : words) {
        const auto fill = [&](const std::string& name, const std::string& path) {
            for (size_t at = 0; (at = word.find(name)) != std::string::npos;)
                word.replace(at, name.size(), path);
        };
        fill("{model}", path_);
        fill("{dense}", source_);
        fill("{texts}", run_.options.texts);
        out.push_back(word);
    }
    return out;
}

void RowModel::show(const std::vector<std::string>& words) {
    for (const Making& making : makings_) keep_command(words_of(making));
    keep_command(words);
}

// With the model's name, and files of the work folder without it.
void RowModel::keep_command(const std::vector<std::string>& words) {
    std::vector<std::string> shown;
    for (const std::string& word : words) {
        if (word == source_) {
            shown.push_back(run_.options.model.empty() ? row_.model : run_.options.model);
        } else {
            shown.push_back(name_in(run_.folder, name_in(rows_folder(run_), word)));
        }
    }
    const std::string line = "refold " + join(shown, " ");
    if (std::ranges::find(run_.commands, line) == run_.commands.end()) run_.commands.push_back(line);
}

}  // namespace refold::cli
