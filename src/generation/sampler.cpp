#include "generation/sampler.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <vector>

#include "core/argmax.h"
#include "core/error.h"
#include "generation/options.h"
#include "text/llama_log.h"

namespace refold {
namespace {

struct SamplerDeleter {
    void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerDeleter>;

// Leaves the tokens to choose from, with the logits that the draw uses.
SamplerPtr make_filters(const SamplingOptions& o) {
    init_llama();
    llama_sampler_chain_params params = llama_sampler_chain_default_params();
    params.no_perf = true;
    SamplerPtr chain(llama_sampler_chain_init(params));
    const auto add = [&](llama_sampler* sampler) { llama_sampler_chain_add(chain.get(), sampler); };
    if (o.top_k > 0) add(llama_sampler_init_top_k(o.top_k));
    if (o.top_p < 1) add(llama_sampler_init_top_p(static_cast<float>(o.top_p), 1));
    if (o.min_p > 0) add(llama_sampler_init_min_p(static_cast<float>(o.min_p), 1));
    add(llama_sampler_init_temp(static_cast<float>(o.temperature)));
    return chain;
}

SamplerPtr make_draw(const SamplingOptions& o) {
    // libllama takes this one value as "choose a seed by the clock".
    return SamplerPtr(llama_sampler_init_dist(o.seed == LLAMA_DEFAULT_SEED ? o.seed - 1 : o.seed));
}

bool penalizes(const SamplingOptions& o) {
    return o.penalty_last_n != 0 &&
           (o.repetition_penalty != 1 || o.presence_penalty != 0 || o.frequency_penalty != 0);
}

int32_t checked(std::span<const float> logits, int64_t chosen) {
    if (chosen < 0 || !std::isfinite(logits[static_cast<size_t>(chosen)])) {
        fail(ErrorCode::input, "sampler", "the model's logits are not finite numbers - the model is broken");
    }
    return static_cast<int32_t>(chosen);
}

}  // namespace

struct Sampler::Impl {
    SamplingOptions options;
    SamplerPtr filters = {}, draw = {};  // none when greedy
    std::vector<float> adjusted = {};
    std::vector<llama_token_data> candidates = {};

    // Bias and penalties as llama.cpp's samplers apply them; theirs keep a history of their own, which
    // drafted tokens that are refused would have to be taken out of.
    std::span<const float> adjust(std::span<const float> logits, std::span<const int32_t> history) {
        const bool penalties = penalizes(options) && !history.empty();
        if (!penalties && options.logit_bias.empty()) return logits;
        adjusted.assign(logits.begin(), logits.end());
        for (const auto& [token, bias] : options.logit_bias)
            if (static_cast<size_t>(token) < adjusted.size())
                adjusted[static_cast<size_t>(token)] += static_cast<float>(bias);
        if (penalties) penalize(history);
        return adjusted;
    }

    void penalize(std::span<const int32_t> history) {
        const auto window = options.penalty_last_n < 0
                                ? history.size()
                                : std::min(history.size(), static_cast<size_t>(options.penalty_last_n));
        std::unordered_map<int32_t, int> counts;
        for (const int32_t token : history.last(window)) ++counts[token];
        const auto repetition = static_cast<float>(options.repetition_penalty),
                   presence = static_cast<float>(options.presence_penalty),
                   frequency = static_cast<float>(options.frequency_penalty);
        for (const auto& [token, count] : counts) {
            if (token < 0 || static_cast<size_t>(token) >= adjusted.size()) continue;
            float& logit = adjusted[static_cast<size_t>(token)];
            logit = logit <= 0 ? logit * repetition : logit / repetition;
            logit -= static_cast<float>(count) * frequency + presence;
        }
    }

    llama_token_data_array filtered(std::span<const float> logits) {
        candidates.resize(logits.size());
        for (size_t i = 0; i < logits.size(); ++i)
            candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
        llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
        llama_sampler_apply(filters.get(), &array);
        return array;
    }
};

Sampler::Sampler(const SamplingOptions& options) {
    check_sampling(options);
    impl_ = std::make_unique<Impl>(Impl{.options = options});
    if (options.temperature == 0) return;
    impl_->filters = make_filters(options);
    impl_->draw = make_draw(options);
}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;

bool Sampler::uses_history() const { return penalizes(impl_->options); }

int32_t Sampler::choose(std::span<const float> logits, std::span<const int32_t> history) {
    if (logits.empty()) fail(ErrorCode::internal, "sampler", "no logits given");
    const std::span<const float> adjusted = impl_->adjust(logits, history);
    if (!impl_->draw) return checked(logits, static_cast<int64_t>(argmax(adjusted)));
    llama_token_data_array array = impl_->filtered(adjusted);
    llama_sampler_apply(impl_->draw.get(), &array);
    return checked(logits, array.selected < 0 ? -1 : array.data[array.selected].id);
}

std::vector<TokenProbability> Sampler::probabilities(std::span<const float> logits,
                                                     std::span<const int32_t> history) {
    if (!impl_->draw) return {{choose(logits, history), 1.0}};
    const llama_token_data_array array = impl_->filtered(impl_->adjust(logits, history));
    const std::span<const llama_token_data> left(array.data, array.size);
    const auto largest = std::max_element(left.begin(), left.end(),
                                          [](const auto& a, const auto& b) { return a.logit < b.logit; });
    checked(logits, largest == left.end() ? -1 : largest->id);
    std::vector<TokenProbability> out;
    double sum = 0;
    for (const llama_token_data& candidate : left) {
        const double weight = std::exp(static_cast<double>(candidate.logit) - largest->logit);
        if (weight > 0) out.push_back({candidate.id, weight});
        sum += weight;
    }
    for (TokenProbability& entry : out) entry.probability /= sum;
    return out;
}

}  // namespace refold
