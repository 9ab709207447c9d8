// Failures of libllama as errors of refold. Its asserts would end the process: while a guard exists, they
// throw on its thread instead. That is safe where libllama changes nothing that is used later: while it loads
// a vocabulary, which is freed then, and while it reads one that is loaded.
#pragma once

#include <exception>
#include <new>

#include "core/error.h"

namespace refold {

class LlamaGuard {
public:
    LlamaGuard();
    ~LlamaGuard();
    LlamaGuard(const LlamaGuard&) = delete;
    LlamaGuard& operator=(const LlamaGuard&) = delete;
};

// Throws Error(unsupported) where libllama fails: "libllama cannot DOING: REASON".
template <typename Call>
auto guarded(const char* doing, Call&& call) {
    const LlamaGuard guard;
    try {
        return call();
    } catch (const Error&) {
        throw;
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        fail(ErrorCode::unsupported, "tokenizer", "libllama cannot {}: {} - the vocabulary is damaged", doing,
             error.what());
    }
}

}  // namespace refold
