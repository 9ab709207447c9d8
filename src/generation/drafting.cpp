#include "generation/drafting.h"

#include <algorithm>

namespace refold {
namespace {

double probability_of(std::span<const TokenProbability> distribution, int32_t token) {
    for (const TokenProbability& entry : distribution)
        if (entry.token == token) return entry.probability;
    return 0;
}

}  // namespace

Drafting::Drafting(uint32_t seed) {
    std::seed_seq own{seed, 0x64726166U};  // numbers other than the sampler's
    random_.seed(own);
}

Draft Drafting::draft(Sampler& sampler, std::span<const float> logits, std::span<const int32_t> history) {
    Draft draft;
    draft.drawn_from = sampler.probabilities(logits, history);
    draft.token = draw(draft.drawn_from, 1);
    return draft;
}

int32_t Drafting::verify(Sampler& sampler, const Draft& draft, std::span<const float> logits,
                         std::span<const int32_t> history) {
    std::vector<TokenProbability> wanted = sampler.probabilities(logits, history);
    const double drafted = probability_of(draft.drawn_from, draft.token);
    if (std::uniform_real_distribution()(random_) * drafted < probability_of(wanted, draft.token))
        return draft.token;
    std::vector<double> had(logits.size());
    for (const TokenProbability& entry : draft.drawn_from)
        had[static_cast<size_t>(entry.token)] = entry.probability;
    double sum = 0;
    for (TokenProbability& entry : wanted) {
        entry.probability = std::max(0.0, entry.probability - had[static_cast<size_t>(entry.token)]);
        sum += entry.probability;
    }
    return draw(wanted, sum);
}

int32_t Drafting::draw(std::span<const TokenProbability> distribution, double sum) {
    double left = std::uniform_real_distribution()(random_) * sum;
    const TokenProbability* drawn = nullptr;
    for (const TokenProbability& entry : distribution) {
        if (entry.probability <= 0) continue;
        drawn = &entry;
        left -= entry.probability;
        if (left < 0) break;
    }
    // None is left where rounding is all that the two distributions differ in.
    return drawn == nullptr ? distribution.front().token : drawn->token;
}

}  // namespace refold
