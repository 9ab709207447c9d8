#include "serve/worker.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/interrupt.h"
#include "engine/devices.h"

namespace refold {
namespace {

// How long a batch of BatchingPolicy::fixed waits to be filled.
constexpr std::chrono::milliseconds kFillTime{50};

// As many tokens, and a prompt waits for another one that has them in common with it and is being read.
constexpr size_t kWorthWaiting = 32;

}  // namespace

Worker::Worker(Engine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options,
               RequestQueue& queue)
    : engine_(engine),
      tokenizer_(tokenizer),
      options_(options),
      decoding_{.exit = options.exit,
                .draft = options.draft,
                .draft_loop = options.draft_loop,
                .lookup = options.lookup,
                .draft_tokens = options.draft_tokens,
                .draft_model = options.draft_model,
                .draft_always = options.draft_always},
      queue_(queue),
      sequences_(engine, SharedSequences::Rooms::exact),
      counts_(engine.capabilities().loops),
      drafting_(decoding_, counts_),
      prompt_share_(options.prefill_share),
      status_(new_status()) {
    status_.slots = options.slots;
    status_.kv_tokens = engine.capabilities().kv_tokens;
    status_.last_rows_at.resize(static_cast<size_t>(engine.capabilities().loops));
    publish();
}

SchedulerStatus Worker::status() const {
    const std::lock_guard lock(mutex_);
    return published_;
}

void Worker::publish() {
    status_.running =
        std::count_if(running_.begin(), running_.end(), [](const auto& r) { return !r.finished(); });
    status_.exits = counts_.exits;
    status_.drafted = counts_.drafted;
    status_.accepted = counts_.accepted;
    status_.kv_tokens_used = engine_.kv_tokens_used();
    queue_.set_free_slots(options_.slots - status_.running);
    const std::lock_guard lock(mutex_);
    published_ = status_;
}

void Worker::run() {
    load_prefixes();
    while (!running_.empty() || queue_.wait()) {
        end_overdue();
        settle();
        admit();
        publish();
        step();
        settle();
    }
    save_prefixes();
    sequences_.clear();
}

void Worker::note(const std::string& text) const {
    if (options_.note) options_.note(text);
}

void Worker::load_prefixes() {
    const PrefixFile& file = options_.prefix_file;
    if (file.path.empty()) return;
    try {
        const size_t tokens = refold::load_prefixes(file, sequences_);
        note(fmt::format("'{}': {} tokens of earlier prompts are known", file.path, tokens));
    } catch (const std::exception& error) {
        note(fmt::format("{} - prompts are computed anew", error.what()));
    }
}

// Also after the signal that ends the server.
void Worker::save_prefixes() const {
    const PrefixFile& file = options_.prefix_file;
    if (file.path.empty() || lost_) return;
    const WithoutInterrupts without_interrupts;
    try {
        note(fmt::format("'{}': {} tokens of prompts are kept", file.path,
                         refold::save_prefixes(file, sequences_)));
    } catch (const std::exception& error) {
        note(error.what());
    }
}

void Worker::end(const Submitted& submitted, FinishReason reason, std::string error) {
    Ended& ended = ended_.emplace_back(Ended{submitted.channel, {}});
    ended.event.finished = reason;
    ended.event.error = std::move(error);
    ++status_.finished[reason];
}

void Worker::end_next(const std::string& error) {
    const Submitted next = queue_.pop();
    end(next, FinishReason::error, error);
    queue_.left(next.client);
}

void Worker::end_overdue() {
    const auto now = Clock::now();
    for (const Submitted& ended : queue_.pop_ended(now)) end(ended, *must_end(ended, now));
    for (RunningRequest& request : running_)
        if (const auto reason = must_end(request.submitted(), now)) request.finish(*reason);
    const auto last = queue_.end();
    if (last && now >= *last) {
        for (const Submitted& waiting : queue_.pop_all()) end(waiting, FinishReason::shutdown);
        for (RunningRequest& request : running_) request.finish(FinishReason::shutdown);
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
        // All of a prompt that is scored is run, and of others the last token.
        const size_t most = request.prompt_logprobs || !options_.prefixes ? 0 : request.prompt.size() - 1;
        SharedSequences::Sequence* place = nullptr;
        try {
            place = sequences_.begin(request.prompt,
                                     static_cast<size_t>(std::min(tokens, sequence_room(engine_))), most,
                                     request.adapter);
        } catch (const std::exception& error) {
            end_next(error.what());
            continue;
        }
        if (place == nullptr && running_.empty()) {
            end_next("the KV cache has no room although nothing runs");
            continue;
        }
        if (place == nullptr) return;  // until others have ended
        start(queue_.pop(), *place);
    }
}

void Worker::start(Submitted submitted, SharedSequences::Sequence& place) {
    status_.prompt_tokens += submitted.request.prompt.size();
    status_.known_tokens += place.done;
    Continuation continuation(tokenizer_, std::move(submitted.request));
    Sequence sequence(
        engine_, decoding_, counts_,
        {.id = place.id, .known = static_cast<int64_t>(place.done), .room = sequence_room(engine_)},
        std::move(continuation));
    RunningRequest& request = running_.emplace_back(std::move(submitted), place, std::move(sequence));
    if (options_.prefixes) request.leader = leader_of(request);
    if (request.sequence().empty()) request.finish(FinishReason::length);
}

// The earlier request that is reading most of what this one's prompt begins with.
RunningRequest::Leader Worker::leader_of(const RunningRequest& request) const {
    const std::vector<int32_t>& prompt = request.sequence().tokens();
    RunningRequest::Leader leader;
    if (request.submitted().request.prompt_logprobs) return leader;  // all of it is run
    size_t most = static_cast<size_t>(request.sequence().complete()) + kWorthWaiting;
    for (const RunningRequest& other : running_) {
        if (&other == &request) break;
        if (!other.sequence().prefilling() || other.place().adapter != request.place().adapter) continue;
        const size_t common = std::min(common_prefix(other.sequence().tokens(), prompt), prompt.size() - 1);
        if (common < most) continue;
        most = common + 1;
        leader = {other.submitted().channel, static_cast<int64_t>(common)};
    }
    return leader;
}

// Prompts go on where their leader has read what they have in common, or has ended.
void Worker::follow_leaders() {
    for (RunningRequest& request : running_) {
        if (!request.leader.channel) continue;
        const auto leader = std::ranges::find_if(running_, [&](const RunningRequest& other) {
            return !other.finished() && other.submitted().channel == request.leader.channel;
        });
        if (leader != running_.end() && leader->sequence().exact() < request.leader.tokens) continue;
        const int64_t known = request.sequence().complete(),
                      now = static_cast<int64_t>(
                          sequences_.catch_up(request.place(), request.sequence().tokens().size() - 1));
        if (now > known) request.skip_to(now);
        status_.known_tokens += static_cast<size_t>(now - known);
        request.leader = leader_of(request);  // of one that ended too soon
    }
}

// BatchingPolicy::fixed: all prompts first, then all sequences token by token.
bool Worker::holds_back(const Sequence& sequence) const {
    const auto any = [this](auto what) {
        return std::any_of(running_.begin(), running_.end(),
                           [&](const auto& r) { return what(r.sequence()); });
    };
    if (any([](const Sequence& s) { return s.prefilling(); })) return !sequence.prefilling();
    return !sequence.within_token() && any([](const Sequence& s) { return s.within_token(); });
}

void Worker::plan() {
    plan_.clear();
    follow_leaders();
    std::vector<Sequence*> generating;
    for (RunningRequest& request : running_)
        if (!request.sequence().prefilling()) generating.push_back(&request.sequence());
    plan_.drafts = drafting_.begin_step(generating);
    int64_t room = engine_.capabilities().max_rows;
    for (RunningRequest& request : running_) {
        Sequence& sequence = request.sequence();
        if (!sequence.prefilling() && !(fixed() && holds_back(sequence))) room -= sequence.plan(plan_, room);
    }
    const bool generates = !plan_.rows.empty();
    if (prompt_share_.open(generates)) plan_prompts(std::min(room, options_.prefill_rows));
}

// Half of the rows is for the prompt that came first, the rest for those of which least is left: a short
// prompt does not wait for the long ones before it, and a long one does not for all short ones after it.
void Worker::plan_prompts(int64_t most) {
    std::vector<Sequence*> others;
    int64_t left_of_others = 0;
    Sequence* first = nullptr;
    for (RunningRequest& request : running_) {
        Sequence& sequence = request.sequence();
        const bool waits = request.leader.channel != nullptr || (fixed() && holds_back(sequence));
        if (!sequence.prefilling() || waits) continue;
        if (first == nullptr) {
            first = &sequence;
        } else {
            others.push_back(&sequence);
            left_of_others += sequence.prompt_left();
        }
    }
    if (first == nullptr) return;
    most -= first->plan(plan_, std::max((most + 1) / 2, most - left_of_others));
    std::ranges::stable_sort(others, {}, &Sequence::prompt_left);
    for (Sequence* sequence : others) most -= sequence->plan(plan_, most);
}

void Worker::step() {
    try {
        plan();
    } catch (const std::exception& error) {  // of the draft model
        note_loss(error);
        for (RunningRequest& request : running_) request.finish(FinishReason::error, error.what());
        return;
    }
    if (plan_.rows.empty()) return;
    bool prompts = false, generates = false;
    for (const RowRange& range : plan_.ranges) (range.sequence->prefilling() ? prompts : generates) = true;
    const bool free_slot = static_cast<int64_t>(running_.size()) < options_.slots;
    if (free_slot && queue_.waiting() > 0) ++status_.starved;
    try {
        const auto start = Clock::now();
        const StepOutput output = engine_.step({.rows = plan_.rows});
        const std::chrono::duration<double> took = Clock::now() - start;
        prompt_share_.add(took.count(), generates, prompts);
        count_rows();
        plan_.take(output, engine_.capabilities().n_vocab);
        drafting_.end_step(prompts);
        for (RunningRequest& request : running_)
            request.place().done =
                std::min(static_cast<size_t>(request.sequence().exact()), request.place().tokens.size());
    } catch (const std::exception& error) {
        note_loss(error);
        fail_step(error.what());
    }
}

void Worker::count_rows() {
    ++status_.steps;
    status_.rows += plan_.rows.size();
    status_.last_rows = static_cast<int64_t>(plan_.rows.size());
    std::fill(status_.last_rows_at.begin(), status_.last_rows_at.end(), 0);
    for (const RowRange& range : plan_.ranges)
        status_.last_rows_at[static_cast<size_t>(range.loop)] += range.end - range.begin;
}

void Worker::note_loss(const std::exception& error) {
    if (dynamic_cast<const LostDevice*>(&error) != nullptr) lost_ = true;
}

// The engine's state of these sequences is unknown.
void Worker::fail_step(const std::string& error) {
    for (const RowRange& range : plan_.ranges)
        range.sequence->continuation().finish(FinishReason::error, error);
}

// Its keys and values stay for prompts that begin alike, if they are known to be right.
void Worker::leave(RunningRequest& request) {
    SharedSequences::Sequence& place = request.place();
    const Sequence& sequence = request.sequence();
    drafting_.end(sequence);
    if (!options_.prefixes || request.failed()) return sequences_.forget(place);
    place.tokens = sequence.tokens();
    // Drafts after the end were run, too.
    place.done = std::min(static_cast<size_t>(sequence.exact()), place.tokens.size());
    sequences_.end(place);
}

// A client that hears of its end finds the room free and everything counted.
void Worker::settle() {
    for (RunningRequest& request : running_) {
        request.count(status_);
        if (!request.finished()) continue;
        leave(request);
        queue_.left(request.submitted().client);
    }
    publish();
    for (Ended& ended : ended_) ended.channel->push(std::move(ended.event));
    ended_.clear();
    for (RunningRequest& request : running_) request.send();
    running_.remove_if([](const RunningRequest& request) { return request.finished(); });
}

}  // namespace refold
