#include "core/core_share.h"

#include <algorithm>

#include "core/processors.h"

namespace refold {

CoreShare& CoreShare::of_process() {
    static CoreShare share(processors().usable());
    return share;
}

int CoreShare::part_of(int most) {
    const auto now = Clock::now();
    std::erase_if(busy_, [&](const auto& caller) { return caller.second < now; });
    const auto callers = static_cast<int>(busy_.size());
    return callers == 1 ? most : std::clamp(cores_ / callers, 1, most);
}

CoreShare::Part CoreShare::take(int most) {
    std::unique_lock lock(mutex_);
    const uint64_t number = last_++;
    busy_[std::this_thread::get_id()] = Clock::time_point::max();
    int part = 0;
    changed_.wait(lock, [&] {
        if (now_ != number) return false;
        part = part_of(most);
        return taken_ == 0 || taken_ + part <= cores_;
    });
    ++now_;
    taken_ += part;
    lock.unlock();
    changed_.notify_all();
    return {*this, part};
}

void CoreShare::give_back(int threads) {
    {
        const std::lock_guard lock(mutex_);
        taken_ -= threads;
        busy_[std::this_thread::get_id()] = Clock::now() + recent_;
    }
    changed_.notify_all();
}

}  // namespace refold
