#include "engine/single_sequence_engine.h"

#include <numeric>

#include "core/error.h"
#include "core/round_up.h"
#include "engine/checked_options.h"
#include "engine/engines.h"
#include "engine/ggml/step_graphs.h"

namespace refold {
namespace {

// Attention reads the cache in multiples of this many rows, so a graph lasts for as many tokens.
constexpr int64_t kCacheStep = 256;

// The model without the layers outside the range, and without the embeddings where it does not begin with
// them.
Model restricted(const Model& model, const std::optional<LayerRange>& range) {
    if (!range) return model;
    Model out = model;
    Topology& topology = out.topology;
    for (size_t p = 0; p < topology.layers.size(); ++p) {
        if (range->contains(p)) continue;
        topology.layers[p].clear();
        topology.sources.erase(p);
    }
    std::erase_if(topology.globals, [&](const auto& entry) {
        const bool embedding =
            is_table(entry.first) || entry.first == Slot::embd_norm || entry.first == Slot::embd_norm_bias;
        return properties(entry.first).kind != SlotKind::rope_factors && !(embedding && range->first == 0);
    });
    out.config.norm_head = false;
    return out;
}

class GgmlSingleSequenceEngine : public SingleSequenceEngine {
public:
    // `model` has the layers of the range only.
    GgmlSingleSequenceEngine(const Model& model, const EngineOptions& options,
                             const Capabilities& capabilities)
        : SingleSequenceEngine(model.config, capabilities),
          network_{model.config, model.topology, options.range, options.observer,
                   EvictionPlan(model, options.eviction, options.context)},
          threads_(options.threads),
          device_(make_device_run(model, options)),
          weights_(model, options, device_.get()),
          kept_(network_.eviction, model),
          cache_(model, cache_lengths(options.context), cache_type(options), device_.get()),
          workspace_(model.config, cache_length(options.context), options.threads, device_.get()),
          graphs_(network_, weights_, cache_, workspace_) {}

    StepOutput step(const StepInput& input) override {
        if (input.rows.empty()) return {};
        const ForwardInput forward = begin(input);
        choose_outputs(forward);
        const StepGraph& graph = run(forward);
        commit(forward);
        StepOutput result;
        if (!asking().empty()) result.logits = asked(graph.logits());
        if (all_outputs()) result.hidden = graph.hidden();
        result.pooled = graph.pooled();
        result.score = graph.score();
        return result;
    }

    EngineMemory memory() const override {
        return {weights_.bytes(), cache_.bytes(), workspace_.bytes() + graphs_.bytes() + kept_.bytes(),
                weights_.shared_bytes()};
    }
    std::shared_ptr<const ResidentWeights> resident_weights() const override {
        return device_ ? nullptr : weights_.resident();
    }

    void pause() override { threads_.sleep(); }

private:
    // Rows of the cache for so many tokens.
    int64_t cache_length(int64_t tokens) const {
        return round_up(network_.config.n_prefix + tokens, kCacheStep);
    }

    // By layer. Caches with eviction have exactly the budget's rows.
    std::vector<int64_t> cache_lengths(int64_t context) const {
        std::vector<int64_t> lengths(network_.topology.layers.size(), cache_length(context));
        for (size_t p = 0; p < lengths.size(); ++p)
            if (network_.eviction.at(p)) lengths[p] = network_.eviction.rows;
        return lengths;
    }

    // Rows of a cache with eviction that attention reads.
    int64_t kept_length(int64_t rows) const {
        return std::min(round_up(rows, kCacheStep), network_.eviction.rows);
    }

    // Ranges and encoders give a result for every token.
    bool all_outputs() const { return network_.range || !network_.config.causal; }

    // A graph has at least one output. Observers are shown a contiguous run of tokens.
    void choose_outputs(const ForwardInput& input) {
        const auto count = static_cast<int32_t>(input.count());
        if (!asking().empty() && !all_outputs() && network_.observer == nullptr) {
            rows_.outputs.assign(asking().begin(), asking().end());
            return;
        }
        const int32_t outputs = all_outputs() ? count : static_cast<int32_t>(input.outputs);
        rows_.outputs.resize(static_cast<size_t>(outputs));
        std::iota(rows_.outputs.begin(), rows_.outputs.end(), count - outputs);
    }

    // Of the outputs' logits those that were asked for.
    std::span<const float> asked(std::span<const float> logits) {
        if (asking().size() == rows_.outputs.size()) return logits;
        const auto width = static_cast<size_t>(network_.config.n_vocab);
        logits_.clear();
        for (const int32_t row : asking()) {
            const auto output = static_cast<size_t>(row - rows_.outputs.front());
            const auto values = logits.subspan(output * width, width);
            logits_.insert(logits_.end(), values.begin(), values.end());
        }
        return logits_;
    }

    const StepGraph& run(const ForwardInput& input) {
        const int64_t count = input.count();
        const bool stretched = network_.config.rope.stretches(input.sequence_length);
        if (input.past == 0) kept_.clear();
        kept_.make_room(count, cache_.layers);
        const int64_t cached = cache_length(input.past + count);
        StepGraph& graph = graphs_.of({count, cached, cached, kept_length(kept_.used() + count),
                                       static_cast<int64_t>(rows_.outputs.size()),
                                       stretched ? input.sequence_length : 0, !input.residual.empty()});
        fill_cache_rows(input);
        graph.compute(input, rows_, weights_, threads_);
        for (const auto& [layer, sums] : graph.scores())
            kept_.add(layer, graph.result(sums), sums->ne[0], count);
        kept_.append(count);
        return graph;
    }

    // The sequence's rows of the cache lie in the order of its tokens.
    void fill_cache_rows(const ForwardInput& input) {
        const auto fill = [&](std::vector<CacheRow>& rows, int64_t first) {
            rows.resize(static_cast<size_t>(input.count()));
            for (CacheRow& row : rows) row = {0, static_cast<int32_t>(first++)};
        };
        fill(rows_.all, network_.config.n_prefix + input.past);
        if (network_.eviction.rows > 0) fill(rows_.kept, kept_.used());
    }

    Network network_;
    EngineThreads threads_;
    std::unique_ptr<DeviceRun> device_;  // null: the CPU
    Weights weights_;
    KeptRows kept_;
    KvCache cache_;
    StepWorkspace workspace_;
    StepRows rows_;
    StepGraphs graphs_;
    std::vector<float> logits_;  // picked from the outputs' where these are more
};

}  // namespace

std::unique_ptr<Engine> make_ggml_single_sequence_engine(const Model& model, const EngineOptions& options) {
    return std::make_unique<GgmlSingleSequenceEngine>(as_placed(restricted(model, options.range), options),
                                                      options, capabilities_of(model, options));
}

}  // namespace refold
