#include "serve/sequence.h"

#include <algorithm>
#include <utility>

namespace refold {

int64_t sequence_room(const BatchEngine& engine) { return std::min(engine.context(), engine.kv_tokens()); }

Sequence::Sequence(BatchEngine& engine, const SchedulerOptions& options, SchedulerStatus& status, int32_t id,
                   Output output)
    : engine_(engine),
      options_(options),
      status_(status),
      id_(id),
      stages_(engine.stages()),
      output_(std::move(output)),
      request_(output_.submitted().request),
      sampler_(request_.sampling),
      drafting_(request_.sampling.seed),
      draft_wish_(options.draft),
      prompt_(static_cast<int64_t>(request_.prompt.size())),
      limit_(std::min(request_.max_tokens, sequence_room(engine) - prompt_)),
      tokens_(request_.prompt),
      depth_(request_.prompt.size(), stages_),
      done_(static_cast<size_t>(stages_)) {}

int64_t Sequence::wanted() const {
    if (limit_ == 0) return request_.prompt_logprobs ? prompt_ - 1 : 0;
    return static_cast<int64_t>(tokens_.size() + drafts_.size());
}

int64_t Sequence::generated() const { return static_cast<int64_t>(tokens_.size()) - prompt_; }

int64_t Sequence::draft_room() const { return std::min(draft_wish_, limit_ - generated() - 1); }

bool Sequence::prefilling() const { return done_.back() < prompt_; }

int32_t Sequence::first_open_stage() const {
    const auto open =
        std::find_if(done_.begin(), done_.end(), [this](int64_t done) { return done < wanted(); });
    return static_cast<int32_t>(open - done_.begin());
}

bool Sequence::within_token() const { return !prefilling() && first_open_stage() > 0; }

int32_t Sequence::goal() const {
    const int32_t open = first_open_stage();
    const bool verifying = options_.draft > 0 && open >= options_.draft_loop;
    return prefilling() || verifying ? stages_ : open + 1;
}

int32_t Sequence::replayed_exit(int64_t position) const {
    const auto token = static_cast<size_t>(position - prompt_ + 1);  // generated, that the row chooses
    return token < request_.exits.size() ? request_.exits[token] : stages_;
}

bool Sequence::asks_logits(int64_t position, int32_t stage) const {
    const bool last = stage == stages_ - 1;
    if (position < prompt_ - 1) return last && request_.prompt_logprobs;
    if (last) return position == wanted() - 1 || !drafts_.empty();
    if (position < prompt_ || position != wanted() - 1) return false;
    const int32_t loop = stage + 1;
    if (options_.draft > 0)
        return loop == options_.draft_loop && static_cast<int64_t>(drafts_.size()) < draft_room();
    if (!request_.exits.empty()) return loop == replayed_exit(position);
    if (options_.exit.rule == ExitRule::fixed) return loop == options_.exit.loop;
    return options_.exit.active();
}

bool Sequence::exits(int64_t position, int32_t loop, std::span<const float> logits) const {
    if (loop == stages_) return true;
    return request_.exits.empty() ? options_.exit.exits(loop, logits) : loop == replayed_exit(position);
}

BatchRow Sequence::row(int64_t position, int32_t stage) const {
    BatchRow row;
    row.sequence = id_;
    row.position = position;
    row.stage = stage;
    const auto index = static_cast<size_t>(position);
    if (stage == 0)
        row.token = index < tokens_.size() ? tokens_[index] : drafts_[index - tokens_.size()].token;
    const bool exited = index < depth_.size() && stage >= depth_[index];
    if (exited && options_.exit.kv == ExitedKv::propagate) row.work = BatchRow::Work::keys_only;
    row.logits = asks_logits(position, stage);
    return row;
}

int64_t Sequence::plan(StepPlan& plan, int64_t room) {
    int64_t added = 0;
    for (int32_t stage = goal() - 1; stage >= 0; --stage) {
        const auto s = static_cast<size_t>(stage);
        const int64_t ready = stage == 0 ? wanted() : done_[s - 1];
        const StepPart part{this, stage, done_[s], std::min(ready, done_[s] + room - added)};
        if (part.begin >= part.end) continue;
        plan.parts.push_back(part);
        for (int64_t position = part.begin; position < part.end; ++position)
            plan.rows.push_back(row(position, stage));
        added += part.end - part.begin;
    }
    return added;
}

void Sequence::ran(const StepPart& part) { done_[static_cast<size_t>(part.stage)] = part.end; }

void Sequence::take(int64_t position, int32_t stage, std::span<const float> logits) {
    if (output_.finished()) return;
    if (position < prompt_ - 1) {
        output_.add_prompt(logits, tokens_[static_cast<size_t>(position) + 1]);
        if (position + 1 == wanted()) output_.finish(FinishReason::length);
        return;
    }
    if (position >= done_[static_cast<size_t>(stage)]) return;  // behind a draft refused in this step
    const int32_t loop = stage + 1;
    if (options_.draft > 0 && loop < stages_) {
        drafts_.push_back(drafting_.draft(sampler_, logits));
        ++status_.drafted;
    } else if (!drafts_.empty()) {
        verify(logits);
    } else if (exits(position, loop, logits)) {
        draft_wish_ = std::min(options_.draft, draft_wish_ + 1);
        accepted_ = 0;
        const int32_t token = sampler_.choose(logits);
        leave(position, loop);
        emit(logits, token, loop);
    }
}

void Sequence::verify(std::span<const float> logits) {
    const Draft draft = std::move(drafts_.front());
    drafts_.pop_front();
    const int32_t token = drafting_.verify(sampler_, draft, logits);
    if (token == draft.token) {
        ++status_.accepted;
        ++accepted_;
    } else {
        draft_wish_ = std::exchange(accepted_, 0);
        drafts_.clear();
        const auto length = static_cast<int64_t>(tokens_.size());
        engine_.truncate(id_, length);
        for (int64_t& done : done_) done = std::min(done, length);
    }
    emit(logits, token, stages_);
}

// The token at `position` does no more than `loop` loops.
void Sequence::leave(int64_t position, int32_t loop) {
    if (loop == stages_) return;
    depth_[static_cast<size_t>(position)] = loop;
    if (options_.exit.kv != ExitedKv::share) return;
    engine_.share(id_, position, loop);
    std::fill(done_.begin() + loop, done_.end(), position + 1);
}

void Sequence::emit(std::span<const float> logits, int32_t token, int32_t loop) {
    if (!output_.add(logits, token, loop)) return;
    tokens_.push_back(token);
    depth_.push_back(stages_);
    if (generated() == limit_) output_.finish(FinishReason::length);
}

}  // namespace refold
