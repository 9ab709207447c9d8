#include "text/llama_guard.h"

#include <ggml.h>

#include <cstdio>
#include <mutex>
#include <stdexcept>

namespace refold {
namespace {

thread_local int t_guards = 0;

// ggml calls abort() when it returns.
void on_abort(const char* message) {
    if (t_guards > 0) throw std::runtime_error(message);
    std::fprintf(stderr, "%s\n", message);
}

}  // namespace

LlamaGuard::LlamaGuard() {
    static std::once_flag once;
    std::call_once(once, [] { ggml_set_abort_callback(on_abort); });
    ++t_guards;
}

LlamaGuard::~LlamaGuard() { --t_guards; }

}  // namespace refold
