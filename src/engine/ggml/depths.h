// How far the tokens of one sequence have come through the stages, and the residual streams of those that are
// on the way.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "engine/batch.h"

namespace refold {

class Depths {
public:
    explicit Depths(int32_t stages) : lengths_(static_cast<size_t>(stages)) {}

    // Tokens that have keys and values of the stage; they are the sequence's first.
    int64_t length(int32_t stage) const { return lengths_[static_cast<size_t>(stage)]; }
    int64_t complete() const { return lengths_.back(); }

    // A step: begin(), check() of all rows, set_residual() of those that run a stage but the last, in their
    // order; commit().
    void begin();
    // Throws Error(internal) for a row that may not run yet, or not any more.
    void check(const BatchRow& row);
    void commit();

    // Of a token that is neither new nor complete.
    std::span<const float> residual(int64_t position) const;
    void set_residual(int64_t position, std::span<const float> residual);

    // The token has keys and values of `stage` and of all behind it. Throws Error(internal) when it has not
    // come so far, or has them already.
    void share(int64_t position, int32_t stage);
    void truncate(int64_t length);
    // An empty sequence gets tokens that are complete.
    void assign(int64_t tokens);

private:
    void set_lengths(const std::vector<int64_t>& lengths);

    std::vector<int64_t> lengths_;  // by stage, never growing
    // With the rows of this step so far: the same, and the tokens whose residual stream has come so far.
    std::vector<int64_t> next_, ready_;
    std::deque<std::vector<float>> residuals_;  // of tokens complete(), complete() + 1, ...
};

}  // namespace refold
