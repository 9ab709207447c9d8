#include "generation/sampler.h"

#include <llama.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <unordered_map>
#include <vector>

#include "core/argmax.h"
#include "core/error.h"
#include "generation/mirostat.h"
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
    if (o.mirostat == 0) {
        if (o.top_k > 0) add(llama_sampler_init_top_k(o.top_k));
        if (o.typical_p < 1) add(llama_sampler_init_typical(static_cast<float>(o.typical_p), 1));
        if (o.top_p < 1) add(llama_sampler_init_top_p(static_cast<float>(o.top_p), 1));
        if (o.min_p > 0) add(llama_sampler_init_min_p(static_cast<float>(o.min_p), 1));
    }
    add(llama_sampler_init_temp(static_cast<float>(o.temperature)));
    return chain;
}

// The finalizer of SplitMix64 (Steele et al. 2014).
uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31);
}

// Draws by the Gumbel-max trick: the largest sum of a logit and a Gumbel number of its own. A token's number
// depends on the place and the token alone, so two distributions that differ little mostly give the same
// token (Daliri et al. 2025, "Coupling without communication").
class Draw {
public:
    explicit Draw(const DrawPlace& place)
        : stream_(mixed(mixed(place.seed + kStep) + static_cast<uint64_t>(place.position) * kStep)) {}

    void add(int32_t token, double logit) {
        const uint64_t bits = mixed(stream_ + static_cast<uint64_t>(token) * kStep);
        // With k leading ones 1 - u is at least 2^-(k + 1), so that the Gumbel number is at most (k + 1)
        // ln 2. That spares almost all logarithms.
        if (logit + (std::countl_one(bits) + 1) * std::numbers::ln2 <= largest_) return;
        const double u = (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
        const double sum = logit - std::log(-std::log(u));
        if (!(sum > largest_)) return;
        largest_ = sum;
        chosen_ = token;
    }
    // Below 0: no logit was a number above -infinity.
    int64_t chosen() const { return chosen_; }

private:
    static constexpr uint64_t kStep = 0x9E3779B97F4A7C15U;
    const uint64_t stream_;
    double largest_ = -std::numeric_limits<double>::infinity();
    int64_t chosen_ = -1;
};

int64_t draw(std::span<const llama_token_data> candidates, const DrawPlace& place) {
    Draw draw(place);
    for (const llama_token_data& candidate : candidates)
        draw.add(candidate.id, static_cast<double>(candidate.logit));
    return draw.chosen();
}

// The same of all tokens.
int64_t draw(std::span<const float> logits, double temperature, const DrawPlace& place) {
    Draw draw(place);
    for (size_t i = 0; i < logits.size(); ++i)
        draw.add(static_cast<int32_t>(i), static_cast<double>(logits[i] / static_cast<float>(temperature)));
    return draw.chosen();
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
    SamplerPtr filters = {};                             // none when greedy
    std::vector<std::pair<int32_t, float>> biases = {};  // as options.logit_bias, which is slower to read
    std::vector<float> adjusted = {};
    std::vector<llama_token_data> candidates = {};

    // Bias and penalties as llama.cpp's samplers apply them; theirs keep a history of their own, which
    // drafted tokens that are refused would have to be taken out of.
    std::span<const float> adjust(std::span<const float> logits, std::span<const int32_t> history) {
        const bool penalties = penalizes(options) && !history.empty();
        if (!penalties && biases.empty()) return logits;
        adjusted.assign(logits.begin(), logits.end());
        for (const auto& [token, bias] : biases)
            if (static_cast<size_t>(token) < adjusted.size()) adjusted[static_cast<size_t>(token)] += bias;
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

    // All filters but the temperature, which is the last one.
    bool leaves_tokens_out() const {
        return options.mirostat != 0 || llama_sampler_chain_n(filters.get()) > 1;
    }

    MirostatOptions mirostat() const {
        return {options.mirostat, options.mirostat_tau, options.mirostat_eta};
    }
    double bound(const SamplerState* state) const {
        return state != nullptr && state->mirostat_bound ? *state->mirostat_bound : 2 * options.mirostat_tau;
    }

    std::span<const llama_token_data> filtered(std::span<const float> logits, const SamplerState* state) {
        candidates.resize(logits.size());
        for (size_t i = 0; i < logits.size(); ++i)
            candidates[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
        llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
        llama_sampler_apply(filters.get(), &array);
        const std::span left(array.data, array.size);
        return options.mirostat == 0 ? left : mirostat_candidates(left, mirostat(), bound(state));
    }
};

Sampler::Sampler(const SamplingOptions& options) {
    check_sampling(options);
    impl_ = std::make_unique<Impl>(Impl{.options = options});
    for (const auto& [token, bias] : options.logit_bias)
        impl_->biases.emplace_back(token, static_cast<float>(bias));
    if (options.temperature == 0) return;
    impl_->filters = make_filters(options);
}
Sampler::~Sampler() = default;
Sampler::Sampler(Sampler&&) noexcept = default;
Sampler& Sampler::operator=(Sampler&&) noexcept = default;

bool Sampler::uses_history() const { return penalizes(impl_->options); }

int32_t Sampler::choose(std::span<const float> logits, const DrawPlace& place,
                        std::span<const int32_t> history, SamplerState* state) {
    if (logits.empty()) fail(ErrorCode::internal, "sampler", "no logits given");
    const std::span<const float> adjusted = impl_->adjust(logits, history);
    if (!impl_->filters) return checked(logits, static_cast<int64_t>(argmax(adjusted)));
    if (!impl_->leaves_tokens_out())
        return checked(logits, draw(adjusted, impl_->options.temperature, place));
    const auto left = impl_->filtered(adjusted, state);
    const int32_t chosen = checked(logits, draw(left, place));
    if (impl_->options.mirostat != 0 && state != nullptr)
        state->mirostat_bound = mirostat_bound(left, chosen, impl_->mirostat(), impl_->bound(state));
    return chosen;
}

std::vector<TokenProbability> Sampler::probabilities(std::span<const float> logits,
                                                     std::span<const int32_t> history) {
    if (!impl_->filters) return {{choose(logits, {}, history), 1.0}};
    const auto left = impl_->filtered(impl_->adjust(logits, history), nullptr);
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
