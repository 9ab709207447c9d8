#include "engine/ggml/handles.h"

#include <sys/mman.h>

#include <cstdint>

#include "core/error.h"

namespace refold {

EngineThreads::EngineThreads(int threads) : spinning_([this] { sleep(); }) {
    ggml_cpu_init();
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    pool_.reset(ggml_threadpool_new(&params));
    if (!pool_) fail(ErrorCode::io, "engine", "cannot start {} threads", threads);
}

void advise_large_pages(ggml_backend_buffer_t buffer) {
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t kPage = 4096;
    const auto base =
        (reinterpret_cast<uintptr_t>(ggml_backend_buffer_get_base(buffer)) + kPage - 1) / kPage * kPage;
    const size_t size = ggml_backend_buffer_get_size(buffer) / kPage * kPage;
    if (size > kPage) madvise(reinterpret_cast<void*>(base), size - kPage, MADV_HUGEPAGE);
#else
    (void)buffer;
#endif
}

}  // namespace refold
