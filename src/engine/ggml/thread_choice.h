// How many threads compute a step of few tokens when other processes use the machine as well.
#pragma once

#include <cstdint>

namespace refold {

// The threads of a step wait for each other at every operation. If another process has one of the cores, all
// wait for the thread that has to share it, and fewer threads are faster. So when steps take longer than
// usual, some are tried with one thread fewer; if that is faster it stays, and now and then all threads are
// tried again. Results do not depend on the number of threads.
class ThreadChoice {
public:
    explicit ThreadChoice(int most) : most_(most), now_(most) {}

    // For the next step.
    int threads() const { return now_; }
    // What that step took, in seconds. Steps that are compared must be about equally long.
    void took(double seconds);

private:
    enum class State { normal, trying_fewer, fewer, trying_all };
    void go(State state);
    int64_t window() const;

    static constexpr double kSlow = 1.3;     // times the usual duration: something is in the way
    static constexpr double kBetter = 0.93;  // times the other duration: worth a change

    int most_, now_;
    State state_ = State::normal;
    int64_t steps_ = 0;  // of this window, and their total duration
    double total_ = 0;
    double before_ = 0;  // mean duration in the window before
    double usual_ = 0;   // shortest duration with all threads, rising slowly; 0: none yet
};

}  // namespace refold
