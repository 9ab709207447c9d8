// One sequence that is generated in an engine of many: which of its rows can run next, and what becomes of
// their logits.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "exit/exit_policy.h"
#include "generation/continuation.h"
#include "generation/prompt_lookup.h"
#include "generation/sampler.h"
#include "grammar/grammar.h"

namespace refold {

class Sequence;

// The most tokens that one sequence can have.
int64_t sequence_room(const Engine& engine);

// How sequences use the loops of an engine that runs loop by loop.
struct DecodingOptions {
    ExitPolicy exit = {};
    // Of the next three, one may be above 0. They are the most tokens drafted at a time; DraftPace takes
    // fewer, or none, where that is faster. Early loops draft, all loops verify: the output is the full
    // model's, token for token.
    int64_t draft = 0;
    int32_t draft_loop = 1;  // the loop after which drafts are taken
    // Drafts from the sequence itself (PromptLookup), with the same output up to rounding. Not with loops.
    int64_t lookup = 0;
    // Drafts of another model (DraftModel) with this engine, which has no sequences yet. The same output up
    // to rounding. Not with loops.
    int64_t draft_tokens = 0;
    Engine* draft_model = nullptr;
    // Draft as many as allowed, even where that is slower.
    bool draft_always = false;
    // The prompt's last token may exit too, so that the first generated token may come from an early loop.
    bool prompt_may_exit = false;
};

// Throws Error(usage) for drafts that the engine cannot verify: looked-up ones or a model's where it runs
// loop by loop, any where it evicts; and for more than one source of drafts.
void check_drafts(const DecodingOptions& options, const Capabilities& engine);

// Counted over all sequences that share it.
struct DecodingCounts {
    std::vector<uint64_t> exits;  // [loops]: chosen tokens by the loop that they were chosen after
    uint64_t drafted = 0, accepted = 0;

    explicit DecodingCounts(int32_t loops = 1) : exits(static_cast<size_t>(loops)) {}
};

// Rows of one sequence and loop in a step.
struct RowRange {
    Sequence* sequence = nullptr;
    int32_t loop = 0;            // from 0
    int64_t begin = 0, end = 0;  // positions
};

struct StepPlan {
    std::vector<Row> rows;
    std::vector<RowRange> ranges;  // of all rows, in their order
    int64_t drafts = 0;            // most that a sequence may have

    void clear();
    // Tells the sequences that the rows have run, then hands them their logits, [rows that asked, n_vocab]. A
    // sequence whose logits are not finite finishes with FinishReason::error.
    void take(const StepOutput& output, int64_t n_vocab) const;
};

// Tokens pass the loops in order: those that have a loop's keys and values are always the first so many.
// Later loops of a token that exited are left out until a later token needs them.
class Sequence {
public:
    struct Start {
        int32_t id = 0;     // open in the engine, with room for all tokens but the last
        int64_t known = 0;  // tokens of the prompt that the engine has already; not all of them
        int64_t room = 0;   // most tokens, the last one included
    };
    // `engine`, `options` and `counts` outlive it.
    Sequence(Engine& engine, const DecodingOptions& options, DecodingCounts& counts, const Start& start,
             Continuation continuation);

    int32_t id() const { return id_; }
    Continuation& continuation() { return continuation_; }
    const Continuation& continuation() const { return continuation_; }
    // Nothing is to be run: only the prompt is wanted, without its probabilities.
    bool empty() const { return wanted() == 0; }
    bool prefilling() const { return prompt_left() > 0; }
    int64_t prompt_left() const { return prefill_ - complete(); }  // tokens of the prompt that are to be run
    // A generated token is between its first and its last loop.
    bool within_token() const;
    // The context, not max_tokens, bounds the generated tokens.
    bool limited_by_room() const { return limit_ < continuation_.request().max_tokens; }
    // The prompt and the generated tokens.
    const std::vector<int32_t>& tokens() const { return tokens_; }
    // Tokens at the beginning that have run all loops.
    int64_t complete() const { return done_.back(); }
    // The same without those that may have exited early.
    int64_t exact() const;

    int64_t generated() const;  // tokens, without drafts
    // Tokens that may still be generated.
    int64_t left() const { return limit_ - generated(); }
    // How many drafts of a model it can use now, at most `most`.
    int64_t draft_room(int64_t most) const;
    // Adds the draft that `logits`, which belong to total() tokens, give.
    void draft(std::span<const float> logits);
    int64_t total() const;  // tokens, drafts included
    int32_t token(int64_t position) const;

    // The engine has got the first `tokens` of the prompt from another sequence: more than complete(), and
    // not all of them.
    void skip_to(int64_t tokens);
    // Adds rows that may run in one step, at most `room`. Returns their number.
    int64_t plan(StepPlan& plan, int64_t room);

private:
    friend struct StepPlan;
    void ran(const RowRange& range);
    void take(int64_t position, int32_t loop, const LoopLogits& logits);

    int64_t wanted() const;  // of them, those that are to run now
    bool asks_draft(int64_t drafts, int64_t verified) const;
    int32_t first_open_loop() const;  // the first that not all wanted tokens have run
    int32_t goal() const;             // loops before it run now
    int32_t replayed_exit(int64_t position) const;
    bool asks_logits(int64_t position, int32_t loop, bool asks_draft) const;
    bool exits(int64_t position, int32_t loops_run, const LoopLogits& logits) const;
    Row row(int64_t position, int32_t loop, bool asks_draft) const;

    void leave(int64_t position, int32_t loops_run);
    // What choices so far mean for the next one.
    struct ChoiceState {
        std::optional<GrammarState> grammar = {};  // of the request's format
        SamplerState sampler = {};

        ChoiceState copy() const;
    };
    int32_t choose(std::span<const float> logits, int64_t position, std::span<const int32_t> history,
                   ChoiceState& state) const;
    void verify(std::span<const float> logits);
    void look_up(int64_t most);
    void emit(std::span<const float> logits, int32_t token, int32_t loops_run);

    Engine& engine_;
    const DecodingOptions& options_;
    DecodingCounts& counts_;
    const int32_t id_;
    const int32_t loops_;
    Continuation continuation_;
    const std::shared_ptr<Sampler> sampler_;
    const uint64_t seed_;
    PromptLookup lookup_;
    const int64_t prompt_;             // tokens
    const int64_t prefill_;            // of them, those that run all loops whatever their logits say
    const int64_t limit_;              // of generated tokens
    std::vector<int32_t> tokens_;      // prompt and generated
    std::vector<int32_t> depth_;       // [tokens_]: loops that they ran before they exited
    std::deque<int32_t> drafts_;       // after tokens_
    ChoiceState state_, draft_state_;  // after tokens_ and after drafts_
    std::vector<int64_t> done_;        // [loops]: tokens that have the loop's keys and values
};

}  // namespace refold
