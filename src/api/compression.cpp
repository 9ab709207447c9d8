#include "refold/compression.h"

#include <filesystem>
#include <optional>

#include "api/impl.h"
#include "calibrate/calibration.h"
#include "compress/compress.h"
#include "compress/registry.h"
#include "core/error.h"
#include "core/files.h"
#include "core/text.h"
#include "model/save.h"
#include "refold/refold.h"
#include "train/text/train_tokenizer.h"

namespace refold {

namespace {

CompressionResult result_of(const Compression& compression) {
    CompressionResult out;
    out.before = cost_of(compression.before);
    out.after = cost_of(compression.after());
    for (const StepResult& step : compression.steps)
        out.steps.push_back({step.method->name, cost_of(step.cost), step.seconds});
    out.recipe = to_yaml(compression.recipe);
    return out;
}

std::optional<Calibration> read_calibration(const Recipe& recipe, const Tokenizer& tokenizer) {
    if (recipe.calibration_texts.empty() || first_calibrated(recipe) == nullptr) return std::nullopt;
    std::vector<std::string> contents;
    std::vector<std::vector<int32_t>> tokens;
    for (const auto& path : recipe.calibration_texts) {
        contents.push_back(read_text_file(path));
        tokens.push_back(tokenizer.encode(contents.back(), tokenizer.adds_bos(), false));
    }
    std::vector<CalibrationText> texts;
    for (size_t t = 0; t < contents.size(); ++t) {
        const std::filesystem::path path(recipe.calibration_texts[t]);
        texts.push_back({path.filename().string(), contents[t], tokens[t]});
    }
    return make_calibration(texts, recipe.calibration);
}

CompressionResult apply(const std::string& model, Recipe recipe, const std::string& output,
                        const CompressionOptions& options) {
    const ModelFile file(model);
    if (!options.calibration_texts.empty()) recipe.calibration_texts = options.calibration_texts;
    if (options.calibration_tokens > 0) recipe.calibration.tokens = options.calibration_tokens;
    const std::string original_name = options.original.empty() ? recipe.original : options.original;
    // The result depends on the model's content, not on its name.
    recipe.model.clear();
    recipe.original.clear();
    std::error_code none;
    if (std::filesystem::equivalent(output, file.path(), none))
        fail(ErrorCode::usage, "compress", "the output '{}' is the model itself", output);
    { const AtomicFile probe(output, options.overwrite); }  // before long work
    std::optional<ModelFile> original;
    if (!original_name.empty()) original.emplace(original_name);

    const Control control{options.on_progress, options.stop};
    const Controlled controlled(control);
    std::optional<Calibration> calibration;
    if (first_calibrated(recipe) != nullptr) calibration = read_calibration(recipe, Tokenizer(file.path()));
    Work work(output + ".work");
    const Training training{[&] { return train_tokenizer(file.path()); }, output + ".work/train", ""};
    const Compression compression = compress(file.impl().model, recipe, version(), work,
                                             {.calibration = calibration ? &*calibration : nullptr,
                                              .threads = options.threads,
                                              .training = &training,
                                              .original = original ? &original->impl().model : nullptr});
    controlled.check();
    save_model(compression.model, output, options.overwrite);
    work.finish();
    return result_of(compression);
}

}  // namespace

std::vector<std::string> method_names() {
    std::vector<std::string> names;
    for (const Method* method : methods()) names.emplace_back(method->name);
    return names;
}

CompressionResult compress(const std::string& model, const std::string& recipe, const std::string& output,
                           const CompressionOptions& options) {
    return apply(model, parse_recipe(recipe, "recipe"), output, options);
}

CompressionResult compress(const std::string& model, const std::string& recipe, const std::string& output,
                           bool overwrite) {
    CompressionOptions options;
    options.overwrite = overwrite;
    return compress(model, recipe, output, options);
}

CompressionResult compress_by_file(const std::string& model, const std::string& recipe_file,
                                   const std::string& output, const CompressionOptions& options) {
    return apply(model, read_recipe(recipe_file), output, options);
}

CompressionResult plan_compression(const std::string& model, const std::string& recipe,
                                   const std::string& original) {
    const Control silent;
    const Controlled controlled(silent);
    const ModelFile file(model);
    std::optional<ModelFile> compared;
    if (!original.empty()) compared.emplace(original);
    StepInputs inputs;
    inputs.original = compared ? &compared->impl().model : nullptr;
    return result_of(plan(file.impl().model, parse_recipe(recipe, "recipe"), inputs));
}

}  // namespace refold
