#include "engine/backend.h"

#include <numeric>

#include "core/error.h"
#include "engine/ggml/graph.h"

namespace refold {
namespace {

// Attention reads the cache in steps of this many rows, so a graph lives for as many tokens.
constexpr int64_t kCacheStep = 256;

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// The model with nothing but a range of positions and what they and their embeddings read.
Model within(const Model& model, const std::optional<PositionRange>& range) {
    if (!range) return model;
    Model out = model;
    Topology& topology = out.topology;
    for (size_t p = 0; p < topology.positions.size(); ++p) {
        if (!range->contains(p)) {
            topology.positions[p].clear();
            topology.sources.erase(p);
            continue;
        }
        const AttentionSource& source = topology.source(p);
        if (!source.own() && !range->contains(source.from(p)))
            fail(ErrorCode::internal, "engine", "position {} without the source of its attention", p);
    }
    std::erase_if(topology.globals, [&](const auto& entry) {
        const bool embedding =
            is_table(entry.first) || entry.first == Slot::embd_norm || entry.first == Slot::embd_norm_bias;
        return entry.first != Slot::rope_freqs && !(embedding && range->first == 0);
    });
    out.config.norm_head = false;
    return out;
}

class GgmlBackend : public Backend {
public:
    GgmlBackend(const Model& model, const EngineOptions& options)
        : network_{model.config, model.topology, options.range, options.observer,
                   EvictionPlan(model, options.eviction, options.context)},
          pool_(make_threadpool(options.threads)),
          weights_(model, options),
          kept_(network_.eviction, model),
          cache_(model, cache_lengths(options.context),
                 options.f32 || options.kv == KvType::f32 ? GGML_TYPE_F32 : GGML_TYPE_F16),
          workspace_(model.config, cache_length(options.context), options.threads),
          decode_(network_, workspace_),
          prefill_(network_, workspace_) {}

    std::span<const float> step(const StepInput& input) override { return run(input).logits(); }

    std::span<const float> range_step(const StepInput& input) override { return run(input).hidden(); }

    Encoding encode(const StepInput& input) override {
        const StepGraph& graph = run(input);
        const auto copy = [](std::span<const float> values) {
            return std::vector<float>(values.begin(), values.end());
        };
        return {copy(graph.hidden()), copy(graph.logits()), copy(graph.pooled())};
    }

    EngineMemory memory() const override {
        return {weights_.bytes(), cache_.bytes(),
                workspace_.bytes() + weights_.scratch_bytes() + kept_.bytes()};
    }

    void pause() override { ggml_threadpool_pause(pool_.get()); }

private:
    // Rows of the cache for so many tokens.
    int64_t cache_length(int64_t tokens) const {
        return round_up(network_.config.n_prefix + tokens, kCacheStep);
    }

    // By position; caches that evict have exactly the budget's rows.
    std::vector<int64_t> cache_lengths(int64_t context) const {
        std::vector<int64_t> lengths(network_.topology.positions.size(), cache_length(context));
        for (size_t p = 0; p < lengths.size(); ++p)
            if (network_.eviction.at(p)) lengths[p] = network_.eviction.rows;
        return lengths;
    }

    // Rows that attention reads of caches that evict.
    int64_t kept_length(int64_t rows) const {
        return std::min(round_up(rows, kCacheStep), network_.eviction.rows);
    }

    const StepGraph& run(const StepInput& input) {
        const int64_t count = input.count();
        StepGraph& graph = count == 1 ? decode_ : prefill_;
        const Rope& rope = network_.config.rope;
        const bool stretched = rope.base_for(input.sequence_length) != rope.base;
        if (input.past == 0) kept_.clear();
        kept_.make_room(count, cache_.positions);
        const int64_t cached = cache_length(input.past + count);
        graph.prepare(weights_, cache_,
                      {count, cached, cached, kept_length(kept_.used() + count), input.outputs,
                       stretched ? input.sequence_length : 0, !input.residual.empty()});
        fill_rows(input);
        graph.compute(input, rows_, weights_, pool_.get());
        for (const auto& [position, sums] : graph.scores())
            kept_.add(position, StepGraph::floats(sums), sums->ne[0], count);
        kept_.append(count);
        return graph;
    }

    // One sequence whose rows follow one another; the last tokens' results are wanted.
    void fill_rows(const StepInput& input) {
        const auto follow = [&](std::vector<CacheRow>& rows, int64_t first) {
            rows.resize(static_cast<size_t>(input.count()));
            for (CacheRow& row : rows) row = {0, static_cast<int32_t>(first++)};
        };
        follow(rows_.all, network_.config.n_prefix + input.past);
        if (network_.eviction.rows > 0) follow(rows_.kept, kept_.used());
        rows_.outputs.resize(static_cast<size_t>(input.outputs));
        std::iota(rows_.outputs.begin(), rows_.outputs.end(),
                  static_cast<int32_t>(input.count() - input.outputs));
    }

    Network network_;
    ThreadpoolPtr pool_;
    Weights weights_;
    KeptRows kept_;
    KvCache cache_;
    StepWorkspace workspace_;
    StepRows rows_;
    StepGraph decode_, prefill_;
};

}  // namespace

std::unique_ptr<Backend> make_ggml_backend(const Model& model, const EngineOptions& options) {
    return std::make_unique<GgmlBackend>(within(model, options.range), options);
}

}  // namespace refold
