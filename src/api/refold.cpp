#include "refold/refold.h"

#include "compress/compress.h"
#include "core/argmax.h"
#include "engine/engine.h"
#include "eval/perplexity.h"
#include "text/tokenizer.h"

namespace refold {

std::string version() { return REFOLD_VERSION; }

struct LanguageModel::Impl {
    Impl(const std::string& path, const LanguageModelOptions& o)
        : tokenizer(path),
          engine(load_model(path), {.threads = o.threads, .context = o.context, .f32 = o.f32}) {}
    Tokenizer tokenizer;
    Engine engine;
};

LanguageModel::LanguageModel(const std::string& model_path, const LanguageModelOptions& options)
    : impl_(std::make_unique<Impl>(model_path, options)) {}
LanguageModel::~LanguageModel() = default;
LanguageModel::LanguageModel(LanguageModel&&) noexcept = default;
LanguageModel& LanguageModel::operator=(LanguageModel&&) noexcept = default;

std::vector<int32_t> LanguageModel::tokenize(const std::string& text) const {
    return impl_->tokenizer.encode(text, true, true);
}
std::string LanguageModel::detokenize(std::span<const int32_t> tokens) const {
    return impl_->tokenizer.decode(tokens, false);
}

std::vector<float> LanguageModel::logits(std::span<const int32_t> tokens) {
    impl_->engine.truncate(0);
    const auto row = impl_->engine.evaluate(tokens);
    return {row.begin(), row.end()};
}

std::string LanguageModel::generate(const std::string& prompt, int max_tokens) {
    std::vector<int32_t> generated;
    impl_->engine.truncate(0);
    auto row = impl_->engine.evaluate(tokenize(prompt));
    while (static_cast<int>(generated.size()) < max_tokens) {
        const auto token = static_cast<int32_t>(argmax(row));
        if (impl_->tokenizer.is_end_of_generation(token)) break;
        generated.push_back(token);
        if (static_cast<int>(generated.size()) < max_tokens) row = impl_->engine.evaluate({&token, 1});
    }
    return detokenize(generated);
}

double LanguageModel::perplexity(const std::string& text, int64_t context, int64_t max_windows) {
    const auto tokens = impl_->tokenizer.encode(text, true, false);
    return refold::perplexity(impl_->engine, tokens, {.context = context, .max_windows = max_windows})
        .perplexity;
}

void compress(const std::string& model_path, const std::string& recipe_yaml, const std::string& output_path,
              bool overwrite) {
    const Recipe recipe = parse_recipe(recipe_yaml, "recipe");
    Work work(output_path + ".work");
    save_model(compress(load_model(model_path), recipe, version(), work).model, output_path, overwrite);
    work.finish();
}

}  // namespace refold
