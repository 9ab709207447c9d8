#include "engine/ggml/thread_choice.h"

#include <algorithm>
#include <utility>

namespace refold {

int64_t ThreadChoice::window() const {
    switch (state_) {
        case State::all: return windows_.all;
        case State::fewer: return windows_.fewer;
        default: return windows_.trial;
    }
}

void ThreadChoice::go(State state) {
    state_ = state;
    now_ = state == State::all || state == State::trying_all ? most_ : most_ - 1;
    if (state == State::all) until_trial_ = kWindowsToTrial;
}

void ThreadChoice::decide(double mean) {
    switch (state_) {
        case State::all:
            if (mean > kSlow * usual_ || --until_trial_ == 0) go(State::trying_fewer);
            return;
        case State::trying_fewer:
            if (mean < kBetter * before_) return go(State::fewer);
            usual_ = before_;  // if it is slow, it is for another reason
            return go(State::all);
        case State::fewer: return go(State::trying_all);
        case State::trying_all: return go(mean < kBetter * before_ ? State::all : State::fewer);
    }
}

void ThreadChoice::took(double seconds) {
    if (most_ == 1 || !std::exchange(begun_, true)) return;
    // The context grows, so the usual duration does.
    if (now_ == most_) usual_ = usual_ == 0 ? seconds : std::min(seconds, usual_ * 1.002);
    total_ += seconds;
    const bool trial = state_ == State::trying_fewer || state_ == State::trying_all;
    if (++steps_ < window() && !(trial && seconds > kHopeless * before_)) return;
    const double mean = total_ / static_cast<double>(steps_);
    decide(mean);
    before_ = mean;
    steps_ = 0;
    total_ = 0;
}

}  // namespace refold
