// What one rendering may use: a model's file brings its template along, so a template may be hostile.
#pragma once

#include <cstddef>
#include <cstdint>

namespace refold::jinja {

// Bounds of one rendering. Real templates stay far below them.
constexpr uint64_t kMostRepetitions = 500'000;        // of loops and macros
constexpr uint64_t kMostSteps = 20'000'000;           // operations; 256 bytes of text count as one
constexpr size_t kMostMemory = size_t{256} << 20;     // bytes of all values at a time
constexpr size_t kMostText = size_t{32} << 20;        // bytes of one text
constexpr ptrdiff_t kMostStack = ptrdiff_t{1} << 20;  // bytes; a thread has several MiB

// The functions below apply to the rendering of this thread. They throw TemplateError beyond a bound.
void count_repetition();
void count_steps(uint64_t steps);
// Before text of that size is made.
void check_text(uint64_t bytes);
// Before a value of that size is made; counts its making as steps.
void check_memory(uint64_t bytes);
void add_memory(size_t bytes) noexcept;
void remove_memory(size_t bytes) noexcept;
void check_stack();

// One rendering begins, and ends with this object.
class Rendering {
public:
    Rendering();
    ~Rendering();
    Rendering(const Rendering&) = delete;
    Rendering& operator=(const Rendering&) = delete;
};

}  // namespace refold::jinja
