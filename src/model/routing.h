// Which experts of a mixture a token uses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace refold {

struct Route {
    int64_t expert;
    float weight;
};

// The `used` experts with the largest scores, the larger ones first, of equal ones the first. Their weights
// are the softmax of the scores over all experts or, with `normalized`, over those that are used.
std::vector<Route> route(std::span<const float> scores, int64_t used, bool normalized);

// The uses of all tokens sorted by expert; those of an expert are in the order of the tokens.
struct Dispatch {
    std::vector<int64_t> first;  // [experts + 1]: where each expert's uses begin
    std::vector<int64_t> use;    // [tokens * used]: token * used + which of its experts
};
// `expert_of(use)` is the expert of each use.
template <class ExpertOf>
Dispatch dispatch(int64_t experts, int64_t uses, ExpertOf&& expert_of) {
    Dispatch out;
    out.first.assign(static_cast<size_t>(experts) + 1, 0);
    for (int64_t u = 0; u < uses; ++u) ++out.first[static_cast<size_t>(expert_of(u)) + 1];
    for (size_t e = 1; e < out.first.size(); ++e) out.first[e] += out.first[e - 1];
    out.use.resize(static_cast<size_t>(uses));
    std::vector<int64_t> next = out.first;
    for (int64_t u = 0; u < uses; ++u)
        out.use[static_cast<size_t>(next[static_cast<size_t>(expert_of(u))]++)] = u;
    return out;
}

}  // namespace refold
