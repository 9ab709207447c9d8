// Drafts of all sequences that share the steps of an engine: how many a step may have, and who makes them.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "generation/draft_model.h"
#include "generation/draft_pace.h"
#include "generation/sequence.h"

namespace refold {

class Drafting {
public:
    // Both outlive it; `counts` are those of the sequences.
    Drafting(const DecodingOptions& options, const DecodingCounts& counts);

    // Before a step is planned: `generating` have read their prompts. A draft model drafts for them now.
    // Returns StepPlan::drafts. Throws what the draft model's engine throws.
    int64_t begin_step(std::span<Sequence* const> generating);
    // After the sequences have taken the step's logits. Steps with rows of prompts take longer, and nothing
    // is learnt from them.
    void end_step(bool has_prompts);
    // Before the sequence's id in the engine is given away.
    void end(const Sequence& sequence);
    // All sequences have ended.
    void clear();

private:
    using Clock = std::chrono::steady_clock;

    uint64_t chosen() const;

    const DecodingOptions& options_;
    const DecodingCounts& counts_;
    std::optional<DraftModel> model_;
    // By the binary logarithm of the number of sequences: beside many rows, drafts cost more.
    std::map<int, DraftPace> paces_;
    // Of the step.
    DraftPace* pace_ = nullptr;
    Clock::time_point began_;
    uint64_t chosen_before_ = 0, drafted_before_ = 0;
};

}  // namespace refold
