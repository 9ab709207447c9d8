#include "serve/worker.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace refold {
namespace {

// How long a batch of BatchingPolicy::fixed waits to be filled.
constexpr std::chrono::milliseconds kFillTime{50};

}  // namespace

Worker::Worker(BatchEngine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options,
               RequestQueue& queue)
    : engine_(engine), tokenizer_(tokenizer), options_(options), queue_(queue) {
    status_.slots = options.slots;
    status_.kv_tokens = engine.kv_tokens();
    status_.last_rows_at.resize(static_cast<size_t>(engine.stages()));
    status_.exits.resize(static_cast<size_t>(engine.stages()));
    status_.first_token = make_histogram({0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60});
    status_.between_tokens =
        make_histogram({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5});
    publish();
}

SchedulerStatus Worker::status() const {
    const std::lock_guard lock(mutex_);
    return published_;
}

void Worker::publish() {
    status_.running = std::count_if(running_.begin(), running_.end(),
                                    [](const Sequence& s) { return !s.output().finished(); });
    status_.kv_tokens_used = engine_.kv_tokens_used();
    queue_.set_free_slots(options_.slots - status_.running);
    const std::lock_guard lock(mutex_);
    published_ = status_;
}

void Worker::run() {
    while (!running_.empty() || queue_.wait()) {
        end_overdue();
        settle();
        admit();
        publish();
        step();
        settle();
    }
}

void Worker::end(Submitted submitted, FinishReason reason, std::string error) {
    ended_.emplace_back(tokenizer_, status_, std::move(submitted)).finish(reason, std::move(error));
}

void Worker::end_overdue() {
    const auto now = Clock::now();
    for (Submitted& ended : queue_.pop_ended(now)) {
        const FinishReason reason = *must_end(ended, now);
        end(std::move(ended), reason);
    }
    for (Sequence& sequence : running_) {
        if (const auto reason = must_end(sequence.output().submitted(), now))
            sequence.output().finish(*reason);
    }
    const auto last = queue_.end();
    if (last && now >= *last) {
        for (Submitted& waiting : queue_.pop_all()) end(std::move(waiting), FinishReason::shutdown);
        for (Sequence& sequence : running_) sequence.output().finish(FinishReason::shutdown);
    }
}

void Worker::admit() {
    if (fixed()) {
        if (!running_.empty()) return;
        if (const Submitted* first = queue_.front()) queue_.wait_for(options_.slots, first->at + kFillTime);
    }
    while (static_cast<int64_t>(running_.size()) < options_.slots) {
        const Submitted* first = queue_.front();
        if (first == nullptr) return;
        const GenerationRequest& request = first->request;
        const int64_t tokens = static_cast<int64_t>(request.prompt.size()) +
                               std::min(request.max_tokens, sequence_room(engine_));
        std::optional<int32_t> id;
        try {
            id = engine_.open(std::min(tokens, sequence_room(engine_)));
        } catch (const std::exception& error) {
            end(queue_.pop(), FinishReason::error, error.what());
            continue;
        }
        if (!id && running_.empty()) {
            end(queue_.pop(), FinishReason::error, "the KV cache has no room although nothing runs");
            continue;
        }
        if (!id) return;  // when others have ended
        start(queue_.pop(), *id);
    }
}

void Worker::start(Submitted submitted, int32_t id) {
    status_.prompt_tokens += submitted.request.prompt.size();
    running_.emplace_back(engine_, options_, status_, id, Output(tokenizer_, status_, std::move(submitted)));
    if (running_.back().empty()) running_.back().output().finish(FinishReason::length);
}

// BatchingPolicy::fixed: all prompts first, then all sequences token by token.
bool Worker::holds_back(const Sequence& sequence) const {
    const auto any = [this](auto what) { return std::any_of(running_.begin(), running_.end(), what); };
    if (any([](const Sequence& s) { return s.prefilling(); })) return !sequence.prefilling();
    return !sequence.within_token() && any([](const Sequence& s) { return s.within_token(); });
}

void Worker::plan() {
    plan_.rows.clear();
    plan_.parts.clear();
    int64_t room = engine_.max_rows();
    const auto add = [&](bool prefill, int64_t most) {
        for (Sequence& sequence : running_) {
            if (sequence.prefilling() != prefill || (fixed() && holds_back(sequence))) continue;
            const int64_t added = sequence.plan(plan_, most);
            most -= added;
            room -= added;
        }
    };
    add(false, room);
    add(true, std::min(room, options_.prefill_rows));
}

void Worker::step() {
    plan();
    if (plan_.rows.empty()) return;
    const bool free_slot = static_cast<int64_t>(running_.size()) < options_.slots;
    if (free_slot && queue_.waiting() > 0) ++status_.starved;
    try {
        const std::span<const float> logits = engine_.step(plan_.rows);
        count_rows();
        take_results(logits);
    } catch (const std::exception& error) {
        fail_step(error.what());
    }
}

void Worker::count_rows() {
    ++status_.steps;
    status_.rows += plan_.rows.size();
    status_.last_rows = static_cast<int64_t>(plan_.rows.size());
    std::fill(status_.last_rows_at.begin(), status_.last_rows_at.end(), 0);
    for (const StepPart& part : plan_.parts)
        status_.last_rows_at[static_cast<size_t>(part.stage)] += part.end - part.begin;
}

void Worker::take_results(std::span<const float> logits) {
    for (const StepPart& part : plan_.parts) part.sequence->ran(part);
    const auto n_vocab = static_cast<size_t>(engine_.n_vocab());
    auto row = plan_.rows.begin();
    for (const StepPart& part : plan_.parts) {
        for (int64_t position = part.begin; position < part.end; ++position, ++row) {
            if (!row->logits) continue;
            try {
                part.sequence->take(position, part.stage, logits.first(n_vocab));
            } catch (const Error& error) {
                part.sequence->output().finish(FinishReason::error, error.what());
            }
            logits = logits.subspan(n_vocab);
        }
    }
}

// What the engine has of these sequences is unknown.
void Worker::fail_step(const std::string& error) {
    for (const StepPart& part : plan_.parts) part.sequence->output().finish(FinishReason::error, error);
}

// A client that hears of its end finds the room free and everything counted.
void Worker::settle() {
    for (Sequence& sequence : running_) {
        if (!sequence.output().finished()) continue;
        try {
            engine_.close(sequence.id());
        } catch (const std::exception&) {  // after a failed step; the client will be told of that
        }
    }
    publish();
    for (Output& output : ended_) output.flush();
    ended_.clear();
    for (Sequence& sequence : running_) sequence.output().flush();
    running_.remove_if([](const Sequence& sequence) { return sequence.output().finished(); });
}

}  // namespace refold
