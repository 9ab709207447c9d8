// What may go better the next time, and how long to wait for it.
#pragma once

#include <stdexcept>
#include <string>

namespace refold::hub {

// A failure that another attempt may not see: timeouts, lost connections, servers that are too busy.
class Transient : public std::runtime_error {
public:
    explicit Transient(const std::string& what, double wait = 0) : std::runtime_error(what), wait_(wait) {}
    // Seconds that the server asked for; 0: none.
    double wait() const { return wait_; }

private:
    double wait_;
};

// Counts the attempts of one transfer.
class Retry {
public:
    // `what` is transferred, for messages; `delay` in seconds before the second attempt.
    Retry(std::string what, int attempts, double delay)
        : what_(std::move(what)), attempts_(attempts), delay_(delay) {}

    // Waits until the next attempt. Throws Error(io) when `reason` ended the last one, Error(interrupted).
    void wait(const Transient& reason);
    // What has come so far is worth as many attempts again.
    void progressed() { failed_ = 0; }

private:
    std::string what_;
    int attempts_;
    double delay_;
    int failed_ = 0;
};

}  // namespace refold::hub
