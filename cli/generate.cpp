#include "cli/generate.h"

#include <chrono>

#include "core/interrupt.h"
#include "core/text.h"

namespace refold::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Whether `bytes` may be the beginning of one UTF-8 character whose rest is still to come.
bool is_unfinished(std::string_view bytes) {
    const auto lead = static_cast<unsigned char>(bytes[0]);
    const size_t length = lead >= 0xF0 && lead < 0xF5   ? 4
                          : lead >= 0xE0 && lead < 0xF0 ? 3
                          : lead >= 0xC2 && lead < 0xE0 ? 2
                                                        : 1;
    if (bytes.size() >= length) return false;
    for (const char c : bytes.substr(1)) {
        if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) return false;
    }
    return true;
}

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
    pending_ += bytes;
    return drain(false);
}

std::string Utf8Stream::finish() { return drain(true); }

std::string Utf8Stream::drain(bool last) {
    std::string out;
    for (;;) {
        const size_t invalid = find_invalid_utf8(pending_);
        out += pending_.substr(0, invalid);
        pending_.erase(0, invalid);
        if (pending_.empty() || (!last && is_unfinished(pending_))) return out;
        out += "\xEF\xBF\xBD";
        pending_.erase(0, 1);
    }
}

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
