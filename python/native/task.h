// Work of refold's on a thread of its own, while the thread of Python that asked for it waits without the GIL
// and looks for signals. Work must not touch Python's objects: what it has to tell are events, which the
// waiting thread takes.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <variant>

namespace refold::python {

template <typename Event, typename Result>
class Task {
public:
    using Emit = std::function<void(Event)>;
    using Work = std::function<Result(std::stop_token, const Emit&)>;

    explicit Task(Work work)
        : thread_([this, work = std::move(work)](std::stop_token stop) { run(work, std::move(stop)); }) {}
    // Cancels what still runs.
    ~Task() { cancel(); }
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;

    // The next event; nothing at the end. Throws nanobind::python_error, the work cancelled, when a handler
    // of a signal has raised an exception (KeyboardInterrupt). With the GIL, as all functions here.
    std::optional<Event> next() {
        while (!wait()) {
            if (PyErr_CheckSignals() == 0) continue;
            const nanobind::python_error error;
            cancel();
            throw error;
        }
        const std::lock_guard lock(mutex_);
        if (events_.empty()) return std::nullopt;
        Event event = std::move(events_.front());
        events_.pop_front();
        return event;
    }

    // What the work has returned or thrown, once next() has returned nothing.
    Result result() {
        if (error_) std::rethrow_exception(error_);
        return std::move(*result_);
    }

    void cancel() {
        const nanobind::gil_scoped_release release;
        thread_.request_stop();
        if (thread_.joinable()) thread_.join();
    }

private:
    static constexpr std::chrono::milliseconds kSignals{50};

    // Whether there is an event or the end.
    bool wait() {
        const nanobind::gil_scoped_release release;
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, kSignals, [this] { return done_ || !events_.empty(); });
    }

    void run(const Work& work, std::stop_token stop) {
        try {
            result_ = work(std::move(stop), [this](Event event) {
                const std::lock_guard lock(mutex_);
                events_.push_back(std::move(event));
                changed_.notify_one();
            });
        } catch (...) {
            error_ = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        done_ = true;
        changed_.notify_one();
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Event> events_;
    bool done_ = false;
    std::optional<Result> result_;
    std::exception_ptr error_;
    std::jthread thread_;  // the last member: it uses the others
};

// The result of work without events.
template <typename Work>
auto run(Work work) {
    using Result = decltype(work(std::stop_token()));
    Task<std::monostate, Result> task(
        [work = std::move(work)](std::stop_token stop, const auto&) { return work(std::move(stop)); });
    static_cast<void>(task.next());
    return task.result();
}

}  // namespace refold::python
