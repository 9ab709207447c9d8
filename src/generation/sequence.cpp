#include "generation/sequence.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/finite_logits.h"

namespace refold {

int64_t sequence_room(const Engine& engine) {
    return std::min(engine.capabilities().context, engine.capabilities().kv_tokens);
}

void check_drafts(const DecodingOptions& options, const Capabilities& engine) {
    const int sources = (options.draft > 0) + (options.lookup > 0) + (options.draft_model != nullptr);
    if (sources == 0) return;
    if (sources > 1)
        fail(ErrorCode::usage, "generation", "drafts come from one source - leave out the others");
    if (engine.loops > 1 && options.draft == 0) {
        fail(ErrorCode::usage, "generation",
             "tokens are looked up, or drafted by another model, where all loops run at once - leave out "
             "early "
             "exits and exact mode");
    }
    if (engine.evicts) {
        fail(ErrorCode::usage, "generation",
             "drafts that are refused cannot be taken out of a KV cache with a budget - leave out one of "
             "both");
    }
}

void StepPlan::clear() {
    rows.clear();
    ranges.clear();
}

void StepPlan::take(const StepOutput& output, int64_t n_vocab) const {
    std::span<const float> logits = output.logits;
    std::span<const double> exited = output.exited;
    for (const RowRange& range : ranges) range.sequence->ran(range);
    const auto width = static_cast<size_t>(n_vocab);
    auto row = rows.begin();
    for (const RowRange& range : ranges) {
        for (int64_t position = range.begin; position < range.end; ++position, ++row) {
            if (!row->logits) continue;
            try {
                check_finite_logits(logits.first(width), n_vocab, [&](int64_t) { return position; });
                range.sequence->take(position, range.loop,
                                     {logits.first(width), exited.empty() ? 0 : exited.front()});
            } catch (const Error& error) {
                const bool format_error = dynamic_cast<const FormatError*>(&error) != nullptr;
                range.sequence->continuation().finish(FinishReason::error, error.what(), format_error);
            }
            logits = logits.subspan(width);
            if (!exited.empty()) exited = exited.subspan(1);
        }
    }
}

Sequence::Sequence(Engine& engine, const DecodingOptions& options, DecodingCounts& counts, const Start& start,
                   Continuation continuation)
    : engine_(engine),
      options_(options),
      counts_(counts),
      id_(start.id),
      loops_(engine.capabilities().loops),
      continuation_(std::move(continuation)),
      sampler_(continuation_.request().sampler ? continuation_.request().sampler
                                               : std::make_shared<Sampler>(continuation_.request().sampling)),
      seed_(continuation_.request().seed.value_or(continuation_.request().sampling.seed)),
      prompt_(static_cast<int64_t>(continuation_.request().prompt.size())),
      prefill_(options.prompt_may_exit ? prompt_ - 1 : prompt_),
      limit_(std::min(continuation_.request().max_tokens, start.room - prompt_)),
      tokens_(continuation_.request().prompt),
      depth_(tokens_.size(), loops_),
      done_(static_cast<size_t>(loops_), start.known) {
    if (const auto& grammar = continuation_.request().grammar) state_.grammar.emplace(grammar);
}

int64_t Sequence::total() const { return static_cast<int64_t>(tokens_.size() + drafts_.size()); }

int64_t Sequence::wanted() const {
    if (limit_ == 0) return continuation_.request().prompt_logprobs ? prompt_ - 1 : 0;
    return prefilling() ? prefill_ : total();
}

int64_t Sequence::generated() const { return static_cast<int64_t>(tokens_.size()) - prompt_; }

int64_t Sequence::draft_room(int64_t most) const {
    const bool begins = !prefilling() && drafts_.empty() && !continuation_.finished() &&
                        done_.back() + 1 == static_cast<int64_t>(tokens_.size());
    return begins ? std::min(most, left() - 1) : 0;
}

// Whether the newest token's early loop should draft, when the step also verifies so many drafts.
bool Sequence::asks_draft(int64_t drafts, int64_t verified) const {
    const auto open = static_cast<int64_t>(drafts_.size());
    return options_.draft > 0 && open < left() - 1 && open - std::min(open, verified) < drafts;
}

int32_t Sequence::token(int64_t position) const {
    const auto index = static_cast<size_t>(position);
    return index < tokens_.size() ? tokens_[index] : drafts_[index - tokens_.size()];
}

int64_t Sequence::exact() const {
    const bool always = !options_.exit.active() || options_.exit.kv == ExitedKv::catch_up;
    return always && continuation_.request().exits.empty() ? complete() : std::min(complete(), prefill_);
}

int32_t Sequence::first_open_loop() const {
    const auto open =
        std::find_if(done_.begin(), done_.end(), [this](int64_t done) { return done < wanted(); });
    return static_cast<int32_t>(open - done_.begin());
}

bool Sequence::within_token() const { return !prefilling() && first_open_loop() > 0; }

int32_t Sequence::goal() const {
    // Early loops draft while later ones verify the drafts before.
    return prefilling() || options_.draft > 0 ? loops_ : first_open_loop() + 1;
}

int32_t Sequence::replayed_exit(int64_t position) const {
    const auto& exits = continuation_.request().exits;
    const auto token = static_cast<size_t>(position - prompt_ + 1);  // the generated one that the row chooses
    return token < exits.size() ? exits[token] : loops_;
}

bool Sequence::asks_logits(int64_t position, int32_t loop, bool asks_draft) const {
    const bool last = loop == loops_ - 1;
    if (position < prompt_ - 1) return last && continuation_.request().prompt_logprobs;
    if (last) return position == total() - 1 || !drafts_.empty();
    if (position < prefill_ || position != total() - 1) return false;
    const int32_t loops_run = loop + 1;
    if (options_.draft > 0) return loops_run == options_.draft_loop && asks_draft;
    if (!continuation_.request().exits.empty()) return loops_run == replayed_exit(position);
    if (options_.exit.rule == ExitRule::fixed) return loops_run == options_.exit.loop;
    return options_.exit.active();
}

bool Sequence::exits(int64_t position, int32_t loops_run, const LoopLogits& logits) const {
    if (loops_run == loops_) return true;
    return continuation_.request().exits.empty() ? options_.exit.exits(loops_run, logits)
                                                 : loops_run == replayed_exit(position);
}

Row Sequence::row(int64_t position, int32_t loop, bool asks_draft) const {
    Row row;
    row.sequence = id_;
    row.position = position;
    row.loop = loop;
    const auto index = static_cast<size_t>(position);
    if (loop == 0) row.token = token(position);
    const bool exited = index < depth_.size() && loop >= depth_[index];
    if (exited && options_.exit.kv == ExitedKv::propagate) row.work = Row::Work::keys_only;
    row.logits = asks_logits(position, loop, asks_draft);
    return row;
}

void Sequence::skip_to(int64_t tokens) { std::ranges::fill(done_, tokens); }

int64_t Sequence::plan(StepPlan& plan, int64_t room) {
    if (options_.lookup > 0) look_up(draft_room(std::min(plan.drafts, room - 1)));
    int64_t added = 0, verified = 0;
    for (int32_t loop = goal() - 1; loop >= 0; --loop) {
        const auto s = static_cast<size_t>(loop);
        const int64_t ready = loop == 0 ? wanted() : done_[s - 1];
        const RowRange range{this, loop, done_[s], std::min(ready, done_[s] + room - added)};
        if (range.begin >= range.end) continue;
        plan.ranges.push_back(range);
        if (loop == loops_ - 1) verified = range.end - range.begin;
        const bool drafts = asks_draft(plan.drafts, verified);
        for (int64_t position = range.begin; position < range.end; ++position)
            plan.rows.push_back(row(position, loop, drafts));
        added += range.end - range.begin;
    }
    return added;
}

void Sequence::ran(const RowRange& range) { done_[static_cast<size_t>(range.loop)] = range.end; }

void Sequence::take(int64_t position, int32_t loop, const LoopLogits& logits) {
    if (continuation_.finished()) return;
    if (position < prompt_ - 1) {
        continuation_.add_prompt(logits, tokens_[static_cast<size_t>(position) + 1]);
        if (position + 1 == wanted() && limit_ == 0) continuation_.finish(FinishReason::length);
        return;
    }
    if (position >= done_[static_cast<size_t>(loop)]) return;  // follows a draft refused in this step
    const int32_t loops_run = loop + 1;
    if (options_.draft > 0 && loops_run < loops_) {
        draft(logits);
    } else if (!drafts_.empty()) {
        verify(logits);
    } else if (exits(position, loops_run, logits)) {
        const int32_t token = choose(logits, position + 1, tokens_, state_);
        leave(position, loops_run);
        emit(logits, token, loops_run);
    }
}

int32_t Sequence::choose(std::span<const float> logits, int64_t position, std::span<const int32_t> history,
                         ChoiceState& state) const {
    auto& grammar = state.grammar;
    const bool bounded = grammar && !grammar->ended();  // drafts after the end will be refused
    const int32_t token = sampler_->choose(bounded ? grammar->masked(logits) : logits, {seed_, position},
                                           history, &state.sampler);
    if (bounded) grammar->accept(token);
    return token;
}

Sequence::ChoiceState Sequence::ChoiceState::copy() const {
    ChoiceState out{.sampler = sampler};
    if (grammar) out.grammar = grammar->copy();
    return out;
}

// Drafts and verified tokens are drawn with the same numbers: a draft is accepted when it is what all loops
// choose, and the tokens are those of a run without drafts.
void Sequence::draft(std::span<const float> logits) {
    ++counts_.drafted;
    if (drafts_.empty()) draft_state_ = state_.copy();
    if (drafts_.empty() || !sampler_->uses_history()) {
        drafts_.push_back(choose(logits, total(), tokens_, draft_state_));
        return;
    }
    std::vector<int32_t> history = tokens_;
    history.insert(history.end(), drafts_.begin(), drafts_.end());
    drafts_.push_back(choose(logits, total(), history, draft_state_));
}

void Sequence::verify(std::span<const float> logits) {
    const int32_t draft = drafts_.front();
    drafts_.pop_front();
    const int32_t token = choose(logits, static_cast<int64_t>(tokens_.size()), tokens_, state_);
    if (token == draft) {
        ++counts_.accepted;
    } else {
        drafts_.clear();
        const auto length = static_cast<int64_t>(tokens_.size());
        engine_.truncate(id_, length);
        for (int64_t& done : done_) done = std::min(done, length);
    }
    emit(logits, token, loops_);
}

// The token at `position` runs no more than `loops_run` loops.
void Sequence::leave(int64_t position, int32_t loops_run) {
    if (loops_run == loops_) return;
    depth_[static_cast<size_t>(position)] = loops_run;
    if (options_.exit.kv != ExitedKv::share) return;
    engine_.share(id_, position, loops_run);
    std::fill(done_.begin() + loops_run, done_.end(), position + 1);
}

void Sequence::emit(std::span<const float> logits, int32_t token, int32_t loops_run) {
    ++counts_.exits[static_cast<size_t>(loops_run - 1)];
    if (!continuation_.add(logits, token, loops_run)) return;
    tokens_.push_back(token);
    depth_.push_back(loops_);
    if (state_.grammar && state_.grammar->ended()) continuation_.finish(FinishReason::stop);
    if (generated() == limit_) continuation_.finish(FinishReason::length);
}

void Sequence::look_up(int64_t most) {
    if (most <= 0) return;
    const auto found = lookup_.next(tokens_, most);
    drafts_.assign(found.begin(), found.end());
    counts_.drafted += found.size();
}

}  // namespace refold
