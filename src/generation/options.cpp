#include "generation/options.h"

#include <cmath>
#include <limits>

#include "core/error.h"

namespace refold {
namespace {

// OpenAI's ranges.
constexpr double kMostPenalty = 2, kMostBias = 100;

template <typename T>
void require(bool holds, const char* option, const char* range, T value) {
    if (!holds) fail(ErrorCode::usage, "sampler", "{} must be {}, got {}", option, range, value);
}

void check_token(const char* option, int32_t token, int64_t n_vocab) {
    if (token < 0 || (n_vocab > 0 && token >= n_vocab)) {
        fail(ErrorCode::usage, "sampler", "{}: token id {} is not in the vocabulary{}", option, token,
             n_vocab > 0 ? fmt::format(" of {}", n_vocab) : "");
    }
}

}  // namespace

void check_sampling(const SamplingOptions& o, int64_t n_vocab) {
    // Only finite float32 values can be applied to logits.
    constexpr double kMost = std::numeric_limits<float>::max();
    require(o.temperature >= 0 && o.temperature <= kMost, "temperature", "0 (greedy) or more", o.temperature);
    require(o.top_k >= 0, "top-k", "0 (all) or more", o.top_k);
    require(o.top_p > 0 && o.top_p <= 1, "top-p", "in (0, 1]", o.top_p);
    require(o.min_p >= 0 && o.min_p <= 1, "min-p", "in [0, 1]", o.min_p);
    require(o.typical_p > 0 && o.typical_p <= 1, "typical-p", "in (0, 1]", o.typical_p);
    require(o.mirostat >= 0 && o.mirostat <= 2, "mirostat", "0 (off), 1 or 2", o.mirostat);
    require(o.mirostat_tau > 0 && o.mirostat_tau <= kMost, "mirostat-tau", "above 0", o.mirostat_tau);
    require(o.mirostat_eta >= 0 && o.mirostat_eta <= 1, "mirostat-eta", "in [0, 1]", o.mirostat_eta);
    require(o.penalty_last_n >= -1, "penalty-last-n", "-1 (all tokens) or more", o.penalty_last_n);
    require(o.repetition_penalty > 0 && o.repetition_penalty <= kMost, "repetition-penalty", "above 0",
            o.repetition_penalty);
    require(std::abs(o.presence_penalty) <= kMostPenalty, "presence-penalty", "in [-2, 2]",
            o.presence_penalty);
    require(std::abs(o.frequency_penalty) <= kMostPenalty, "frequency-penalty", "in [-2, 2]",
            o.frequency_penalty);
    for (const auto& [token, bias] : o.logit_bias) {
        check_token("logit-bias", token, n_vocab);
        require(std::abs(bias) <= kMostBias || bias == -std::numeric_limits<double>::infinity(), "logit-bias",
                "in [-100, 100] or -infinity", bias);
    }
}

void check_generation(const GenerationOptions& o, int64_t n_vocab) {
    check_sampling(o.sampling, n_vocab);
    require(o.max_tokens >= 0, "max_tokens", "0 or more", o.max_tokens);
    for (const int32_t token : o.stop_tokens) check_token("stop-tokens", token, n_vocab);
    if (o.logprobs < -1 || (n_vocab > 0 && o.logprobs > n_vocab)) {
        fail(ErrorCode::usage, "sampler", "logprobs must be -1 (none) to the vocabulary of {}, got {}",
             n_vocab, o.logprobs);
    }
}

}  // namespace refold
