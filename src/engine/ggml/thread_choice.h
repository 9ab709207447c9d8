// How many threads compute a step when other processes use the machine as well.
#pragma once

#include <cstdint>

namespace refold {

// The threads of a step wait for each other at every operation. If another process has one of the cores, all
// wait for the thread that has to share it, and fewer threads are faster. So some steps are tried with one
// thread fewer: at the beginning, when steps take longer than usual, and now and then. If that is faster it
// stays, and later all threads are tried again. Results do not depend on the number of threads.
class ThreadChoice {
public:
    // Steps from one decision to the next, and of a trial; decisions before the first trial.
    struct Windows {
        int64_t all, trial, fewer, first;
    };
    static constexpr Windows kShortSteps = {12, 6, 64, 1};  // of milliseconds
    static constexpr Windows kLongSteps = {2, 2, 8, 3};     // of a large part of a second

    ThreadChoice(int most, Windows windows)
        : windows_(windows), most_(most), now_(most), until_trial_(windows.first) {}

    // For the next step.
    int threads() const { return now_; }
    // What that step took, in seconds, or in seconds for each token: durations that can be compared. The
    // first one is not, as it touches weights and memory for the first time.
    void took(double seconds);

private:
    enum class State { all, trying_fewer, fewer, trying_all };
    int64_t window() const;
    void go(State state);
    void decide(double mean);

    static constexpr double kSlow = 1.3;            // times the usual duration: something is in the way
    static constexpr double kBetter = 0.93;         // times the other duration: worth a change
    static constexpr double kHopeless = 1.15;       // times the other duration: a trial ends at once
    static constexpr int64_t kWindowsToTrial = 32;  // with all threads at the usual duration

    Windows windows_;
    int most_, now_;
    State state_ = State::all;
    int64_t steps_ = 0;  // of this window, and their total duration
    double total_ = 0;
    double before_ = 0;    // mean duration in the window before
    double usual_ = 0;     // shortest duration with all threads, rising slowly; 0: none yet
    int64_t until_trial_;  // windows
    bool begun_ = false;
};

}  // namespace refold
