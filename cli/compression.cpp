#include "cli/compression.h"

#include <filesystem>
#include <optional>

#include "cli/calibration.h"
#include "cli/output.h"
#include "cli/recipe_file.h"
#include "compress/compress.h"
#include "core/error.h"
#include "core/json_text.h"
#include "core/process_variables.h"
#include "core/text.h"
#include "hub/resolve.h"
#include "model/load.h"
#include "train/launch.h"
#include "train/text/train_tokenizer.h"

namespace refold::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Job {
    Recipe recipe;
    std::string model;           // as named by the command line or the recipe
    std::string input;           // path
    std::string original;        // as named; empty, like its path, when it is the model itself
    std::string original_input;  // path
};

// Sets --data in training steps that name no text and do not train on the calibration text. Throws
// Error(usage) when there are none.
void fill_in_data(Recipe& recipe, const std::vector<std::string>& files) {
    bool used = false;
    for (RecipeStep& step : recipe.steps) {
        // objective=layerwise trains on the calibration text.
        if (step.method->calibrated != nullptr && step.method->calibrated(step.options)) continue;
        std::vector<GivenOption> given;
        for (const auto& [name, value] : step.options.entries()) {
            const bool here = name == "data" && value.empty();
            given.push_back({name, here ? join(files, ",") : value, "--data"});
            used |= here;
        }
        step.options = Options(*step.method, given);
    }
    if (!used)
        fail(ErrorCode::usage, "compress", "--data: no step of this recipe trains, or all name their text");
}

Job read_job(const CompressionArguments& a) {
    Job job;
    job.recipe = a.recipe.empty() ? recipe_from_method(a.method, a.settings) : read_recipe(a.recipe);
    if (!a.data.empty()) fill_in_data(job.recipe, a.data);
    job.model = a.model.empty() ? job.recipe.model : a.model;
    if (job.model.empty()) {
        fail(ErrorCode::usage, "compress", "no model: give MODEL{}",
             a.recipe.empty() ? "" : fmt::format(", or the key 'model' in '{}'", a.recipe));
    }
    job.original = a.original.empty() ? job.recipe.original : a.original;
    // The provenance names the file alone: the result depends on the source's content, not on its folder.
    job.recipe.model.clear();
    job.recipe.original.clear();
    if (!a.calibration.empty()) job.recipe.calibration_texts = a.calibration;
    if (a.tokens > 0) job.recipe.calibration.tokens = a.tokens;
    if (!a.calibration.empty() && first_calibrated(job.recipe) == nullptr)
        fail(ErrorCode::usage, "compress", "--calib: no step of this recipe looks at activations");
    job.input = resolve_model(job.model);
    if (!job.original.empty()) job.original_input = resolve_model(job.original);
    return job;
}

// A name beside the output.
std::string beside(const std::string& output, const char* ending) {
    fs::path path(output);
    if (path.extension() == ".gguf") path.replace_extension();
    return path.string() + ending;
}

// The recipe with all defaults, and the names of the models.
Recipe named_recipe(const Job& job) {
    Recipe named = job.recipe;
    named.model = job.model;
    named.original = job.original;
    return named;
}

// Nothing without a calibration text, or if no step needs one.
std::optional<Calibration> read_calibration(const Job& job) {
    const auto& paths = job.recipe.calibration_texts;
    if (paths.empty() || first_calibrated(job.recipe) == nullptr) return std::nullopt;
    return load_calibration(paths, job.input, job.recipe.calibration);
}

void show_steps(const Job& job) {
    for (size_t s = 0; s < job.recipe.steps.size(); ++s) {
        const RecipeStep& step = job.recipe.steps[s];
        const auto& entries = step.options.entries();
        // With many options only those that were given; the recipe beside the output has all.
        const bool all = entries.size() <= 20;
        std::string options;
        for (size_t i = 0; i < entries.size(); ++i) {
            const auto& [name, value] = entries[i];
            if (all || value != step.method->options[i].fallback)
                options += fmt::format("  {}={}", name, value);
        }
        log("step {}: {}{}", s + 1, step.method->name, options);
    }
}

Json result_json(const Compression& compression, const CompressionArguments& a,
                 const std::string& recipe_file) {
    Json out = parse_json<Json>(to_json(compression), "compress", "the result", kLargeJson);
    out["dry_run"] = a.dry_run;
    add_calibration_device(out);
    out["output"] = a.dry_run ? Json() : Json(a.output.path);
    out["recipe_file"] = a.dry_run ? Json() : Json(recipe_file);
    if (!a.dry_run) out["file_bytes"] = fs::file_size(a.output.path);
    return out;
}

void show(const Compression& compression, const CompressionArguments& a, const std::string& recipe_file) {
    a.report.json ? print_json(result_json(compression, a, recipe_file))
                  : print(to_text(compression) + calibration_device_line());
}

Compression compressed(const CompressionArguments& a, const Job& job, const Model& model,
                       const Model* original, Work& work) {
    const auto calibration = read_calibration(job);
    const Training training{[&] { return train_tokenizer(job.input); }, a.output.path + ".work/train",
                            beside(a.output.path, ".train")};
    return refold::compress(model, job.recipe, REFOLD_VERSION, work,
                            {calibration ? &*calibration : nullptr, a.threads, &training, original});
}

}  // namespace

void run_compression(const CompressionArguments& given) {
    CompressionArguments a = given;
    if (!a.dry_run) join_group();
    const bool first = first_process();
    a.where.local_rank = local_rank();
    const OnDevice on(a.where);
    a.report.quiet |= !first;
    const Job job = read_job(a);
    if (!a.dry_run) {
        check_output(a.output, job.input);
        if (!job.original.empty()) check_output(a.output, job.original_input);
    }
    a.report_file.check();
    if (!a.report.quiet) show_steps(job);
    const Model model = load_model(job.input);
    std::optional<Model> original;
    if (!job.original.empty()) original = load_model(job.original_input);
    const Model* compared = original ? &*original : nullptr;
    if (a.dry_run) {
        const Compression planned = plan(model, job.recipe, {.original = compared});
        show(planned, a, "");
        a.report_file.write({named_model(job.model, job.input)}, result_json(planned, a, ""));
        if (!a.report.quiet) log("dry run: nothing has been written");
        return;
    }
    if (!first) {
        Work own;
        compressed(a, job, model, compared, own);
        return;
    }
    RecipeFile recipe(beside(a.output.path, ".recipe.yaml"), named_recipe(job), a.output.overwrite, a.recipe);
    Work work(a.output.path + ".work");
    const Compression result = compressed(a, job, model, compared, work);
    recipe.save_with(result.model, a.output.path, a.output.overwrite);
    work.finish();
    show(result, a, recipe.path());
    if (!a.report.quiet) log("wrote {} and {}", a.output.path, recipe.path());
    a.report_file.write({named_model(job.model, job.input), {a.output.path, ""}},
                        result_json(result, a, recipe.path()));
}

CompressionOptions add_compression_options(CLI::App& app, CompressionArguments& a) {
    CompressionOptions out;
    add_model(app, a.model)
        ->description(
            "Path of a .gguf file, or a name that `refold pull` has fetched; the recipe may name it");
    out.output = add_output(app, a.output, "GGUF file to write; the recipe with all defaults goes beside it");
    out.recipe = app.add_option("-r,--recipe", a.recipe, "Recipe (YAML): a list of methods and their options")
                     ->type_name("FILE");
    out.settings = app.add_option("--set", a.settings, "Option of the method; may be repeated")
                       ->type_name("KEY=VALUE")
                       ->allow_extra_args(false);
    app.add_option("--original", a.original,
                   "Model that MODEL was made of; refit, compensation, layer-by-layer training and "
                   "distillation compare "
                   "with it (default: MODEL itself)")
        ->type_name("MODEL");
    app.add_option("-d,--data", a.data,
                   "Text (.txt) or dialogues (.jsonl) to train on, for steps that name none; may be repeated")
        ->type_name("FILE")
        ->allow_extra_args(false);
    app.add_option(
           "--calib", a.calibration,
           "Calibration text (UTF-8) for methods that look at activations; do not evaluate on it. May be "
           "repeated: sequences are taken from the texts in turn, and more kinds of text give a better model")
        ->type_name("FILE")
        ->allow_extra_args(false);
    app.add_option("--calib-tokens", a.tokens,
                   "Calibration tokens, from the beginnings of all texts together (32768)")
        ->type_name("N")
        ->check(CLI::PositiveNumber);
    add_threads(app, a.threads);
    add_calibration_device(app, a.where);
    app.add_flag("-n,--dry-run", a.dry_run, "Show the plan and the exact cost of the result; write nothing");
    add_report_options(app, a.report);
    a.report_file.declare(app);
    return out;
}

}  // namespace refold::cli
