// Transient failures, and the waits between attempts.
#pragma once

#include <stdexcept>
#include <string>

namespace refold::hub {

// A failure that a retry may fix: a timeout, a lost connection, a server that is too busy.
class Transient : public std::runtime_error {
public:
    explicit Transient(const std::string& what, double wait = 0) : std::runtime_error(what), wait_(wait) {}
    // Seconds that the server asked to wait, or 0.
    double wait() const { return wait_; }

private:
    double wait_;
};

// Counts the attempts of one transfer.
class Retry {
public:
    // `what` names the transfer in messages; `delay` is in seconds, before the second attempt.
    Retry(std::string what, int attempts, double delay)
        : what_(std::move(what)), attempts_(attempts), delay_(delay) {}

    // Waits until the next attempt. Throws Error(io) with `reason` when no attempts are left,
    // Error(interrupted).
    void wait(const Transient& reason);
    // Received data renews all attempts.
    void progressed() { failed_ = 0; }

private:
    std::string what_;
    int attempts_;
    double delay_;
    int failed_ = 0;
};

}  // namespace refold::hub
