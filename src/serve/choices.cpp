#include "serve/choices.h"

#include <algorithm>
#include <thread>

#include "core/error.h"
#include "serve/api_error.h"

namespace refold {

using std::chrono::milliseconds;

Choices::Choices(Scheduler& scheduler, std::function<GenerationRequest(size_t)> request,
                 const Options& options, const std::atomic<bool>& stopping)
    : scheduler_(scheduler), stopping_(stopping), request_(std::move(request)), options_(options) {
    if (submit_next()) return;
    ApiError full(429, "all slots are busy and the queue is full - try again later", "", "queue_full");
    full.retry_after = 1;
    throw full;
}

bool Choices::submit_next() {
    const auto left = std::chrono::ceil<milliseconds>(options_.deadline - Clock::now());
    if (left <= milliseconds(0)) throw timeout_error();
    try {
        GenerationRequest request = request_(submitted_);
        request.timeout = left;
        auto generation = scheduler_.submit(std::move(request), options_.client);
        if (!generation) {
            if (stopping_) throw shutting_down();
            constexpr milliseconds kRetry(20);
            retry_ = Clock::now() + kRetry;
            return false;
        }
        running_.push_back({submitted_, std::move(generation)});
    } catch (const Error& error) {
        throw api_error(error);
    }
    ++submitted_;
    return true;
}

std::optional<Choices::Event> Choices::poll() {
    for (size_t i = 0; i < running_.size(); ++i) {
        const size_t at = (turn_ + i) % running_.size();
        auto event = next_of(at, milliseconds(0));
        if (!event) continue;
        turn_ = at + 1;
        return event;
    }
    return std::nullopt;
}

std::optional<Choices::Event> Choices::next_of(size_t running, milliseconds timeout) {
    const Running& one = running_[running];
    auto event = one.generation->next(timeout);
    if (!event) return std::nullopt;
    Event out{one.choice, std::move(*event)};
    if (out.event.finished) running_.erase(running_.begin() + static_cast<ptrdiff_t>(running));
    return out;
}

std::optional<Choices::Event> Choices::next(milliseconds timeout) {
    // Several generations are polled in turn. The scheduler ends them itself unless a step takes long.
    constexpr milliseconds kTurn(2), kLongStep(250);
    const auto end = Clock::now() + timeout;
    for (;;) {
        while (submitted_ < options_.choices && running_.size() < options_.most_at_once &&
               Clock::now() >= retry_ && submit_next()) {
        }
        if (auto event = poll()) return event;
        if (Clock::now() >= options_.deadline + kLongStep) throw timeout_error();
        const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
        if (left <= milliseconds(0)) return std::nullopt;
        const bool alone = running_.size() == 1 && submitted_ == options_.choices;
        if (running_.empty()) {
            std::this_thread::sleep_for(std::min(left, kTurn));
        } else if (auto event = next_of(0, alone ? left : std::min(left, kTurn))) {
            return event;
        }
    }
}

}  // namespace refold
