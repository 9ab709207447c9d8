#include "serve/running_request.h"

#include <utility>

namespace refold {

void RunningRequest::count(SchedulerStatus& status) {
    const auto now = Clock::now();
    const auto since = [&](Clock::time_point start) {
        return std::chrono::duration<double>(now - start).count();
    };
    Continuation& continuation = sequence_.continuation();
    for (; counted_ < continuation.choices(); ++counted_) {
        latest_ ? observe(status.between_tokens, since(*latest_))
                : observe(status.first_token, since(submitted_.at));
        latest_ = now;
    }
    event_ = continuation.take();
    if (!event_) return;
    status.generated_tokens += event_->tokens.size();
    if (event_->finished) ++status.finished[*event_->finished];
}

void RunningRequest::send() {
    if (auto event = std::exchange(event_, std::nullopt)) submitted_.channel->push(std::move(*event));
}

}  // namespace refold
