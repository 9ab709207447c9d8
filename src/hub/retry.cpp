#include "hub/retry.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "core/error.h"
#include "core/interrupt.h"

namespace refold::hub {

void Retry::wait(const Transient& reason) {
    constexpr double kLongest = 300;
    if (++failed_ >= attempts_ || reason.wait() > kLongest) {
        const std::string count = failed_ == 1 ? "one attempt" : fmt::format("{} attempts", failed_);
        fail(ErrorCode::io, "hub", "{}: {} (given up after {}) - check the network, or try again later",
             what_, reason.what(), count);
    }
    using Clock = std::chrono::steady_clock;
    const double seconds = std::min(std::max(reason.wait(), std::ldexp(delay_, failed_ - 1)), kLongest);
    const auto until =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    for (auto now = Clock::now(); now < until; now = Clock::now()) {
        check_interrupt();
        std::this_thread::sleep_for(std::min<Clock::duration>(until - now, std::chrono::milliseconds(50)));
    }
    check_interrupt();
}

}  // namespace refold::hub
