// Bounds for the steps of a tokenizer.json. Any number of steps can be written there, and each can make a
// text longer, so that a few of them would take all memory.
#pragma once

#include <cstddef>
#include <string>

#include "vocab/json_view.h"

namespace refold {

constexpr size_t kMostSteps = 64;
constexpr size_t kLongestInsertion = 256;  // bytes of a text that a step inserts

// Throws Error(unsupported) when there are more than kMostSteps. `json` is the step that was added last.
void check_steps(size_t steps, const JsonView& json);
// The text of a field. Throws Error(input) when it is longer than kLongestInsertion.
std::string insertion(const JsonView& field);

// How long the results of all steps may get for a text of `size` bytes. Unicode's normal forms alone make
// some texts 11 times as long.
constexpr size_t longest_result(size_t size) { return 64 * size + 1024; }
// Throws Error(unsupported) when a text that steps have made is longer.
void check_growth(size_t size, size_t longest);

}  // namespace refold
