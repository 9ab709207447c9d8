// Work that reports its progress to a function of Python.
#pragma once

#include <chrono>
#include <string>

#include "native/task.h"
#include "refold/control.h"

namespace refold::python {

struct ProgressEvent {
    std::string part, unit;
    uint64_t done = 0, total = 0;
};

// Progress of one part that comes faster is left out, but for its end.
constexpr std::chrono::milliseconds kProgressInterval{50};

// work(control) on a thread of its own. `callback(part, done, total, unit)` is called by this thread, or is
// None; what it raises cancels the work.
template <typename Work>
auto run_with_progress(const nanobind::object& callback, Work work) {
    using Result = decltype(work(Control()));
    const bool reports = !callback.is_none();
    Task<ProgressEvent, Result> task(
        [reports, work = std::move(work)](std::stop_token stop, const auto& emit) {
            Control control;
            control.stop = std::move(stop);
            std::string part;
            auto told = std::chrono::steady_clock::time_point();
            if (reports)
                control.on_progress = [&](const ProgressReport& p) {
                    const auto now = std::chrono::steady_clock::now();
                    if (p.part == part && p.done != p.total && now - told < kProgressInterval) return;
                    part = p.part;
                    told = now;
                    emit({part, std::string(p.unit), p.done, p.total});
                };
            return work(control);
        });
    while (const auto event = task.next()) callback(event->part, event->done, event->total, event->unit);
    return task.result();
}

}  // namespace refold::python
