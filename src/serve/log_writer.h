// Writes the lines of a log on a thread of its own. Where nobody reads them - a parent process that leaves
// its pipe full - they are dropped and counted, and nothing waits for them.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace refold {

class LogWriter {
public:
    // Writes to `descriptor`, which outlives it, and keeps at most `most` lines that wait.
    explicit LogWriter(int descriptor, size_t most = 1000);
    ~LogWriter();  // gives the lines that wait a moment
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;

    // `line` without its end. Never waits for the reader. Any thread.
    void write(std::string line);

private:
    void run();
    // Returns false when the reader did not take the line in time.
    bool put(const std::string& line) const;

    const int descriptor_;
    const size_t most_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::string> lines_;
    size_t dropped_ = 0;
    bool ending_ = false;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace refold
