#include "engine/batch.h"

#include <algorithm>
#include <limits>
#include <map>

#include "core/error.h"
#include "engine/backend.h"
#include "engine/ggml/kv_pool.h"
#include "engine/ggml/step_graphs.h"

namespace refold {
namespace {

// Probabilities that are handed on have room for so many rows more than needed, so a graph lives for as many
// tokens.
constexpr int64_t kCacheStep = 256;
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
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / 2;
    if (o.kv_tokens > kMost)
        fail(ErrorCode::usage, "batch", "KV tokens must be at most {}, got {}", kMost, o.kv_tokens);
    o.kv_tokens = std::max(o.kv_tokens, config.n_prefix + 1);
    if (o.by_depth && model.topology.loops > 1) refuse("not loop by loop");
    return o;
}

// All positions in one stage.
class GgmlBatchEngine : public BatchEngine {
public:
    GgmlBatchEngine(const Model& model, const BatchOptions& options)
        : options_(options),
          network_{model.config, model.topology, {}, {}, {}},
          lends_(lends_probabilities(model.topology)),
          pool_(make_threadpool(options.engine.threads)),
          weights_(model, options.engine),
          kv_(model, options.kv_tokens,
              options.engine.f32 || options.engine.kv == KvType::f32 ? GGML_TYPE_F32 : GGML_TYPE_F16),
          workspace_(model.config, model.config.n_prefix + options.engine.context, options.engine.threads),
          graphs_(network_, weights_, kv_.cache(), workspace_) {}

    std::optional<int32_t> open(int64_t tokens) override {
        const int64_t most = std::min(context(), kv_.rows() - prefix());
        if (tokens < 1 || tokens > most)
            fail(ErrorCode::usage, "batch", "a sequence has 1 to {} tokens, got {}", most, tokens);
        return kv_.open(tokens);
    }

    void close(int32_t sequence) override { kv_.close(sequence); }

    void truncate(int32_t sequence, int64_t length) override {
        check_length(sequence, length);
        kv_.at(sequence).length = length;
    }

    void copy(int32_t from, int32_t to, int64_t tokens) override {
        check_length(from, tokens);
        if (kv_.at(to).length > 0 || tokens > kv_.at(to).rows - prefix()) {
            fail(ErrorCode::internal, "batch", "no room for {} tokens in sequence {}, which has {} of {}",
                 tokens, to, kv_.at(to).length, kv_.at(to).rows - prefix());
        }
        kv_.copy(from, to, tokens);
    }

    void share(int32_t, int64_t, int32_t) override {
        fail(ErrorCode::internal, "batch", "there is one stage");
    }

    std::span<const float> step(std::span<const BatchRow> rows) override {
        if (rows.empty()) return {};
        check(rows);
        gather(rows);
        const bool wanted = !rows_.outputs.empty();
        // A graph has a result.
        if (!wanted) rows_.outputs.push_back(static_cast<int32_t>(rows.size() - 1));
        StepGraph& graph = graphs_.of({.tokens = static_cast<int64_t>(rows.size()),
                                       .cached = kv_.cached(),
                                       .longest = longest_of_step(),
                                       .outputs = static_cast<int64_t>(rows_.outputs.size())});
        graph.compute({.tokens = tokens_, .positions = positions_, .token_types = {}, .mask = {}}, rows_,
                      weights_, pool_.get());
        for (const BatchRow& row : rows) ++kv_.at(row.sequence).length;
        return wanted ? graph.logits() : std::span<const float>();
    }

    int32_t stages() const override { return 1; }
    int64_t max_rows() const override { return options_.engine.chunk; }
    int64_t context() const override { return options_.engine.context; }
    int64_t kv_tokens() const override { return kv_.rows(); }
    int64_t kv_tokens_used() const override { return kv_.used(); }
    int64_t n_vocab() const override { return network_.config.n_vocab; }
    int threads() const override { return options_.engine.threads; }
    EngineMemory memory() const override {
        return {weights_.bytes(), kv_.cache().bytes(),
                graphs_.compute_bytes() + workspace_.bytes() + weights_.scratch_bytes()};
    }
    void pause() override { ggml_threadpool_pause(pool_.get()); }

private:
    static bool lends_probabilities(const Topology& topology) {
        for (size_t p = 0; p < topology.positions.size(); ++p)
            if (topology.lends_probabilities(p)) return true;
        return false;
    }

    int64_t prefix() const { return network_.config.n_prefix; }

    void check_length(int32_t sequence, int64_t length) {
        if (length < 0 || length > kv_.at(sequence).length)
            fail(ErrorCode::internal, "batch", "sequence {} has {} tokens, not {}", sequence,
                 kv_.at(sequence).length, length);
    }

    void check(std::span<const BatchRow> rows) {
        if (static_cast<int64_t>(rows.size()) > max_rows())
            fail(ErrorCode::internal, "batch", "a step has at most {} rows, got {}", max_rows(), rows.size());
        next_.clear();
        for (const BatchRow& row : rows) {
            if (row.token < 0 || row.token >= n_vocab())
                fail(ErrorCode::input, "batch", "token id {} is not in the vocabulary of {}", row.token,
                     n_vocab());
            const KvPool::Sequence& sequence = kv_.at(row.sequence);
            const auto [next, first] = next_.try_emplace(row.sequence, sequence.length);
            if (row.stage != 0 || row.work != BatchRow::Work::run || row.position != next->second ||
                row.position >= sequence.rows - prefix()) {
                fail(ErrorCode::internal, "batch",
                     "token {} of sequence {}, which has {} of {}, cannot run at stage {}", row.position,
                     row.sequence, next->second, sequence.rows - prefix(), row.stage);
            }
            ++next->second;
        }
    }

    void gather(std::span<const BatchRow> rows) {
        tokens_.clear();
        positions_.clear();
        rows_.all.clear();
        rows_.outputs.clear();
        for (const BatchRow& row : rows) {
            if (row.logits) rows_.outputs.push_back(static_cast<int32_t>(tokens_.size()));
            tokens_.push_back(row.token);
            positions_.push_back(static_cast<int32_t>(row.position));
            const int64_t first = kv_.at(row.sequence).first;
            rows_.all.push_back(
                {static_cast<int32_t>(first), static_cast<int32_t>(first + prefix() + row.position)});
        }
    }

    // Probabilities alone need to know.
    int64_t longest_of_step() const {
        if (!lends_) return 0;
        int32_t longest = 0;
        for (const CacheRow& row : rows_.all) longest = std::max(longest, row.own - row.first + 1);
        return (longest + kCacheStep - 1) / kCacheStep * kCacheStep;
    }

    BatchOptions options_;
    Network network_;
    bool lends_;
    ThreadpoolPtr pool_;
    Weights weights_;
    KvPool kv_;
    StepWorkspace workspace_;
    StepGraphs graphs_;
    std::map<int32_t, int64_t> next_;  // token by sequence, while rows are checked
    // Of a step.
    std::vector<int32_t> tokens_, positions_;
    StepRows rows_;
};

}  // namespace

std::unique_ptr<BatchEngine> make_batch_engine(const Model& model, const BatchOptions& options) {
    return std::make_unique<GgmlBatchEngine>(model, checked(options, model));
}

}  // namespace refold
