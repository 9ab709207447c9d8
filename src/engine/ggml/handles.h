// Owning handles for ggml's C objects.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <memory>

#include "core/spinning_threads.h"

namespace refold {

struct ThreadpoolDeleter {
    void operator()(ggml_threadpool* pool) const { ggml_threadpool_free(pool); }
};
using ThreadpoolPtr = std::unique_ptr<ggml_threadpool, ThreadpoolDeleter>;

// The threads of an engine. After their work they spin, and sleep when others of this process work.
class EngineThreads {
public:
    // Throws Error(io) when the threads cannot be started.
    explicit EngineThreads(int threads);

    // For a graph that is computed now.
    ggml_threadpool* awake() {
        spinning_.wake();
        return pool_.get();
    }
    void sleep() { ggml_threadpool_pause(pool_.get()); }

private:
    ThreadpoolPtr pool_;
    SpinningThreads spinning_;
};

// A context for tensor descriptions only; their data lies in backend buffers.
inline ggml_context_ptr make_context(size_t tensors, size_t graph_bytes = 0) {
    return ggml_context_ptr(ggml_init({tensors * ggml_tensor_overhead() + graph_bytes, nullptr, true}));
}

// Asks the kernel for huge pages for a buffer, before it is first written: weights and activations are read
// from end to end for every token.
void advise_large_pages(ggml_backend_buffer_t buffer);

}  // namespace refold
