// How many loops the tokens of one sequence have run, and the residual streams of those that are between
// loops.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "engine/engine.h"

namespace refold {

class LoopProgress {
public:
    explicit LoopProgress(int32_t loops) : lengths_(static_cast<size_t>(loops)) {}

    // Number of tokens with keys and values of the loop; they are the sequence's first tokens.
    int64_t length(int32_t loop) const { return lengths_[static_cast<size_t>(loop)]; }
    int64_t complete() const { return lengths_.back(); }

    // For each step: begin(), then check() for every row, then set_residual() for the rows that run a loop
    // other than the last one, in their order, then commit().
    void begin();
    // Throws Error(internal) for a row that may not run yet, or has run already.
    void check(const Row& row);
    void commit();

    // Of a token that has run a loop, but is not complete.
    std::span<const float> residual(int64_t position) const;
    void set_residual(int64_t position, std::span<const float> residual);

    // Probability that a token, which has a loop left to run or runs its last one in this step, has exited;
    // leave() is called with that of exiting at one more loop if it has not.
    double exited(int64_t position) const;
    void leave(int64_t position, double probability);

    // Marks the token as having keys and values of `loop` and all later ones. Throws Error(internal) unless
    // `loop` is the next one for it and all tokens before it are complete.
    void share(int64_t position, int32_t loop);
    void truncate(int64_t length);
    // Gives an empty sequence `tokens` complete tokens.
    void assign(int64_t tokens);

private:
    void set_lengths(const std::vector<int64_t>& lengths);

    std::vector<int64_t> lengths_;  // by loop, non-increasing
    // Including the rows of this step so far: lengths_, and the number of tokens whose residual stream has
    // passed the loop.
    std::vector<int64_t> next_, ready_;
    std::deque<std::vector<float>> residuals_;  // of tokens complete(), complete() + 1, ...
    std::deque<double> remaining_;              // likewise, 1 - exited(); empty without a gate
};

}  // namespace refold
