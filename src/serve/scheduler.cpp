#include "serve/scheduler.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "generation/options.h"
#include "generation/sequence.h"
#include "model/token_ids.h"
#include "serve/worker.h"

namespace refold {
namespace {

void check(const SchedulerOptions& o, const Engine& engine) {
    const auto at_least = [](const char* what, int64_t value, int64_t least) {
        if (value < least)
            fail(ErrorCode::usage, "scheduler", "{} must be at least {}, got {}", what, least, value);
    };
    at_least("slots", o.slots, 1);
    at_least("queue", o.queue, 0);
    at_least("rows of prompts in a step", o.prefill_rows, 1);
    if (!(o.prefill_share > 0 && o.prefill_share <= 1))
        fail(ErrorCode::usage, "scheduler", "the share of prompts must be above 0 and at most 1, got {}",
             o.prefill_share);
    at_least("timeout in ms", o.timeout.count(), 1);
    at_least("drafted tokens", o.draft, 0);
    at_least("looked-up tokens", o.lookup, 0);
    at_least("drafted tokens of a model", o.draft_tokens, 1);
    if (const int64_t drafts = o.lookup + (o.draft_model != nullptr ? o.draft_tokens : 0);
        o.slots + drafts > engine.capabilities().max_rows && drafts > 0) {
        fail(ErrorCode::usage, "scheduler",
             "got {} slots and {} drafted tokens, but a step has at most {} rows - take a larger batch",
             o.slots, drafts, engine.capabilities().max_rows);
    }
    if (o.slots > engine.capabilities().max_rows) {
        fail(ErrorCode::usage, "scheduler",
             "got {} slots, but a step has at most {} rows - take a larger batch", o.slots,
             engine.capabilities().max_rows);
    }
    check_exit_policy(o.exit, engine.capabilities().loops, engine.capabilities().exit_gate);
    check_drafts({.draft = o.draft, .lookup = o.lookup, .draft_model = o.draft_model}, engine.capabilities());
    if (o.draft == 0) return;
    if (o.draft_loop < 1 || o.draft_loop >= engine.capabilities().loops) {
        fail(ErrorCode::usage, "scheduler",
             "drafts come from a loop before the last one: got loop {} of {} - exact mode needs a looped "
             "model",
             o.draft_loop, engine.capabilities().loops);
    }
    if (o.exit.active()) fail(ErrorCode::usage, "scheduler", "exact mode and early exit exclude each other");
    if (o.batching == BatchingPolicy::fixed)
        fail(ErrorCode::usage, "scheduler", "exact mode needs continuous batching");
}

// Bounded, so that the sum does not overflow.
Clock::time_point later(Clock::time_point now, std::chrono::milliseconds wait) {
    return now + std::min<std::chrono::milliseconds>(wait, std::chrono::years(10));
}

}  // namespace

struct Scheduler::Impl {
    Impl(Engine& engine, const Tokenizer& tokenizer, const SchedulerOptions& given)
        : options(given),
          room(sequence_room(engine)),
          n_vocab(engine.capabilities().n_vocab),
          loops(engine.capabilities().loops),
          queue(options.queue, options.slots),
          worker(engine, tokenizer, options, queue),
          thread([this] { worker.run(); }) {}

    void check_prompt(const GenerationRequest& request) const;
    void check_options(const GenerationRequest& request) const;

    const SchedulerOptions options;
    const int64_t room, n_vocab;
    const int32_t loops;
    RequestQueue queue;
    Worker worker;
    std::atomic<uint64_t> refused = 0;
    std::mutex joining;
    std::thread thread;
};

void Scheduler::Impl::check_prompt(const GenerationRequest& request) const {
    const auto tokens = static_cast<int64_t>(request.prompt.size());
    if (tokens == 0) fail(ErrorCode::input, "scheduler", "the prompt is empty");
    if (tokens + std::min<int64_t>(request.max_tokens, 1) > room) {
        fail(ErrorCode::input, "scheduler",
             "the prompt has {} tokens, expected at most {} - shorten it or raise the context", tokens,
             room - std::min<int64_t>(request.max_tokens, 1));
    }
    check_token_ids(request.prompt, n_vocab, "scheduler");
}

void Scheduler::Impl::check_options(const GenerationRequest& request) const {
    check_generation(request, n_vocab);
    if (request.timeout.count() < 0)
        fail(ErrorCode::usage, "scheduler", "the timeout must be 0 or more, got {} ms",
             request.timeout.count());
    if (!request.exits.empty() && options.draft > 0)
        fail(ErrorCode::usage, "scheduler", "exits cannot be replayed in exact mode");
    for (const int32_t loop : request.exits) {
        if (loop < 1 || loop > loops)
            fail(ErrorCode::usage, "scheduler", "an exit after loop {}, expected 1 to {}", loop, loops);
    }
}

Scheduler::Scheduler(Engine& engine, const Tokenizer& tokenizer, const SchedulerOptions& options) {
    check(options, engine);
    impl_ = std::make_unique<Impl>(engine, tokenizer, options);
}

Scheduler::~Scheduler() { shutdown(std::chrono::milliseconds(0)); }

std::unique_ptr<Generation> Scheduler::submit(GenerationRequest request, uint64_t client) {
    impl_->check_options(request);
    impl_->check_prompt(request);
    const auto timeout = request.timeout.count() > 0 ? request.timeout : impl_->options.timeout;
    const auto channel = std::make_shared<Channel>();
    const auto now = Clock::now();
    if (!impl_->queue.push({std::move(request), channel, now, later(now, timeout), client})) {
        ++impl_->refused;
        return nullptr;
    }
    return make_generation(channel);
}

SchedulerStatus Scheduler::status() const {
    SchedulerStatus status = impl_->worker.status();
    status.waiting = impl_->queue.waiting();
    status.refused = impl_->refused;
    return status;
}

bool Scheduler::lost() const { return impl_->worker.lost(); }

void Scheduler::shutdown(std::chrono::milliseconds grace) {
    impl_->queue.close(later(Clock::now(), grace));
    const std::lock_guard lock(impl_->joining);
    if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace refold
