// Writes the lines of a log on a thread of its own. Where nobody reads them - a parent process that leaves
// its pipe full - they are dropped and counted, and nothing waits for them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace refold {

// The line that stands for `count` lines that were dropped.
std::string dropped_lines(size_t count);

struct LogOptions {
    size_t most = 1000;  // lines that wait
    std::function<std::string(size_t)> gap = dropped_lines;
};

class LogWriter {
public:
    // Writes to `descriptor`, which outlives it.
    explicit LogWriter(int descriptor, LogOptions options = {});
    // Adds to the file `path`, which it creates if need be, for its owner and group. Throws Error(io) when it
    // cannot.
    explicit LogWriter(const std::string& path, LogOptions options = {});
    ~LogWriter();  // gives the lines that wait a moment
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;

    // `line` without its end. Never waits for the reader. Any thread.
    void write(std::string line);
    // Opens the file anew, which may have been moved or deleted. Throws Error(io) when it cannot and then
    // goes on with the old one. Without a path it does nothing. Any thread.
    void reopen();

private:
    class Output;
    LogWriter(std::shared_ptr<const Output> output, std::string path, LogOptions options);
    void run();

    const std::string path_;
    const LogOptions options_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::shared_ptr<const Output> output_;
    std::deque<std::string> lines_;
    size_t dropped_ = 0;
    bool ending_ = false;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace refold
