#include "engine/ggml/thread_choice.h"

#include <algorithm>

namespace refold {

// Steps from one decision to the next.
int64_t ThreadChoice::window() const {
    switch (state_) {
        case State::normal: return 12;
        case State::fewer: return 64;
        default: return 6;
    }
}

void ThreadChoice::go(State state) {
    state_ = state;
    now_ = state == State::normal || state == State::trying_all ? most_ : most_ - 1;
}

void ThreadChoice::took(double seconds) {
    if (most_ == 1) return;
    // The context grows, so the usual duration does.
    if (now_ == most_) usual_ = usual_ == 0 ? seconds : std::min(seconds, usual_ * 1.002);
    total_ += seconds;
    if (++steps_ < window()) return;
    const double mean = total_ / static_cast<double>(steps_);
    steps_ = 0;
    total_ = 0;
    switch (state_) {
        case State::normal:
            if (mean > kSlow * usual_) go(State::trying_fewer);
            break;
        case State::trying_fewer:
            if (mean < kBetter * before_) {
                go(State::fewer);
            } else {
                usual_ = before_;  // it is slower for another reason
                go(State::normal);
            }
            break;
        case State::fewer: go(State::trying_all); break;
        case State::trying_all: go(mean < kBetter * before_ ? State::normal : State::fewer); break;
    }
    before_ = mean;
}

}  // namespace refold
