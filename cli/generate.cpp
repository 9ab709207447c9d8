#include "cli/generate.h"

#include <chrono>

#include "core/interrupt.h"
#include "text/utf8_stream.h"

namespace refold::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double Generation::prefill_tokens_per_s() const { return static_cast<double>(evaluated) / prefill_seconds; }

double Generation::decode_tokens_per_s() const {
    return tokens.size() < 2 ? 0.0 : static_cast<double>(tokens.size() - 1) / decode_seconds;
}

Generation generate(Engine& engine, Sampler& sampler, const Tokenizer& tokenizer,
                    std::span<const int32_t> prompt, const GenerationOptions& options,
                    const std::function<void(std::string_view)>& emit) {
    Generation result;
    Utf8Stream stream;
    const auto show = [&](const std::string& text) {
        result.text += text;
        if (!text.empty()) emit(text);
    };
    auto start = Clock::now();
    std::span<const float> logits = engine.evaluate(prompt);
    result.evaluated = prompt.size();
    result.prefill_seconds = seconds_since(start);
    start = Clock::now();
    while (static_cast<int64_t>(result.tokens.size()) < options.limit) {
        check_interrupt();
        const int32_t token = sampler.choose(logits);
        if (!options.ignore_eos && tokenizer.is_end_of_generation(token)) {
            result.stop_reason = "end";
            break;
        }
        result.tokens.push_back(token);
        result.decode_seconds = seconds_since(start);
        show(stream.push(tokenizer.piece(token, false)));
        if (static_cast<int64_t>(result.tokens.size()) == options.limit) break;
        if (engine.length() == engine.context()) {
            result.stop_reason = "context";
            break;
        }
        logits = engine.evaluate({&token, 1});
    }
    show(stream.finish());
    return result;
}

}  // namespace refold::cli
