// What keeps a template from exhausting the stack, or from running without end: the engine has no bounds of
// its own.
#pragma once

#include <jinja/lexer.h>
#include <jinja/runtime.h>

#include <vector>

namespace refold {

// Throws std::runtime_error when brackets, blocks or operators are nested so deeply that the recursive parser
// would exhaust the stack.
void check_nesting(const std::vector<jinja::token>& tokens);

// Every repetition of a loop, a macro or a block checks the bounds, and throws std::runtime_error beyond
// 500,000 of them in one rendering, or when macros call each other so deeply that they use more than 1 MiB
// of the stack.
void add_bounds(jinja::program& program);

// Before the program runs: the bounds of this thread begin here.
void begin_bounds();

}  // namespace refold
