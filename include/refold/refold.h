// refold's public interface: a small, stable layer over the library; nothing of ggml, JSON or YAML shows
// here.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace refold {

// "0.1.0"
std::string version();

struct LanguageModelOptions {
    int threads = 0;      // 0: all cores
    int64_t context = 0;  // tokens; 0: the model's own, at most 4096
    bool f32 = false;     // float32 weights, activations and KV cache
};

// A model that is ready to run: weights in memory once, tokenizer, one sequence.
// All functions throw std::runtime_error with a message that says what, where and what to do.
class LanguageModel {
public:
    explicit LanguageModel(const std::string& model_path, const LanguageModelOptions& options = {});
    ~LanguageModel();
    LanguageModel(LanguageModel&&) noexcept;
    LanguageModel& operator=(LanguageModel&&) noexcept;

    // Token ids; BOS is added when the model asks for it.
    std::vector<int32_t> tokenize(const std::string& text) const;
    std::string detokenize(std::span<const int32_t> tokens) const;
    // Logits [n_vocab] after `tokens`, from an empty context.
    std::vector<float> logits(std::span<const int32_t> tokens);
    // Greedy continuation of at most `max_tokens` tokens, ending at an end-of-generation token.
    std::string generate(const std::string& prompt, int max_tokens);
    // Windows of `context` tokens, see `refold eval ppl`; max_windows 0: the whole text.
    double perplexity(const std::string& text, int64_t context, int64_t max_windows = 0);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Applies a recipe (YAML text, see recipes/) to a GGUF model and writes the result atomically.
void compress(const std::string& model_path, const std::string& recipe_yaml, const std::string& output_path,
              bool overwrite = false);

}  // namespace refold
