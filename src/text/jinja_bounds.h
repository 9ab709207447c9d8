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
// of the stack. A value that is set has at most 200 levels and a million parts, and as in Jinja only
// namespaces can be changed. A namespace holds no other, so no value contains itself: one that did would
// exhaust the stack when it is written, and would never be freed. Throws std::runtime_error for a block whose
// text becomes a member of a namespace.
void add_bounds(jinja::program& program);

// One rendering by this thread: its bounds begin here.
class BoundedRendering {
public:
    // Templates get a namespace() that the bounds know of, and lists that cannot be changed.
    explicit BoundedRendering(jinja::context& context);
    ~BoundedRendering();
    BoundedRendering(const BoundedRendering&) = delete;
    BoundedRendering& operator=(const BoundedRendering&) = delete;
};

}  // namespace refold
