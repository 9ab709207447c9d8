#include "serve/log_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace refold {
namespace {

constexpr std::chrono::milliseconds kPatience(200);

}  // namespace

class LogWriter::Output {
public:
    explicit Output(int descriptor) : descriptor_(descriptor), ours_(false) {}
    explicit Output(const std::string& path)
        : descriptor_(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0640)),
          ours_(true) {
        if (descriptor_ < 0)
            fail(ErrorCode::io, "serve", "cannot write the log '{}': {}", path, strerror(errno));
    }
    ~Output() {
        if (ours_) close(descriptor_);
    }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    // Returns false when the reader did not take the line in time.
    bool put(const std::string& line) const {
        pollfd state{descriptor_, POLLOUT, 0};
        if (poll(&state, 1, static_cast<int>(kPatience.count())) <= 0 || (state.revents & POLLOUT) == 0)
            return false;
        // A pipe that is ready takes so much at once: the write does not wait.
        const std::string text = line.substr(0, PIPE_BUF - 1) + '\n';
        return ::write(descriptor_, text.data(), text.size()) > 0;
    }

private:
    const int descriptor_;
    const bool ours_;
};

std::string dropped_lines(size_t count) {
    return fmt::format("({} lines are missing: the log was not read in time)", count);
}

LogWriter::LogWriter(std::shared_ptr<const Output> output, std::string path, LogOptions options)
    : path_(std::move(path)),
      options_(std::move(options)),
      output_(std::move(output)),
      thread_([this] { run(); }) {}

LogWriter::LogWriter(int descriptor, LogOptions options)
    : LogWriter(std::make_shared<Output>(descriptor), "", std::move(options)) {}

LogWriter::LogWriter(const std::string& path, LogOptions options)
    : LogWriter(std::make_shared<Output>(path), path, std::move(options)) {}

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
        if (lines_.size() >= options_.most) {
            ++dropped_;
            return;
        }
        if (const size_t dropped = std::exchange(dropped_, 0); dropped > 0)
            lines_.push_back(options_.gap(dropped));
        lines_.push_back(std::move(line));
    }
    changed_.notify_one();
}

void LogWriter::reopen() {
    if (path_.empty()) return;
    std::shared_ptr<const Output> output = std::make_shared<Output>(path_);
    const std::lock_guard lock(mutex_);
    output_.swap(output);
}

void LogWriter::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return ending_ || !lines_.empty(); });
        if (lines_.empty()) return;
        const std::string line = lines_.front();
        const std::shared_ptr<const Output> output = output_;
        lock.unlock();
        const bool written = output->put(line);
        lock.lock();
        if (written) {
            lines_.pop_front();
        } else if (ending_) {
            return;
        } else {
            // A full disk or a reader that has left fails at once.
            changed_.wait_for(lock, kPatience, [this] { return ending_; });
        }
    }
}

}  // namespace refold
