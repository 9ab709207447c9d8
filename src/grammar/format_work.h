// Bounds the work for a format of the output: a text of a hundred bytes can describe an automaton of millions
// of states, and compiling it would take hours and all memory.
#pragma once

#include <cstddef>
#include <functional>

#include "grammar/grammar.h"

namespace refold {

FormatError format_takes_too_long();

// While it lives, the work of this thread for formats is counted in steps: one for each byte that is kept,
// and for each short operation, such as one on an edge of an automaton. The count does not depend on the
// machine or its load, so a format is always refused or never. Within another one, it counts for itself.
class FormatWork {
public:
    // Some ten seconds of work on today's machines, and below 2 GiB of memory. The largest schemas that
    // people use need a quarter of it with a vocabulary of 50,000 tokens.
    static constexpr size_t kMostSteps = 2'000'000'000;

    // `check` is called now and then, and may throw to end the work.
    explicit FormatWork(std::function<void()> check = {}, size_t most_steps = kMostSteps);
    ~FormatWork();
    FormatWork(const FormatWork&) = delete;
    FormatWork& operator=(const FormatWork&) = delete;

    // Whether one counts on this thread.
    static bool active();
    // Counts steps on this thread if one does. Throws FormatError when there are too many.
    static void count(size_t steps);
    // Whether count() has thrown on this thread: the error is not one of the format.
    static bool ended();

private:
    void add(size_t steps);

    const std::function<void()> check_;
    FormatWork* const outer_;
    const size_t most_;
    size_t steps_ = 0, checked_ = 0;
    bool ended_ = false;
};

}  // namespace refold
