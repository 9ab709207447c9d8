// Progress for a program that uses refold as a library: by a function instead of lines on stderr.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace refold {

struct ProgressUpdate {
    const std::string& label;
    uint64_t done = 0, total = 0;  // total 0: unknown
    const std::string& unit;
};

// While it lives, Progress of this thread shows nothing and calls `observe` at every advance. When that
// returns false, advance() throws Error(interrupted). Not to be nested.
class ProgressObserver {
public:
    explicit ProgressObserver(std::function<bool(const ProgressUpdate&)> observe);
    ~ProgressObserver();
    ProgressObserver(const ProgressObserver&) = delete;
    ProgressObserver& operator=(const ProgressObserver&) = delete;

    // Of this thread; null when there is none.
    static const ProgressObserver* current();
    void update(const ProgressUpdate& update) const;

private:
    std::function<bool(const ProgressUpdate&)> observe_;
};

}  // namespace refold
