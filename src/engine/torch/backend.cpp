// What the library of the torch engine gives to the rest of refold.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "core/error.h"
#include "engine/torch/cache.h"
#include "engine/torch/device.h"
#include "engine/torch/ops.h"
#include "engine/torch/plugin.h"
#include "engine/torch/translated.h"
#include "engine/torch/weights.h"

namespace refold {
namespace {

std::vector<float> to_vector(const at::Tensor& x) {
    const at::Tensor values = x.cpu().contiguous();
    const float* data = values.data_ptr<float>();
    return {data, data + values.numel()};
}

class TorchBackend : public Backend {
public:
    TorchBackend(const Model& model, const EngineOptions& options)
        : threads_(options.threads),
          config_(model.config),
          weights_(model, at::TensorOptions(at::kFloat).device(device_of(options.device)), false,
                   options.factored),
          cache_(config_, weights_.n_positions(), options.context, weights_.device()) {}

    std::span<const float> step(const StepInput& input) override {
        return translated([&]() -> std::span<const float> {
            const auto result = run(input, &cache_);
            if (!result.logits)
                fail(ErrorCode::unsupported, "torch engine", "'{}' has no output layer", config_.family);
            logits_ = result.logits->cpu().contiguous();
            return {logits_.data_ptr<float>(), static_cast<size_t>(logits_.numel())};
        });
    }

    Encoding encode(const StepInput& input) override {
        return translated([&] {
            const auto result = run(input, nullptr);
            Encoding encoding;
            encoding.last_hidden_state = to_vector(result.hidden);
            if (result.logits) encoding.logits = to_vector(*result.logits);
            if (result.pooled) encoding.pooled = to_vector(*result.pooled);
            return encoding;
        });
    }

    std::span<const float> range_step(const StepInput&) override {
        fail(ErrorCode::unsupported, "torch engine", "ranges of positions need the ggml engine");
    }

    // Activations come and go; counted is the largest of a step, a position's attention scores.
    EngineMemory memory() const override { return {weights_.bytes(), cache_.bytes(), compute_bytes_}; }

private:
    ForwardResult<at::Tensor> run(const StepInput& input, TorchCache* cache) {
        const c10::InferenceMode without_gradients;
        at::set_num_threads(threads_);
        const auto tokens = static_cast<int64_t>(input.tokens.size());
        const int64_t scores = config_.n_head * tokens * (config_.n_prefix + input.past + tokens);
        compute_bytes_ = std::max(compute_bytes_, static_cast<uint64_t>(scores) * sizeof(float));
        return torch_forward(config_, weights_, torch_step(input, weights_.device()), cache);
    }

    int threads_;
    ModelConfig config_;
    TorchWeights weights_;
    TorchCache cache_;
    at::Tensor logits_;
    uint64_t compute_bytes_ = 0;
};

}  // namespace
}  // namespace refold

extern "C" {
[[gnu::visibility("default")]] refold::torch_plugin::Version refold_torch_version;
[[gnu::visibility("default")]] refold::torch_plugin::Make refold_torch_make_backend;
}

const char* refold_torch_version() { return REFOLD_VERSION; }

refold::Backend* refold_torch_make_backend(const refold::Model& model, const refold::EngineOptions& options) {
    return refold::translated([&] {
        const c10::InferenceMode without_gradients;
        return new refold::TorchBackend(model, options);
    });
}
