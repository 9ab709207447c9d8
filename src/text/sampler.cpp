#include "text/sampler.h"

#include <llama.h>

#include <algorithm>
#include <cmath>
#include <vector>

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

SamplerPtr make_chain(const SamplingOptions& o) {
    init_llama();
    llama_sampler_chain_params params = llama_sampler_chain_default_params();
    params.no_perf = true;
    SamplerPtr chain(llama_sampler_chain_init(params));
    if (o.temperature == 0) {
        llama_sampler_chain_add(chain.get(), llama_sampler_init_greedy());
        return chain;
    }
    if (o.top_k > 0) llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(o.top_k));
    if (o.top_p < 1) llama_sampler_chain_add(chain.get(), llama_sampler_init_top_p(o.top_p, 1));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_temp(o.temperature));
    // libllama takes this one value as "choose a seed by the clock".
    const uint32_t seed = o.seed == LLAMA_DEFAULT_SEED ? o.seed - 1 : o.seed;
    llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(seed));
    return chain;
}

}  // namespace

struct Sampler::Impl {
    SamplerPtr chain;
    std::vector<llama_token_data> candidates;
};

Sampler::Sampler(const SamplingOptions& options) : impl_(std::make_unique<Impl>()) {
    check(options);
    impl_->chain = make_chain(options);
}
Sampler::~Sampler() = default;

int32_t Sampler::choose(std::span<const float> logits) {
    if (logits.empty()) fail(ErrorCode::internal, "sampler", "no logits given");
    auto& candidates = impl_->candidates;
    candidates.resize(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
    llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
    llama_sampler_apply(impl_->chain.get(), &array);
    const int32_t chosen = array.selected < 0 ? -1 : array.data[array.selected].id;
    if (chosen < 0 || !std::isfinite(logits[static_cast<size_t>(chosen)])) {
        fail(ErrorCode::input, "sampler", "the model's logits are not finite numbers - the model is broken");
    }
    llama_sampler_accept(impl_->chain.get(), chosen);
    return chosen;
}

}  // namespace refold
