// Compares this engine's logits with libllama's on the same GGUF file, for every token of a text.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text.h"
#include "engine/single_sequence.h"
#include "eval/stock.h"
#include "model/load.h"
#include "text/tokenizer.h"

namespace {

struct Arguments {
    std::string model, text;
    size_t tokens = 256;
    int threads = 0;
    bool f32 = false;
};

// Largest difference in standard deviations of the reference logits, and number of equal greedy tokens.
nlohmann::json compare(const Arguments& a) {
    using namespace refold;
    std::vector<int32_t> tokens = Tokenizer(a.model).encode(read_text_file(a.text), true, false);
    if (tokens.size() < a.tokens)
        fail(ErrorCode::input, "agreement", "'{}' has only {} tokens", a.text, tokens.size());
    tokens.resize(a.tokens);
    const auto context = static_cast<int64_t>(a.tokens);
    // libllama's flash attention casts a float32 cache to float16.
    StockLlama stock(a.model, {.threads = a.threads,
                               .context = context,
                               .kv = a.f32 ? KvType::f32 : KvType::f16,
                               .flash_attention = !a.f32});
    const std::vector<float> expected = stock.evaluate_all(tokens);
    SingleSequence sequence(load_model(a.model), {.threads = a.threads, .context = context, .f32 = a.f32});
    double sum = 0, squares = 0, largest = 0;
    for (const float x : expected) {
        sum += x;
        squares += static_cast<double>(x) * x;
    }
    const auto n = static_cast<double>(expected.size());
    const double deviation = std::sqrt(squares / n - sum / n * (sum / n));
    const auto n_vocab = static_cast<size_t>(sequence.capabilities().n_vocab);
    size_t equal = 0;
    sequence.evaluate_all(tokens, [&](size_t first, std::span<const float> logits) {
        const auto theirs = std::span(expected).subspan(first * n_vocab, logits.size());
        for (size_t i = 0; i < logits.size(); ++i)
            largest = std::max(largest, std::abs(static_cast<double>(logits[i]) - theirs[i]));
        for (size_t row = 0; row < logits.size(); row += n_vocab) {
            const auto greedy = [&](std::span<const float> x) {
                return std::max_element(x.begin(), x.end()) - x.begin();
            };
            equal += greedy(logits.subspan(row, n_vocab)) == greedy(theirs.subspan(row, n_vocab)) ? 1 : 0;
        }
    });
    return {{"model", a.model},
            {"tokens", a.tokens},
            {"f32", a.f32},
            {"largest_difference", largest},
            {"logits_standard_deviation", deviation},
            {"relative_difference", largest / deviation},
            {"equal_greedy_tokens", static_cast<double>(equal) / static_cast<double>(a.tokens)}};
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
    CLI11_PARSE(app, argc, argv);
    try {
        fmt::print("{}\n", compare(a).dump(2));
        return 0;
    } catch (const std::exception& error) {
        fmt::print(stderr, "refold_agreement: {}\n", error.what());
        return 1;
    }
}
