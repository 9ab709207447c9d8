#include "engine/backend.h"

#include "core/error.h"
#include "engine/ggml/graph.h"
#include "io/ggml_log.h"

namespace refold {
namespace {

// Attention reads the cache in steps of this many rows, so a graph lives for as many tokens.
constexpr int64_t kCacheStep = 256;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

ThreadpoolPtr make_pool(int threads) {
    capture_ggml_log();
    ggml_cpu_init();
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    ThreadpoolPtr pool(ggml_threadpool_new(&params));
    if (!pool) fail(ErrorCode::io, "engine", "cannot start {} threads", threads);
    return pool;
}

class GgmlBackend : public Backend {
public:
    GgmlBackend(const Model& model, const EngineOptions& options)
        : config_(model.config),
          n_positions_(model.topology.positions.size()),
          pool_(make_pool(options.threads)),
          weights_(model, options),
          cache_(model, cache_length(options.context),
                 options.f32 || options.kv == KvType::f32 ? GGML_TYPE_F32 : GGML_TYPE_F16),
          decode_(config_, cache_length(options.context), options.threads),
          prefill_(config_, cache_length(options.context), options.threads) {}

    std::span<const float> step(const StepInput& input) override { return run(input).logits(); }

    Encoding encode(const StepInput& input) override {
        const StepGraph& graph = run(input);
        const auto copy = [](std::span<const float> values) {
            return std::vector<float>(values.begin(), values.end());
        };
        return {copy(graph.hidden()), copy(graph.logits()), copy(graph.pooled())};
    }

    EngineMemory memory() const override {
        return {weights_.bytes(), cache_.bytes(),
                decode_.compute_bytes() + prefill_.compute_bytes() + weights_.scratch_bytes()};
    }

    void pause() override { ggml_threadpool_pause(pool_.get()); }

private:
    // Rows of the cache for so many tokens.
    int64_t cache_length(int64_t tokens) const { return round_up(config_.n_prefix + tokens, kCacheStep); }

    const StepGraph& run(const StepInput& input) {
        const auto count = static_cast<int64_t>(input.tokens.size());
        StepGraph& graph = count == 1 ? decode_ : prefill_;
        const bool stretched = config_.rope.base_for(input.sequence_length) != config_.rope.base;
        graph.prepare(
            config_, n_positions_, weights_, cache_,
            {count, cache_length(input.past + count), input.outputs, stretched ? input.sequence_length : 0});
        graph.compute(input, config_, weights_, pool_.get());
        return graph;
    }

    ModelConfig config_;
    size_t n_positions_;
    ThreadpoolPtr pool_;
    Weights weights_;
    KvCache cache_;
    StepGraph decode_, prefill_;
};

}  // namespace

std::unique_ptr<Backend> make_ggml_backend(const Model& model, const EngineOptions& options) {
    return std::make_unique<GgmlBackend>(model, options);
}

}  // namespace refold
