// Requests that wait for a slot. The next one is of the client that has the fewest, and of one client the one
// that came first: nobody waits for all that another one has asked for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "generation/request.h"
#include "serve/channel.h"

namespace refold {

using Clock = std::chrono::steady_clock;

struct Submitted {
    GenerationRequest request;
    std::shared_ptr<Channel> channel;
    Clock::time_point at, deadline;
    uint64_t client = 0;  // who asks; any number
};

// Why a request that waits or runs must end now; nothing when it may go on.
std::optional<FinishReason> must_end(const Submitted& submitted, Clock::time_point now);

class RequestQueue {
public:
    // `free_slots`: at first. Requests for which there is a free slot do not count against the capacity.
    RequestQueue(int64_t capacity, int64_t free_slots) : capacity_(capacity), free_slots_(free_slots) {}

    // False when full or closed. Any thread.
    bool push(Submitted submitted);
    // Takes no more requests; those that run or wait at `end` are ended. A later call can only bring the end
    // forward.
    void close(Clock::time_point end);
    int64_t waiting() const;

    // The rest is for the scheduler's thread.

    // Waits for a request; false when closed and empty.
    bool wait();
    // Waits until `count` requests wait, at most until `until`.
    void wait_for(int64_t count, Clock::time_point until);
    std::optional<Clock::time_point> end() const;
    // The next request, which stays the next until pop(). Null when empty.
    const Submitted* front();
    Submitted pop();  // what front() has shown, into a slot
    // A request of that client has left its slot.
    void left(uint64_t client);
    // Takes out the requests that must_end(), or all.
    std::deque<Submitted> pop_ended(Clock::time_point now);
    std::deque<Submitted> pop_all();
    void set_free_slots(int64_t free_slots);

private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    const int64_t capacity_;
    int64_t free_slots_;
    std::deque<Submitted> waiting_;
    size_t next_ = 0;                                 // what front() has shown
    std::unordered_map<uint64_t, int64_t> in_slots_;  // by client; scheduler's thread only
    std::optional<Clock::time_point> end_;
};

}  // namespace refold
