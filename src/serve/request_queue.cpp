#include "serve/request_queue.h"

#include <algorithm>
#include <utility>

namespace refold {

std::optional<FinishReason> must_end(const Submitted& submitted, Clock::time_point now) {
    if (submitted.channel->cancelled()) return FinishReason::cancelled;
    if (now >= submitted.deadline) return FinishReason::timeout;
    return std::nullopt;
}

bool RequestQueue::push(Submitted submitted) {
    {
        const std::lock_guard lock(mutex_);
        if (end_ || static_cast<int64_t>(waiting_.size()) >= capacity_ + free_slots_) return false;
        waiting_.push_back(std::move(submitted));
    }
    changed_.notify_one();
    return true;
}

void RequestQueue::close(Clock::time_point end) {
    {
        const std::lock_guard lock(mutex_);
        end_ = end_ ? std::min(*end_, end) : end;
    }
    changed_.notify_one();
}

int64_t RequestQueue::waiting() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int64_t>(waiting_.size());
}

bool RequestQueue::wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !waiting_.empty() || end_; });
    return !waiting_.empty();
}

void RequestQueue::wait_for(int64_t count, Clock::time_point until) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [&] { return static_cast<int64_t>(waiting_.size()) >= count || end_; });
}

std::optional<Clock::time_point> RequestQueue::end() const {
    const std::lock_guard lock(mutex_);
    return end_;
}

const Submitted* RequestQueue::front() {
    const std::lock_guard lock(mutex_);
    const auto has = [this](const Submitted& submitted) {
        const auto found = in_slots_.find(submitted.client);
        return found == in_slots_.end() ? 0 : found->second;
    };
    next_ = 0;
    for (size_t i = 1; i < waiting_.size(); ++i)
        if (has(waiting_[i]) < has(waiting_[next_])) next_ = i;
    return waiting_.empty() ? nullptr : &waiting_[next_];
}

Submitted RequestQueue::pop() {
    const std::lock_guard lock(mutex_);
    Submitted next = std::move(waiting_[next_]);
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(next_));
    next_ = 0;
    --free_slots_;
    ++in_slots_[next.client];
    return next;
}

void RequestQueue::left(uint64_t client) {
    if (--in_slots_[client] <= 0) in_slots_.erase(client);
}

std::deque<Submitted> RequestQueue::pop_ended(Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    std::deque<Submitted> ended;
    for (auto it = waiting_.begin(); it != waiting_.end();) {
        if (must_end(*it, now)) {
            ended.push_back(std::move(*it));
            it = waiting_.erase(it);
        } else {
            ++it;
        }
    }
    return ended;
}

std::deque<Submitted> RequestQueue::pop_all() {
    const std::lock_guard lock(mutex_);
    return std::exchange(waiting_, {});
}

void RequestQueue::set_free_slots(int64_t free_slots) {
    const std::lock_guard lock(mutex_);
    free_slots_ = free_slots;
}

}  // namespace refold
