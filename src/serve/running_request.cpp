#include "serve/running_request.h"

#include <utility>

namespace refold {
namespace {

double seconds(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

}  // namespace

void RunningRequest::count(SchedulerStatus& status) {
    const auto now = Clock::now();
    Continuation& continuation = sequence_.continuation();
    for (; counted_ < continuation.choices(); ++counted_) {
        if (latest_) {
            observe(status.between_tokens, seconds(*latest_, now));
        } else {
            first_ = now;
            observe(status.first_token, seconds(submitted_.at, now));
            observe(status.prefill, seconds(started_, now));
        }
        latest_ = now;
    }
    event_ = continuation.take();
    if (!event_) return;
    event_->known_prompt = std::exchange(known_, 0);
    event_->started = started_;
    status.generated_tokens += event_->tokens.size();
    if (!event_->finished) return;
    ++status.finished[*event_->finished];
    count_end(status, now);
}

void RunningRequest::count_end(SchedulerStatus& status, Clock::time_point now) const {
    const GenerationRequest& request = sequence_.continuation().request();
    observe(status.queue, seconds(submitted_.at, started_));
    if (first_) observe(status.decode, seconds(*first_, now));
    observe(status.in_slot, seconds(started_, now));
    observe(status.whole, seconds(submitted_.at, now));
    observe(status.prompt_length, static_cast<double>(request.prompt.size()));
    observe(status.generated_length, static_cast<double>(counted_));
    observe(status.most_length, static_cast<double>(request.max_tokens));
}

void RunningRequest::send() {
    if (auto event = std::exchange(event_, std::nullopt)) submitted_.channel->push(std::move(*event));
}

}  // namespace refold
