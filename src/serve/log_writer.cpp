#include "serve/log_writer.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <climits>
#include <utility>

namespace refold {
namespace {

constexpr int kPatience = 200;  // ms

}  // namespace

LogWriter::LogWriter(int descriptor, size_t most)
    : descriptor_(descriptor), most_(most), thread_([this] { run(); }) {}

LogWriter::~LogWriter() {
    {
        const std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
}

void LogWriter::write(std::string line) {
    {
        const std::lock_guard lock(mutex_);
        if (lines_.size() >= most_) {
            ++dropped_;
            return;
        }
        if (const size_t dropped = std::exchange(dropped_, 0); dropped > 0)
            lines_.push_back(fmt::format("({} lines are missing: the log was not read in time)", dropped));
        lines_.push_back(std::move(line));
    }
    changed_.notify_one();
}

bool LogWriter::put(const std::string& line) const {
    pollfd state{descriptor_, POLLOUT, 0};
    if (poll(&state, 1, kPatience) <= 0 || (state.revents & POLLOUT) == 0) return false;
    // A pipe that is ready takes so much at once: the write does not wait.
    const std::string text = line.substr(0, PIPE_BUF - 1) + '\n';
    return ::write(descriptor_, text.data(), text.size()) > 0;
}

void LogWriter::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return ending_ || !lines_.empty(); });
        if (lines_.empty()) return;
        const std::string line = lines_.front();
        lock.unlock();
        const bool written = put(line);
        lock.lock();
        if (written) {
            lines_.pop_front();
        } else if (ending_) {
            return;
        }
    }
}

}  // namespace refold
