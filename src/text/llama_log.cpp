#include "text/llama_log.h"

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <vector>

#include "io/ggml_cpu.h"
#include "io/ggml_log.h"

namespace refold {

void init_llama() {
    static std::once_flag once;
    std::call_once(once, [] {
        capture_ggml_log();
        // libllama has a log of its own: redirect it to ggml's.
        ggml_log_callback callback = nullptr;
        void* user = nullptr;
        ggml_log_get(&callback, &user);
        llama_log_set(callback, user);
        // Before libllama looks for backends in folders of its own, the working directory among them.
        load_ggml_cpu();
        llama_backend_init();
    });
}

llama_model* open_llama_model(const std::string& path, bool vocabulary_only,
                              std::span<ggml_backend_device* const> devices, int64_t gpu_layers) {
    init_llama();
    clear_ggml_errors();
    std::vector<ggml_backend_dev_t> all(devices.begin(), devices.end());
    all.push_back(nullptr);
    llama_model_params params = llama_model_default_params();
    params.devices = all.data();
    constexpr int64_t kAll = std::numeric_limits<int32_t>::max();
    params.n_gpu_layers = static_cast<int32_t>(devices.empty()  ? 0
                                               : gpu_layers < 0 ? kAll
                                                                : std::min(gpu_layers, kAll));
    params.load_mode = LLAMA_LOAD_MODE_MMAP;
    params.vocab_only = vocabulary_only;
    return llama_model_load_from_file(path.c_str(), params);
}

}  // namespace refold
