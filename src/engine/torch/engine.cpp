// The engine in the library that plugin.h describes.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "core/error.h"
#include "engine/single_sequence_engine.h"
#include "engine/torch/cache.h"
#include "engine/torch/device.h"
#include "engine/torch/found_device.h"
#include "engine/torch/linalg.h"
#include "engine/torch/ops.h"
#include "engine/torch/plugin.h"
#include "engine/torch/translated.h"
#include "engine/torch/weights.h"

namespace refold {
namespace {

Model only_embeddings(const Model& model) {
    Model out = model;
    for (Slots& slots : out.topology.layers) slots.clear();
    out.topology.sources.clear();
    std::erase_if(out.topology.globals,
                  [](const auto& entry) { return properties(entry.first).module != SlotModule::embedding; });
    return out;
}

class TorchEngine : public SingleSequenceEngine {
public:
    TorchEngine(const Model& model, const EngineOptions& options, const Capabilities& capabilities)
        : SingleSequenceEngine(model.config, capabilities),
          config_(model.config),
          range_(options.range),
          observer_(options.observer),
          embedding_(range_ && range_->first == 0 ? std::optional(only_embeddings(model)) : std::nullopt),
          weights_(model, at::TensorOptions(at::kFloat).device(device_of(options.device)), false,
                   options.factored, range_),
          cache_(config_, weights_.n_layer(), options.context, weights_.device()) {}

    StepOutput step(const StepInput& input) override {
        if (input.rows.empty()) return {};
        return translated([&] {
            ForwardInput forward = begin(input);
            if (!config_.causal || range_) forward.outputs = forward.count();
            const ForwardResult<at::Tensor> result = run(forward);
            commit(forward);
            StepOutput out;
            if (observer_ && observer_->only_taps) return out;
            if (!asking().empty()) out.logits = view(logits_, asked(*result.logits, forward));
            if (!config_.causal || range_) out.hidden = view(hidden_, result.hidden);
            if (result.pooled) out.pooled = view(pooled_, *result.pooled);
            if (result.score) out.score = view(score_, *result.score);
            return out;
        });
    }

    // Activations are allocated as needed. Counted is the largest one of a step, a layer's attention scores.
    EngineMemory memory() const override { return {weights_.bytes(), cache_.bytes(), compute_bytes_}; }

private:
    ForwardResult<at::Tensor> run(const ForwardInput& input) {
        const c10::InferenceMode without_gradients;
        at::set_num_threads(capabilities().threads);
        const int64_t tokens = input.count();
        const int64_t scores = config_.n_head * tokens * (config_.n_prefix + input.past + tokens);
        compute_bytes_ = std::max(compute_bytes_, static_cast<uint64_t>(scores) * sizeof(float));
        TorchStep step = torch_step(input, weights_.device());
        step.observer = observer_.get();
        if (range_ && !step.residual.defined()) step.residual = embeddings(input);
        try {
            return torch_forward(config_, weights_, step, config_.causal ? &cache_ : nullptr, range_);
        } catch (const AllSeen&) {
            return {};
        }
    }

    // On the CPU, because the table can be as large as several layers.
    at::Tensor embeddings(const ForwardInput& input) {
        if (!tables_) tables_.emplace(*embedding_, at::kFloat, false);
        return torch_forward(config_, *tables_, torch_step(input, at::kCPU), nullptr, LayerRange{})
            .hidden.to(weights_.device());
    }

    // Of the logits of the last ForwardInput::outputs rows those that were asked for.
    at::Tensor asked(const at::Tensor& logits, const ForwardInput& input) const {
        const std::span<const int32_t> rows = asking();
        if (static_cast<int64_t>(rows.size()) == input.outputs) return logits;
        const c10::InferenceMode without_gradients;
        std::vector<int64_t> outputs(rows.begin(), rows.end());
        for (int64_t& row : outputs) row -= input.count() - input.outputs;
        const at::Tensor index =
            at::from_blob(outputs.data(), {static_cast<int64_t>(outputs.size())}, at::kLong);
        return at::index_select(logits, 0, index.to(logits.device()));
    }

    // Of a copy in the CPU's memory, which `kept` holds.
    static std::span<const float> view(at::Tensor& kept, const at::Tensor& x) {
        kept = x.cpu().contiguous();
        return {kept.data_ptr<float>(), static_cast<size_t>(kept.numel())};
    }

    const ModelConfig config_;
    const std::optional<LayerRange> range_;
    const std::shared_ptr<const Observer> observer_;
    const std::optional<Model> embedding_;  // of a range that can begin with tokens
    std::optional<TorchWeights> tables_;    // of embedding_, once tokens come
    TorchWeights weights_;
    TorchCache cache_;
    at::Tensor logits_, hidden_, pooled_, score_;
    uint64_t compute_bytes_ = 0;
};

}  // namespace
}  // namespace refold

extern "C" {
[[gnu::visibility("default")]] refold::torch_plugin::Version refold_torch_version;
[[gnu::visibility("default")]] refold::torch_plugin::Make refold_torch_make_engine;
[[gnu::visibility("default")]] refold::FindDeviceFunction refold_torch_find_device;
}

const char* refold_torch_version() { return REFOLD_VERSION; }

refold::Engine* refold_torch_make_engine(const refold::Model& model, const refold::EngineOptions& options,
                                         const refold::Capabilities& capabilities) {
    return refold::translated([&]() -> refold::Engine* {
        const c10::InferenceMode without_gradients;
        refold::full_precision();
        return new refold::TorchEngine(model, options, capabilities);
    });
}

void refold_torch_find_device(const refold::DeviceRequest& request, refold::FoundDevice& result) {
    refold::translated([&] {
        const at::Device device = refold::device_of(request.name, request.local_rank);
        result.name = device.str();
        if (!device.is_cpu()) result.linalg = refold::torch_linalg(device);
    });
}
