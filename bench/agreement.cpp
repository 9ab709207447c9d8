// Compares this engine's logits with libllama's on the same GGUF file, and both with float32's, for every
// token of a text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/argmax.h"
#include "core/error.h"
#include "core/text.h"
#include "engine/single_sequence.h"
#include "eval/stock.h"
#include "exit/log_softmax.h"
#include "model/load.h"
#include "text/tokenizer.h"

namespace {

struct Arguments {
    std::string model, text;
    size_t tokens = 256;
    int threads = 0;
    bool f32 = false, bf16 = false;
};

using Logits = std::span<const float>;  // [tokens, n_vocab]

std::vector<float> logits_of(const refold::Model& model, std::span<const int32_t> tokens,
                             const refold::EngineOptions& options) {
    refold::SingleSequence sequence(model, options);
    std::vector<float> out;
    sequence.evaluate_all(tokens,
                          [&](size_t, Logits rows) { out.insert(out.end(), rows.begin(), rows.end()); });
    return out;
}

double standard_deviation(Logits x) {
    double sum = 0, squares = 0;
    for (const float value : x) {
        sum += value;
        squares += static_cast<double>(value) * value;
    }
    const auto n = static_cast<double>(x.size());
    return std::sqrt(squares / n - sum / n * (sum / n));
}

// Of `a` from `b`: the largest difference in standard deviations of b, equal greedy tokens, and the mean KL
// divergence.
nlohmann::json distance(Logits a, Logits b, size_t n_vocab) {
    using namespace refold;
    double largest = 0, divergence = 0;
    size_t equal = 0;
    for (size_t i = 0; i < b.size(); ++i)
        largest = std::max(largest, std::abs(static_cast<double>(a[i]) - b[i]));
    for (size_t at = 0; at < b.size(); at += n_vocab) {
        const Logits x = a.subspan(at, n_vocab), y = b.subspan(at, n_vocab);
        equal += argmax(x) == argmax(y) ? 1 : 0;
        divergence += kl_divergence(y, x);
    }
    const auto rows = static_cast<double>(b.size()) / static_cast<double>(n_vocab);
    return {{"relative_difference", largest / standard_deviation(b)},
            {"equal_greedy_tokens", static_cast<double>(equal) / rows},
            {"kl", divergence / rows}};
}

// The logits of refold, of libllama, and those by float32 weights and activations, each from each.
nlohmann::json compare(const Arguments& a) {
    using namespace refold;
    std::vector<int32_t> tokens = Tokenizer(a.model).encode(read_text_file(a.text), true, false);
    if (tokens.size() < a.tokens)
        fail(ErrorCode::input, "agreement", "'{}' has only {} tokens", a.text, tokens.size());
    tokens.resize(a.tokens);
    const auto context = static_cast<int64_t>(a.tokens);
    // libllama's flash attention casts a float32 cache to float16.
    const std::vector<float> theirs = StockLlama(a.model, {.threads = a.threads,
                                                           .context = context,
                                                           .kv = a.f32 ? KvType::f32 : KvType::f16,
                                                           .flash_attention = !a.f32})
                                          .evaluate_all(tokens);
    const Model model = load_model(a.model);
    EngineOptions options{.threads = a.threads,
                          .context = context,
                          .f32 = a.f32,
                          .precision = a.bf16 ? Precision::bf16 : Precision::stored};
    const std::vector<float> ours = logits_of(model, tokens, options);
    options.f32 = true;
    const std::vector<float> exact = logits_of(model, tokens, options);
    const size_t n_vocab = exact.size() / tokens.size();
    return {{"model", a.model},
            {"tokens", a.tokens},
            {"refold_from_libllama", distance(ours, theirs, n_vocab)},
            {"refold_from_float32", distance(ours, exact, n_vocab)},
            {"libllama_from_float32", distance(theirs, exact, n_vocab)}};
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Compares the engine's logits with libllama's");
    Arguments a;
    app.add_option("MODEL", a.model, "GGUF file that stock llama.cpp can load")->required();
    app.add_option("--text", a.text, "Text file")->required();
    app.add_option("--tokens", a.tokens, "Tokens of the text to evaluate")->capture_default_str();
    app.add_option("--threads", a.threads, "0: all cores")->capture_default_str();
    app.add_flag("--f32", a.f32, "float32 weights, activations and KV cache");
    app.add_flag("--bf16", a.bf16, "refold's products with F16 weights in BF16");
    CLI11_PARSE(app, argc, argv);
    try {
        fmt::print("{}\n", compare(a).dump(2));
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "refold_agreement: {}\n", error.what());
        return 1;
    }
}
