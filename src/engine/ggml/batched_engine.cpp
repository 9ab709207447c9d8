#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/error.h"
#include "engine/checked_options.h"
#include "engine/engines.h"
#include "engine/ggml/adapters.h"
#include "engine/ggml/kv_pool.h"
#include "engine/ggml/loop_progress.h"
#include "engine/ggml/step_graphs.h"
#include "model/token_ids.h"

namespace refold {
namespace {

// Probabilities that other layers use have room for a multiple of this many rows, so a graph lasts for as
// many tokens.
constexpr int64_t kProbabilityRows = 256;

class GgmlBatchedEngine : public Engine {
public:
    // With `loops`, steps run one loop at a time and `model` is its block.
    GgmlBatchedEngine(const Model& model, const LoopedBlock* loops, const EngineOptions& options,
                      const Capabilities& capabilities)
        : Engine(capabilities),
          loops_(capabilities.loops),
          network_{model.config, model.topology, {}, {}, {}},
          lends_(lends_probabilities(model.topology)),
          threads_(options.threads),
          device_(make_device_run(model, options, loops_)),
          weights_(model, options, device_.get()),
          kv_(model, options.kv_tokens, options.context, cache_type(options), loops_, device_.get()),
          workspace_(model.config, model.config.n_prefix + options.context, options.threads, device_.get()),
          graphs_(network_, weights_, kv_.cache(), workspace_) {
        if (device_ != nullptr) {
            workspace_.device_loops = std::make_unique<DeviceTerms>(*device_, options.f32, false);
            if (loops != nullptr) put_loops(*loops, *workspace_.device_loops);
            workspace_.device_adapters = std::make_unique<DeviceTerms>(*device_, options.f32, true);
        } else {
            if (loops != nullptr)
                workspace_.loops = std::make_unique<LoopWeights>(*loops, options.f32, options.threads);
            workspace_.adapters = std::make_unique<RowTerms>(model.config, options.threads);
        }
        adapters_ = std::make_unique<Adapters>(
            network_.config, network_.topology, loops_, options.f32,
            Adapters::Terms{workspace_.adapters.get(), workspace_.device_adapters.get()});
    }

    std::optional<int32_t> open(int64_t tokens) override {
        const int64_t most = std::min(capabilities().context, kv_.rows() - prefix());
        if (tokens < 1 || tokens > most)
            fail(ErrorCode::usage, "engine", "a sequence has 1 to {} tokens, got {}", most, tokens);
        if (static_cast<int64_t>(progress_.size()) == capabilities().sequences) return std::nullopt;
        const auto sequence = kv_.open(tokens);
        if (sequence) progress_.insert_or_assign(*sequence, LoopProgress(loops_));
        return sequence;
    }

    void close(int32_t sequence) override {
        kv_.close(sequence);
        progress_.erase(sequence);
        last_steps_.erase(sequence);
        adapters_->close(sequence);
    }

    bool resize(int32_t sequence, int64_t tokens) override {
        if (tokens < 1 || tokens < kv_.at(sequence).length)
            fail(ErrorCode::internal, "engine", "room for {} tokens in sequence {}, which has {}", tokens,
                 sequence, kv_.at(sequence).length);
        return tokens <= capabilities().context && kv_.resize(sequence, tokens);
    }

    void truncate(int32_t sequence, int64_t length) override {
        check_length(sequence, length, kv_.at(sequence).length);
        progress_.at(sequence).truncate(length);
        kv_.at(sequence).length = length;
    }

    void copy(int32_t from, int32_t to, int64_t tokens) override {
        kv_.at(from);
        check_length(from, tokens, progress_.at(from).complete());
        check_room(to, tokens);
        if (adapters_->of(from) != adapters_->of(to))
            fail(ErrorCode::internal, "engine", "sequence {} has another adapter than sequence {}", to, from);
        kv_.copy(from, to, tokens);
        progress_.at(to).assign(tokens);
    }

    uint64_t saved_bytes(int64_t tokens) const override { return kv_.saved_bytes(tokens); }

    void save_tokens(int32_t sequence, int64_t tokens,
                     const std::function<void(std::span<const std::byte>)>& write) const override {
        kv_.at(sequence);
        check_length(sequence, tokens, progress_.at(sequence).complete());
        kv_.save(sequence, tokens, write);
        if (device_) device_->check_workers();  // a lost one has given zeros
    }

    void load_tokens(int32_t sequence, int64_t tokens, std::span<const std::byte> saved) override {
        check_room(sequence, tokens);
        if (saved.size() != kv_.saved_bytes(tokens))
            fail(ErrorCode::input, "engine", "{} saved tokens have {} bytes, expected {}", tokens,
                 saved.size(), kv_.saved_bytes(tokens));
        kv_.load(sequence, tokens, saved);
        if (device_) device_->check_workers();
        progress_.at(sequence).assign(tokens);
    }

    int32_t add_adapter(const Adapter& adapter) override {
        graphs_.clear();
        return adapters_->add(adapter);
    }
    void remove_adapter(int32_t adapter) override {
        graphs_.clear();
        adapters_->remove(adapter);
    }
    void use_adapter(int32_t sequence, int32_t adapter) override {
        check_length(sequence, kv_.at(sequence).length, 0);
        adapters_->use(sequence, adapter);
    }

    void share(int32_t sequence, int64_t position, int32_t loop) override {
        kv_.at(sequence);
        if (loops_ == 1) fail(ErrorCode::internal, "engine", "there is one loop, nothing to share with");
        progress_.at(sequence).share(position, loop);
        kv_.share(sequence, position, loop - 1);
    }

    StepOutput step(const StepInput& input) override {
        const std::span<const Row> rows = input.rows;
        if (rows.empty()) return {};
        check(input);
        ++steps_;
        for (const Row& row : rows) last_steps_[row.sequence] = steps_;
        // These rows need nothing from the step, but other rows attend to their keys and values.
        if (gather(rows, Row::Work::keys_only)) compute(StepKind::loop_keys);
        StepOutput result;
        if (gather(rows, Row::Work::run)) {
            const size_t wanted = rows_.outputs.size();
            // A graph has at least one output.
            if (wanted == 0 && loops_ == 1) rows_.outputs.push_back(static_cast<int32_t>(tokens_.size() - 1));
            const StepGraph& graph = compute(loops_ == 1 ? StepKind::network : StepKind::loop);
            if (loops_ > 1) keep_residuals(rows, graph.hidden());
            if (wanted > 0)
                result.logits = graph.logits().first(wanted * static_cast<size_t>(capabilities().n_vocab));
            if (capabilities().exit_gate) result.exited = exited(rows, graph.exit_scores());
        }
        for (const Row& row : rows) {
            LoopProgress& progress = progress_.at(row.sequence);
            progress.commit();
            kv_.at(row.sequence).length = progress.length(0);
        }
        return result;
    }

    int64_t kv_tokens_used() const override { return kv_.used(); }
    EngineMemory memory() const override {
        return {weights_.bytes() + workspace_.term_bytes(), kv_.cache().bytes(),
                workspace_.bytes() + graphs_.bytes(), weights_.shared_bytes()};
    }
    std::shared_ptr<const ResidentWeights> resident_weights() const override {
        return device_ ? nullptr : weights_.resident();
    }
    void pause() override { threads_.sleep(); }

private:
    static bool lends_probabilities(const Topology& topology) {
        for (size_t p = 0; p < topology.layers.size(); ++p)
            if (topology.lends_probabilities(p)) return true;
        return false;
    }

    int64_t prefix() const { return network_.config.n_prefix; }

    static void check_length(int32_t sequence, int64_t length, int64_t most) {
        if (length < 0 || length > most)
            fail(ErrorCode::internal, "engine", "sequence {} has {} tokens, not {}", sequence, most, length);
    }

    // For the first tokens of a sequence.
    void check_room(int32_t sequence, int64_t tokens) const {
        const KvPool::Sequence& s = kv_.at(sequence);
        if (s.length > 0 || tokens > s.rows - prefix()) {
            fail(ErrorCode::internal, "engine", "no room for {} tokens in sequence {}, which has {} of {}",
                 tokens, sequence, s.length, s.rows - prefix());
        }
    }

    void check(const StepInput& input) {
        const int64_t max_rows = capabilities().max_rows, n_vocab = capabilities().n_vocab;
        if (static_cast<int64_t>(input.rows.size()) > max_rows) {
            fail(ErrorCode::internal, "engine", "a step has at most {} rows, got {}", max_rows,
                 input.rows.size());
        }
        if (!input.residual.empty() || !input.token_types.empty() || !input.mask.empty())
            fail(ErrorCode::internal, "engine", "steps of several sequences take token ids only");
        for (const Row& row : input.rows) {
            kv_.at(row.sequence);
            progress_.at(row.sequence).begin();
        }
        for (const Row& row : input.rows) {
            if (row.loop == 0) check_token_id(row.token, n_vocab, "engine");
            if (row.logits && !capabilities().logits)
                fail(ErrorCode::internal, "engine", "'{}' has no output layer", capabilities().family);
            if (row.position >= kv_.at(row.sequence).rows - prefix()) {
                fail(ErrorCode::internal, "engine", "no room for token {} of sequence {}, which has {} of {}",
                     row.position, row.sequence, kv_.at(row.sequence).length,
                     kv_.at(row.sequence).rows - prefix());
            }
            progress_.at(row.sequence).check(row);
        }
    }

    // Collects the rows with this work, ordered by loop. Returns whether there are any.
    bool gather(std::span<const Row> rows, Row::Work work) {
        order_.clear();
        for (size_t i = 0; i < rows.size(); ++i)
            if (rows[i].work == work) order_.push_back(i);
        std::stable_sort(order_.begin(), order_.end(),
                         [&](size_t a, size_t b) { return rows[a].loop < rows[b].loop; });
        const auto width = static_cast<size_t>(network_.config.n_embd);
        tokens_.clear();
        positions_.clear();
        rows_.all.clear();
        rows_.loops.clear();
        rows_.adapters.clear();
        rows_.outputs.clear();
        if (loops_ > 1) residual_.resize(order_.size() * width);
        index_.resize(rows.size());
        for (const size_t i : order_) {
            const Row& row = rows[i];
            if (row.loop > 0) {
                const auto residual = progress_.at(row.sequence).residual(row.position);
                std::copy(residual.begin(), residual.end(),
                          residual_.begin() + static_cast<ptrdiff_t>(tokens_.size() * width));
            }
            index_[i] = static_cast<int32_t>(tokens_.size());
            tokens_.push_back(row.loop == 0 ? row.token : 0);
            positions_.push_back(static_cast<int32_t>(row.position));
            const int64_t first = row.loop * kv_.cached() + kv_.at(row.sequence).first;
            rows_.all.push_back(
                {static_cast<int32_t>(first), static_cast<int32_t>(first + prefix() + row.position)});
            rows_.loops.push_back(row.loop);
            rows_.adapters.push_back(adapters_->set_of(row.sequence, row.loop));
        }
        for (size_t i = 0; i < rows.size(); ++i)
            if (rows[i].logits && rows[i].work == work) rows_.outputs.push_back(index_[i]);
        return !order_.empty();
    }

    // Copies of the last row, which write what it writes, and of the last output, so that shapes recur.
    void fill_up() {
        const auto rounded = [](size_t count) {
            return static_cast<size_t>(recurring_count(static_cast<int64_t>(count)));
        };
        const auto fill = [](auto& values, size_t count) {
            if (!values.empty())
                values.resize(count,
                              typename std::remove_cvref_t<decltype(values)>::value_type(values.back()));
        };
        const bool all = rows_.outputs.size() == tokens_.size();
        const size_t rows = rounded(tokens_.size()), width = static_cast<size_t>(network_.config.n_embd);
        fill(tokens_, rows);
        fill(positions_, rows);
        fill(rows_.all, rows);
        fill(rows_.loops, rows);
        fill(rows_.adapters, rows);
        // As many outputs as rows would be the rows in turn, unless steps run by loop.
        const size_t outputs = rounded(rows_.outputs.size());
        fill(rows_.outputs, all || loops_ > 1 ? outputs : std::min(outputs, rows - 1));
        const size_t before = residual_.size();
        if (loops_ > 1) residual_.resize(rows * width);
        for (size_t at = before; at < residual_.size(); ++at) residual_[at] = residual_[at - width];
    }

    // Of this step and some before, at the loops of this one: the next steps may run any of them.
    std::vector<CacheRow> running_sequences() const {
        constexpr int64_t kSteps = 8;
        std::vector<CacheRow> out;
        for (const int32_t loop : std::set(rows_.loops.begin(), rows_.loops.end())) {
            for (const auto& [id, step] : last_steps_) {
                if (step + kSteps < steps_) continue;
                const KvPool::Sequence& sequence = kv_.at(id);
                const int64_t first = loop * kv_.cached() + sequence.first,
                              rows = prefix() + std::max<int64_t>(1, sequence.length);
                out.push_back({static_cast<int32_t>(first), static_cast<int32_t>(first + rows - 1)});
            }
        }
        return out;
    }

    void group(StepKind kind, bool recurring) {
        const AttentionCosts costs = device_->attention_costs(kv_.cache().row_bytes());
        GroupedCache cache{kv_.all_cached(), KvPool::kDeviceUnit};
        if (recurring) cache.others = running_sequences();
        const auto grouped = [&](std::span<const CacheRow> tokens) {
            return group_sequences(tokens, cache, costs);
        };
        rows_.groups = kind == StepKind::loop_keys ? GroupedSequences{} : grouped(rows_.all);
        rows_.output_groups = {};
        if (kind != StepKind::network || rows_.outputs.size() == tokens_.size()) return;
        std::vector<CacheRow> outputs;
        for (const int32_t t : rows_.outputs) outputs.push_back(rows_.all[static_cast<size_t>(t)]);
        rows_.output_groups = grouped(outputs);
    }

    const StepGraph& compute(StepKind kind) {
        if (device_ != nullptr) {
            // Where sequences come and go, and loop by loop, every step has another number of rows, and
            // building a graph takes a GPU longer than the step. A CPU's time goes to the rows.
            const bool recurring = loops_ > 1 || !device_->has_cpu();
            if (recurring) fill_up();
            group(kind, recurring);
        }
        StepGraph& graph =
            graphs_.of({.tokens = static_cast<int64_t>(tokens_.size()),
                        .cached = kv_.all_cached(),
                        .longest = longest_of_step(),
                        .outputs = static_cast<int64_t>(rows_.outputs.size()),
                        .residual = kind == StepKind::loop_keys,
                        .adapted = std::ranges::any_of(rows_.adapters, [](int32_t set) { return set >= 0; }),
                        .kind = kind,
                        .groups = rows_.groups.shape,
                        .output_groups = rows_.output_groups.shape});
        ForwardInput input{.tokens = tokens_, .positions = positions_, .token_types = {}, .mask = {}};
        if (kind != StepKind::network) input.residual = residual_;
        graph.compute(input, rows_, weights_, threads_);
        return graph;
    }

    // For rows that have a loop left to run.
    void keep_residuals(std::span<const Row> rows, std::span<const float> hidden) {
        const auto width = static_cast<size_t>(network_.config.n_embd);
        for (size_t i = 0; i < order_.size(); ++i) {
            const Row& row = rows[order_[i]];
            if (row.loop + 1 < loops_)
                progress_.at(row.sequence).set_residual(row.position, hidden.subspan(i * width, width));
        }
    }

    std::span<const double> exited(std::span<const Row> rows, std::span<const float> scores) {
        for (size_t i = 0; i < order_.size(); ++i) {
            const Row& row = rows[order_[i]];
            progress_.at(row.sequence)
                .leave(row.position, 1 / (1 + std::exp(-static_cast<double>(scores[i]))));
        }
        exited_.clear();
        for (const Row& row : rows) {
            if (row.logits) exited_.push_back(progress_.at(row.sequence).exited(row.position));
        }
        return exited_;
    }

    // Needed by probabilities of refold's kernels only.
    int64_t longest_of_step() const {
        if (!lends_ || device_ != nullptr) return 0;
        int32_t longest = 0;
        for (const CacheRow& row : rows_.all) longest = std::max(longest, row.own - row.first + 1);
        return (longest + kProbabilityRows - 1) / kProbabilityRows * kProbabilityRows;
    }

    int32_t loops_;
    Network network_;
    bool lends_;
    EngineThreads threads_;
    std::unique_ptr<DeviceRun> device_;  // null: the CPU
    Weights weights_;
    KvPool kv_;
    StepWorkspace workspace_;
    StepGraphs graphs_;
    std::unique_ptr<Adapters> adapters_;
    std::map<int32_t, LoopProgress> progress_;  // by sequence
    int64_t steps_ = 0;
    std::map<int32_t, int64_t> last_steps_;  // by sequence: the last step that it took part in
    // Of a step. All but index_, which is by row of the step, are in the order in which the rows are
    // computed.
    std::vector<size_t> order_;
    std::vector<int32_t> tokens_, positions_, index_;
    std::vector<float> residual_;
    std::vector<double> exited_;
    StepRows rows_;
};

}  // namespace

std::unique_ptr<Engine> make_ggml_batched_engine(const Model& model, const EngineOptions& options) {
    const Capabilities capabilities = capabilities_of(model, options);
    if (!options.by_loop)
        return std::make_unique<GgmlBatchedEngine>(as_placed(model, options), nullptr, options, capabilities);
    const LoopedBlock loops = looped_block(model);
    return std::make_unique<GgmlBatchedEngine>(as_placed(loops.block, options), &loops, options,
                                               capabilities);
}

bool faster_by_loop(const Model& model) {
    if (model.topology.loops == 1) return false;
    try {
        const auto terms = looped_block(model).terms;
        return std::any_of(terms.begin(), terms.end(), [](const auto& term) {
            return properties(term.first.second).module != SlotModule::exit;
        });
    } catch (const Error& e) {
        if (e.code() != ErrorCode::unsupported) throw;
        return false;
    }
}

}  // namespace refold
