#include "engine/batch.h"

#include <algorithm>
#include <limits>
#include <map>

#include "core/error.h"
#include "engine/backend.h"
#include "engine/ggml/depths.h"
#include "engine/ggml/kv_pool.h"
#include "engine/ggml/step_graphs.h"

namespace refold {
namespace {

// Probabilities that are handed on have room for so many rows more than needed, so a graph lives for as many
// tokens.
constexpr int64_t kProbabilityRows = 256;
constexpr int64_t kContexts = 8;

BatchOptions checked(BatchOptions o, const Model& model) {
    const ModelConfig& config = model.config;
    const auto refuse = [](const std::string& what) {
        fail(ErrorCode::unsupported, "batch", "many sequences at once: {}", what);
    };
    if (model.shapes_only)
        fail(ErrorCode::input, "batch", "{}: no weights: only config.json was given", model.label);
    if (o.engine.kind != EngineKind::ggml) refuse("not by the torch engine - use --engine ggml");
    if (o.engine.range || o.engine.observer) refuse("neither ranges of positions nor observers");
    if (!config.causal) refuse(fmt::format("'{}' is an encoder", config.family));
    if (o.engine.eviction.active()) refuse("not with a KV cache that evicts rows - leave out --kv-policy");
    o.engine = checked_options(o.engine, config);
    if (config.rope.base_for(o.engine.context) != config.rope.base) {
        refuse(fmt::format(
            "the rotation is stretched for sequences longer than {} tokens - use a --context of at "
            "most that",
            config.rope.original_context));
    }
    if (o.kv_tokens < 0) fail(ErrorCode::usage, "batch", "KV tokens out of range: {}", o.kv_tokens);
    const int64_t longest = config.n_prefix + o.engine.context;
    if (o.kv_tokens == 0) o.kv_tokens = kContexts * longest;
    const int64_t stages = o.by_depth ? model.topology.loops : 1,
                  most = std::numeric_limits<int32_t>::max() / 2 / stages;
    if (o.kv_tokens > most)
        fail(ErrorCode::usage, "batch", "KV tokens must be at most {}, got {}", most, o.kv_tokens);
    o.kv_tokens = std::max(o.kv_tokens, config.n_prefix + 1);
    return o;
}

class GgmlBatchEngine : public BatchEngine {
public:
    // All positions in one stage; or those of a loop, with `staged`, whose block the model is then.
    GgmlBatchEngine(const Model& model, const StagedModel* staged, const BatchOptions& options)
        : options_(options),
          stages_(staged != nullptr ? static_cast<int32_t>(staged->loops) : 1),
          network_{model.config, model.topology, {}, {}, {}},
          lends_(lends_probabilities(model.topology)),
          pool_(make_threadpool(options.engine.threads)),
          weights_(model, options.engine),
          kv_(model, options.kv_tokens,
              options.engine.f32 || options.engine.kv == KvType::f32 ? GGML_TYPE_F32 : GGML_TYPE_F16,
              stages_),
          workspace_(model.config, model.config.n_prefix + options.engine.context, options.engine.threads),
          graphs_(network_, weights_, kv_.cache(), workspace_) {
        if (staged != nullptr) {
            workspace_.staged =
                std::make_unique<StagedWeights>(*staged, options.engine.f32, options.engine.threads);
        }
    }

    std::optional<int32_t> open(int64_t tokens) override {
        const int64_t most = std::min(context(), kv_.rows() - prefix());
        if (tokens < 1 || tokens > most)
            fail(ErrorCode::usage, "batch", "a sequence has 1 to {} tokens, got {}", most, tokens);
        const auto sequence = kv_.open(tokens);
        if (sequence) depths_.insert_or_assign(*sequence, Depths(stages_));
        return sequence;
    }

    void close(int32_t sequence) override {
        kv_.close(sequence);
        depths_.erase(sequence);
    }

    void truncate(int32_t sequence, int64_t length) override {
        check_length(sequence, length, kv_.at(sequence).length);
        depths_.at(sequence).truncate(length);
        kv_.at(sequence).length = length;
    }

    void copy(int32_t from, int32_t to, int64_t tokens) override {
        kv_.at(from);
        check_length(from, tokens, depths_.at(from).complete());
        if (kv_.at(to).length > 0 || tokens > kv_.at(to).rows - prefix()) {
            fail(ErrorCode::internal, "batch", "no room for {} tokens in sequence {}, which has {} of {}",
                 tokens, to, kv_.at(to).length, kv_.at(to).rows - prefix());
        }
        kv_.copy(from, to, tokens);
        depths_.at(to).assign(tokens);
    }

    void share(int32_t sequence, int64_t position, int32_t stage) override {
        kv_.at(sequence);
        if (stages_ == 1) fail(ErrorCode::internal, "batch", "there is one stage, nothing to share with");
        depths_.at(sequence).share(position, stage);
        kv_.share(sequence, position, stage - 1);
    }

    std::span<const float> step(std::span<const BatchRow> rows) override {
        if (rows.empty()) return {};
        check(rows);
        // Their tokens' keys and values need nothing of this step, but others attend to them.
        if (gather(rows, BatchRow::Work::keys_only)) compute(StepKind::loop_keys);
        std::span<const float> logits;
        if (gather(rows, BatchRow::Work::run)) {
            const bool wanted = !rows_.outputs.empty();
            // A graph has a result.
            if (!wanted && stages_ == 1) rows_.outputs.push_back(static_cast<int32_t>(tokens_.size() - 1));
            const StepGraph& graph = compute(stages_ == 1 ? StepKind::network : StepKind::loop);
            if (stages_ > 1) keep_residuals(rows, graph.hidden());
            if (wanted) logits = graph.logits();
        }
        for (const BatchRow& row : rows) {
            Depths& depths = depths_.at(row.sequence);
            depths.commit();
            kv_.at(row.sequence).length = depths.length(0);
        }
        return logits;
    }

    int32_t stages() const override { return stages_; }
    int64_t max_rows() const override { return options_.engine.chunk; }
    int64_t context() const override { return options_.engine.context; }
    int64_t kv_tokens() const override { return kv_.rows(); }
    int64_t kv_tokens_used() const override { return kv_.used(); }
    int64_t n_vocab() const override { return network_.config.n_vocab; }
    int threads() const override { return options_.engine.threads; }
    EngineMemory memory() const override {
        const uint64_t staged = workspace_.staged ? workspace_.staged->bytes() : 0;
        return {weights_.bytes() + staged, kv_.cache().bytes(),
                workspace_.bytes() + weights_.scratch_bytes()};
    }
    void pause() override { ggml_threadpool_pause(pool_.get()); }

private:
    static bool lends_probabilities(const Topology& topology) {
        for (size_t p = 0; p < topology.positions.size(); ++p)
            if (topology.lends_probabilities(p)) return true;
        return false;
    }

    int64_t prefix() const { return network_.config.n_prefix; }

    static void check_length(int32_t sequence, int64_t length, int64_t most) {
        if (length < 0 || length > most)
            fail(ErrorCode::internal, "batch", "sequence {} has {} tokens, not {}", sequence, most, length);
    }

    void check(std::span<const BatchRow> rows) {
        if (static_cast<int64_t>(rows.size()) > max_rows())
            fail(ErrorCode::internal, "batch", "a step has at most {} rows, got {}", max_rows(), rows.size());
        for (const BatchRow& row : rows) {
            kv_.at(row.sequence);
            depths_.at(row.sequence).begin();
        }
        for (const BatchRow& row : rows) {
            if (row.stage == 0 && (row.token < 0 || row.token >= n_vocab()))
                fail(ErrorCode::input, "batch", "token id {} is not in the vocabulary of {}", row.token,
                     n_vocab());
            if (row.position >= kv_.at(row.sequence).rows - prefix()) {
                fail(ErrorCode::internal, "batch", "no room for token {} of sequence {}, which has {} of {}",
                     row.position, row.sequence, kv_.at(row.sequence).length,
                     kv_.at(row.sequence).rows - prefix());
            }
            depths_.at(row.sequence).check(row);
        }
    }

    // The rows of this work, in the order of their stages; whether there are any.
    bool gather(std::span<const BatchRow> rows, BatchRow::Work work) {
        order_.clear();
        for (size_t i = 0; i < rows.size(); ++i)
            if (rows[i].work == work) order_.push_back(i);
        std::stable_sort(order_.begin(), order_.end(),
                         [&](size_t a, size_t b) { return rows[a].stage < rows[b].stage; });
        const auto width = static_cast<size_t>(network_.config.n_embd);
        tokens_.clear();
        positions_.clear();
        rows_.all.clear();
        rows_.stages.clear();
        rows_.outputs.clear();
        if (stages_ > 1) residual_.resize(order_.size() * width);
        place_.resize(rows.size());
        for (const size_t i : order_) {
            const BatchRow& row = rows[i];
            if (row.stage > 0) {
                const auto residual = depths_.at(row.sequence).residual(row.position);
                std::copy(residual.begin(), residual.end(),
                          residual_.begin() + static_cast<ptrdiff_t>(tokens_.size() * width));
            }
            place_[i] = static_cast<int32_t>(tokens_.size());
            tokens_.push_back(row.stage == 0 ? row.token : 0);
            positions_.push_back(static_cast<int32_t>(row.position));
            const int64_t first = row.stage * kv_.cached() + kv_.at(row.sequence).first;
            rows_.all.push_back(
                {static_cast<int32_t>(first), static_cast<int32_t>(first + prefix() + row.position)});
            rows_.stages.push_back(row.stage);
        }
        for (size_t i = 0; i < rows.size(); ++i)
            if (rows[i].logits && rows[i].work == work) rows_.outputs.push_back(place_[i]);
        return !order_.empty();
    }

    const StepGraph& compute(StepKind kind) {
        StepGraph& graph = graphs_.of({.tokens = static_cast<int64_t>(tokens_.size()),
                                       .cached = kv_.all_cached(),
                                       .longest = longest_of_step(),
                                       .outputs = static_cast<int64_t>(rows_.outputs.size()),
                                       .residual = kind == StepKind::loop_keys,
                                       .kind = kind});
        StepInput input{.tokens = tokens_, .positions = positions_, .token_types = {}, .mask = {}};
        if (kind != StepKind::network) input.residual = residual_;
        graph.compute(input, rows_, weights_, pool_.get());
        return graph;
    }

    // Of rows that are to go on.
    void keep_residuals(std::span<const BatchRow> rows, std::span<const float> hidden) {
        const auto width = static_cast<size_t>(network_.config.n_embd);
        for (size_t i = 0; i < order_.size(); ++i) {
            const BatchRow& row = rows[order_[i]];
            if (row.stage + 1 < stages_)
                depths_.at(row.sequence).set_residual(row.position, hidden.subspan(i * width, width));
        }
    }

    // Probabilities alone need to know.
    int64_t longest_of_step() const {
        if (!lends_) return 0;
        int32_t longest = 0;
        for (const CacheRow& row : rows_.all) longest = std::max(longest, row.own - row.first + 1);
        return (longest + kProbabilityRows - 1) / kProbabilityRows * kProbabilityRows;
    }

    BatchOptions options_;
    int32_t stages_;
    Network network_;
    bool lends_;
    ThreadpoolPtr pool_;
    Weights weights_;
    KvPool kv_;
    StepWorkspace workspace_;
    StepGraphs graphs_;
    std::map<int32_t, Depths> depths_;  // by sequence
    // Of a step, in the order that its rows are run in, but for the place of each of them in that.
    std::vector<size_t> order_;
    std::vector<int32_t> tokens_, positions_, place_;
    std::vector<float> residual_;
    StepRows rows_;
};

}  // namespace

std::unique_ptr<BatchEngine> make_batch_engine(const Model& model, const BatchOptions& options) {
    const BatchOptions complete = checked(options, model);
    if (!complete.by_depth || model.topology.loops == 1)
        return std::make_unique<GgmlBatchEngine>(model, nullptr, complete);
    const StagedModel staged = staged_model(model);
    return std::make_unique<GgmlBatchEngine>(staged.block, &staged, complete);
}

bool faster_by_depth(const Model& model) {
    if (model.topology.loops == 1) return false;
    try {
        const auto terms = staged_model(model).terms;
        return std::any_of(terms.begin(), terms.end(),
                           [](const auto& term) { return term.first.second != Slot::exit_map; });
    } catch (const Error& e) {
        if (e.code() != ErrorCode::unsupported) throw;
        return false;
    }
}

}  // namespace refold
