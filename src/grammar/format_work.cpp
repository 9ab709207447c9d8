#include "grammar/format_work.h"

#include <utility>

namespace refold {
namespace {

thread_local FormatWork* current = nullptr;

constexpr size_t kBetweenChecks = 1'000'000;  // steps: some milliseconds

}  // namespace

FormatError format_takes_too_long() {
    return FormatError(
        "the format has so many states, or can be read in so many ways, that it takes too long - use smaller "
        "bounds of repetitions, and no repetitions of repetitions");
}

FormatWork::FormatWork(std::function<void()> check, size_t most_steps)
    : check_(std::move(check)), outer_(std::exchange(current, this)), most_(most_steps) {}
FormatWork::~FormatWork() { current = outer_; }

bool FormatWork::active() { return current != nullptr; }

bool FormatWork::ended() { return current != nullptr && current->ended_; }

void FormatWork::count(size_t steps) {
    if (current != nullptr) current->add(steps);
}

void FormatWork::add(size_t steps) {
    steps_ += steps;
    if (steps_ <= most_ && steps_ - checked_ < kBetweenChecks) return;
    checked_ = steps_;
    ended_ = true;  // unless nothing throws
    if (steps_ > most_) throw format_takes_too_long();
    if (check_) check_();
    ended_ = false;
}

}  // namespace refold
