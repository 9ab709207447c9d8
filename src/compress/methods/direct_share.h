// DirectShare: attention heads that resemble a head of an earlier layer take over its weights.
// "Head-wise Shareable Attention for Large Language Models", section 4 and appendix A (Algorithms 1 and 2).
#pragma once

#include <string>
#include <vector>

#include "compress/method.h"

namespace refold {

extern const Method kDirectShare;

// The algorithm in parts, for tests and benchmarks.
namespace direct_share {

// A KV group of a position: key/value head `index` with its q_per_kv query heads. Without GQA, a head.
struct Unit {
    size_t position = 0;
    int64_t index = 0;
    auto operator<=>(const Unit&) const = default;
};

struct Match {
    Unit later, former;
    double cosine = 0;
};

// What happens when the unit to be copied is itself replaced.
enum class Chain {
    root,     // follow to the unit that is really stored (Algorithm 2 in ascending order)
    one_hop,  // copy its original weights, which stay stored for that
    repo,     // it takes its own weights back (the authors' published program)
};

// Algorithm 1: for every unit of a position after the first, the unit of an earlier position with the largest
// cosine of the concatenated rows of `on` (attn.q, attn.k, attn.v), in order of position and index. Of equal
// candidates the first wins. A unit whose weights in `shared` are already those of an earlier unit counts as
// that unit: it is neither replaced nor offered.
// Accumulated in float64 from the stored weights; rows of all units are read together, so memory is the Gram
// matrix of the units and what MatchMemory allows. Throws Error(input) naming position and unit when weights
// are not finite.
struct MatchMemory {
    size_t panel = size_t{64} << 20;    // bytes of rows in float64; at least one row of every unit
    size_t produced = size_t{1} << 30;  // bytes of tensors that are not mapped, kept while one slot is read
};
std::vector<Match> best_matches(const Model& model, const std::vector<Slot>& on,
                                const std::vector<Slot>& shared, const MatchMemory& memory = {});

// The `count` matches with the largest cosines (of equal ones the first), in order of position and index.
std::vector<Match> select(const std::vector<Match>& matches, size_t count);

struct Replacement {
    Unit unit, source;
    bool operator==(const Replacement&) const = default;
};
// Algorithm 2: who takes whose original weights. `selected` in order of position and index.
std::vector<Replacement> resolve(const std::vector<Match>& selected, Chain chain);

// A Wo tensor that had to be requantised because its heads' columns are not whole blocks.
struct Requantised {
    std::string tensor;
    DType from, to;
    size_t bytes_before, bytes_after;  // of the heads that are kept
};

// Rewrites the expressions of `slots` so that every replaced unit takes its source's weights of `model`;
// tensors lose the heads that nobody uses. Biases of a replaced unit become copies of its source's.
Model share(const Model& model, const std::vector<Replacement>& replacements, const std::vector<Slot>& slots,
            std::vector<Requantised>& requantised);

}  // namespace direct_share
}  // namespace refold
