// A request that runs: which rows of it are due, and what becomes of their results.
#pragma once

#include <deque>
#include <span>
#include <vector>

#include "engine/batch.h"
#include "serve/drafting.h"
#include "serve/output.h"

namespace refold {

class Sequence;

// Most tokens that one sequence can have.
int64_t sequence_room(const BatchEngine& engine);

// Rows of one sequence and stage in a step.
struct StepPart {
    Sequence* sequence = nullptr;
    int32_t stage = 0;
    int64_t begin = 0, end = 0;  // positions
};

struct StepPlan {
    std::vector<BatchRow> rows;
    std::vector<StepPart> parts;  // of all rows, in their order
};

// Tokens go through the stages in their order: those that have a stage's keys and values are always the first
// so many. Of tokens that exited, later loops are left out until a later token needs them.
class Sequence {
public:
    // `id` is open in the engine, with room for the prompt and all tokens but the last.
    Sequence(BatchEngine& engine, const SchedulerOptions& options, SchedulerStatus& status, int32_t id,
             Output output);

    int32_t id() const { return id_; }
    Output& output() { return output_; }
    const Output& output() const { return output_; }
    // Nothing is to be run at all: only the prompt is wanted, without its probabilities.
    bool empty() const { return wanted() == 0; }
    bool prefilling() const;
    // A token that generates is between its first and its last loop.
    bool within_token() const;

    // Adds rows that may run in one step, at most `room`. Returns their number.
    int64_t plan(StepPlan& plan, int64_t room);
    // The part has run; for all parts of a step before any take().
    void ran(const StepPart& part);
    // The logits of a row that asked for them, in the order of the rows. Throws Error(input) when they are
    // not finite.
    void take(int64_t position, int32_t stage, std::span<const float> logits);

private:
    int64_t wanted() const;     // tokens that are to run, drafts included
    int64_t generated() const;  // without drafts
    int64_t draft_room() const;
    int32_t first_open_stage() const;  // first one that not all wanted tokens have
    int32_t goal() const;              // stages before it run
    int32_t replayed_exit(int64_t position) const;
    bool asks_logits(int64_t position, int32_t stage) const;
    bool exits(int64_t position, int32_t loop, std::span<const float> logits) const;
    BatchRow row(int64_t position, int32_t stage) const;

    void leave(int64_t position, int32_t loop);
    void verify(std::span<const float> logits);
    void emit(std::span<const float> logits, int32_t token, int32_t loop);

    BatchEngine& engine_;
    const SchedulerOptions& options_;
    SchedulerStatus& status_;
    const int32_t id_;
    const int32_t stages_;
    Output output_;
    const GenerationRequest& request_;
    Sampler sampler_;
    Drafting drafting_;
    // As many as were accepted before the first that was refused, one more when none was.
    int64_t draft_wish_;
    int64_t accepted_ = 0;         // since drafts were last verified to their end
    const int64_t prompt_;         // tokens
    const int64_t limit_;          // of generated tokens
    std::vector<int32_t> tokens_;  // prompt and generated
    std::vector<int32_t> depth_;   // loops that they ran before they exited
    std::deque<Draft> drafts_;     // behind tokens_
    std::vector<int64_t> done_;    // tokens that have the stage's keys and values
};

}  // namespace refold
