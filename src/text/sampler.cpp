#include "text/sampler.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/argmax.h"
#include "core/error.h"
#include "text/llama_log.h"

namespace refold {
namespace {

struct SamplerDeleter {
    void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerDeleter>;

void check(const SamplingOptions& o) {
    if (!std::isfinite(o.temperature) || o.temperature < 0) {
        fail(ErrorCode::usage, "sampler", "temperature must be 0 (greedy) or more, got {}", o.temperature);
    }
    if (o.top_k < 0) fail(ErrorCode::usage, "sampler", "top-k must be 0 (all) or more, got {}", o.top_k);
    if (!(o.top_p > 0 && o.top_p <= 1))
        fail(ErrorCode::usage, "sampler", "top-p must be in (0, 1], got {}", o.top_p);
}

// What is left to choose from, and with which logits.
SamplerPtr make_filters(const SamplingOptions& o) {
    init_llama();
    llama_sampler_chain_params params = llama_sampler_chain_default_params();
    params.no_perf = true;
    SamplerPtr chain(llama_sampler_chain_init(params));
    if (o.top_k > 0) llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(o.top_k));
    if (o.top_p < 1) llama_sampler_chain_add(chain.get(), llama_sampler_init_top_p(o.top_p, 1));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_temp(o.temperature));
    return chain;
}

SamplerPtr make_draw(const SamplingOptions& o) {
    // libllama takes this one value as "choose a seed by the clock".
    return SamplerPtr(llama_sampler_init_dist(o.seed == LLAMA_DEFAULT_SEED ? o.seed - 1 : o.seed));
}

int32_t checked(std::span<const float> logits, int64_t chosen) {
    if (chosen < 0 || !std::isfinite(logits[static_cast<size_t>(chosen)])) {
        fail(ErrorCode::input, "sampler", "the model's logits are not finite numbers - the model is broken");
    }
    return static_cast<int32_t>(chosen);
}

}  // namespace

struct Sampler::Impl {
    SamplerPtr filters, draw;  // none when greedy
    std::vector<llama_token_data> candidates;

    llama_token_data_array filtered(std::span<const float> logits) {
        candidates.resize(logits.size());
        for (size_t i = 0; i < logits.size(); ++i)
            candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
        llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
        llama_sampler_apply(filters.get(), &array);
        return array;
    }
};

Sampler::Sampler(const SamplingOptions& options) : impl_(std::make_unique<Impl>()) {
    check(options);
    if (options.temperature == 0) return;
    impl_->filters = make_filters(options);
    impl_->draw = make_draw(options);
}
Sampler::~Sampler() = default;

int32_t Sampler::choose(std::span<const float> logits) {
    if (logits.empty()) fail(ErrorCode::internal, "sampler", "no logits given");
    if (!impl_->draw) return checked(logits, static_cast<int64_t>(argmax(logits)));
    llama_token_data_array array = impl_->filtered(logits);
    llama_sampler_apply(impl_->draw.get(), &array);
    return checked(logits, array.selected < 0 ? -1 : array.data[array.selected].id);
}

std::vector<TokenProbability> Sampler::probabilities(std::span<const float> logits) {
    if (!impl_->draw) return {{choose(logits), 1.0}};
    const llama_token_data_array array = impl_->filtered(logits);
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
