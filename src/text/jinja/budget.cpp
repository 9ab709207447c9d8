#include "text/jinja/budget.h"

#include <fmt/format.h>

#include "text/jinja/value.h"

namespace refold::jinja {
namespace {

struct State {
    uint64_t repetitions = 0, steps = 0;
    size_t memory = 0;
    const char* stack = nullptr;  // null: nothing is rendered, and nothing is bounded
};
thread_local State state;

// Not the address of a variable: sanitizers keep those elsewhere.
const char* stack_here() { return static_cast<const char*>(__builtin_frame_address(0)); }

}  // namespace

Rendering::Rendering() { state = {.stack = stack_here()}; }
Rendering::~Rendering() { state = {}; }

void count_repetition() {
    if (++state.repetitions > kMostRepetitions)
        throw TemplateError("it repeats loops and macros more than 500,000 times");
}

void count_steps(uint64_t steps) {
    if (state.stack != nullptr && (state.steps += steps) > kMostSteps)
        throw TemplateError("it takes too many steps");
}

void check_text(uint64_t bytes) {
    if (bytes > kMostText)
        throw TemplateError(fmt::format("it makes a text of more than {} MiB", kMostText >> 20));
    check_memory(bytes);
}

void check_memory(uint64_t bytes) {
    constexpr uint64_t kBytesOfAStep = 256;
    if (state.stack == nullptr) return;
    if (bytes > kMostMemory || state.memory + bytes > kMostMemory)
        throw TemplateError(fmt::format("its values take more than {} MiB of memory", kMostMemory >> 20));
    count_steps(bytes / kBytesOfAStep);
}

void add_memory(size_t bytes) noexcept { state.memory += bytes; }
void remove_memory(size_t bytes) noexcept { state.memory -= bytes < state.memory ? bytes : state.memory; }

void check_stack() {
    if (state.stack != nullptr && state.stack - stack_here() > kMostStack)
        throw TemplateError("macros, loops or expressions call each other too deeply");
}

}  // namespace refold::jinja
