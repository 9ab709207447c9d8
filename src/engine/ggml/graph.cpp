#include "engine/ggml/graph.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/core_share.h"
#include "core/error.h"
#include "engine/ggml/device_ops.h"
#include "engine/ggml/graph_ops.h"
#include "model/forward.h"

namespace refold {

ggml_tensor* StepGraph::input(ggml_tensor* tensor) {
    ggml_set_input(tensor);
    ggml_build_forward_expand(graph_, tensor);
    return tensor;
}

StepGraph::Rows StepGraph::new_rows(int64_t cached, int64_t longest) {
    ggml_context* c = context_.get();
    Rows rows{cached, longest, input(ggml_new_tensor_1d(c, GGML_TYPE_I64, shape_.tokens)),
              input(ggml_new_tensor_2d(c, GGML_TYPE_I32, 2, shape_.tokens)), nullptr};
    if (shape_.kind == StepKind::network && shape_.outputs < shape_.tokens)
        rows.seen_by_outputs = input(ggml_new_tensor_2d(c, GGML_TYPE_I32, 2, shape_.outputs));
    return rows;
}

void StepGraph::prepare(const Weights& weights, const KvCache& cache, const StepShape& shape) {
    ActivationMemory& activations = workspace_.activations;
    DeviceRun* const device = workspace_.device;
    const auto moves = [&] { return device != nullptr ? device->places() : activations.moves(); };
    if (ready_ && shape == shape_ && moves_ == moves()) return;
    ready_ = false;
    shape_ = shape;
    constexpr size_t kNodesPerLayer = 80, kNodesOfFactors = 320, kNodesOfStreams = 80, kNodesAround = 128,
                     kNodesOnDevice = 320, kNodesOfExpert = 2, kNodesOfAdapters = 16;
    const size_t n_layer = network_.topology.layers.size(),
                 streams = static_cast<size_t>(network_.config.n_stream - 1),
                 used = static_cast<size_t>(network_.config.n_expert_used),
                 nodes = n_layer * (kNodesPerLayer + (workspace_.adapters ? kNodesOfAdapters : 0) +
                                    (weights.has_factors() ? kNodesOfFactors : 0) +
                                    (streams > 0 ? kNodesOfStreams : 0) +
                                    (device != nullptr ? kNodesOnDevice + kNodesOfExpert * used : 0)) +
                         16 * streams + kNodesAround;
    const size_t bytes = 2 * nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, false);
    context_.reset();
    // Allocated once: freeing and allocating megabytes for every shape fragments the heap.
    if (!description_) description_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    context_.reset(ggml_init({bytes, description_.get(), true}));
    ggml_context* c = context_.get();
    graph_ = ggml_new_graph_custom(c, nodes, false);
    tables_.clear();
    masks_.clear();
    constants_.clear();
    observed_.clear();
    scores_.clear();
    residual_ = nullptr;
    loops_of_outputs_ = adapters_of_outputs_ = resumed_ = nullptr;
    order_ = output_order_ = {};
    own_operations_ = weights.own_operations();
    positions_ = input(ggml_new_tensor_1d(c, GGML_TYPE_I32, shape.tokens));
    all_ = new_rows(shape.cached, shape.longest);
    kept_ = shape.kept > 0 ? new_rows(shape.kept, shape.kept) : Rows{};
    outputs_ = shape.outputs > 0 ? input(ggml_new_tensor_1d(c, GGML_TYPE_I32, shape.outputs)) : nullptr;
    loops_ =
        shape.kind == StepKind::network ? nullptr : input(ggml_new_tensor_1d(c, GGML_TYPE_I32, shape.tokens));
    adapters_ = shape.adapted ? input(ggml_new_tensor_1d(c, GGML_TYPE_I32, shape.tokens)) : nullptr;
    if (device != nullptr)
        add_network<DeviceOps>(weights, cache);
    else
        add_network<GraphOps>(weights, cache);
    if (!(device != nullptr ? device->put(graph_, place_) : activations.place(graph_, positions_))) {
        context_.reset();
        fail(ErrorCode::io, "engine", "cannot allocate the activations of {} tokens: not enough memory{}",
             shape.tokens,
             device != nullptr ? fmt::format(" on {} - use fewer --gpu-layers", device->name()) : "");
    }
    moves_ = moves();
    ready_ = true;
}

template <class Ops>
void StepGraph::add_network(const Weights& weights, const KvCache& cache) {
    const size_t n_layer = network_.topology.layers.size();
    Ops ops(*this, weights, cache, shape_);
    // No layer of a loop drops the tokens that are not outputs.
    std::optional<ForwardResult<typename Ops::Value>> result;
    if constexpr (LoopOps<Ops>) {
        Forward<Ops> loop(ops, network_.config, kWholeModel);
        if (shape_.kind == StepKind::loop_keys) loop.keys_only(n_layer, *ops.given_input());
        if (shape_.kind == StepKind::loop) result = loop.run_loop(n_layer, shape_.outputs > 0);
    }
    if (shape_.kind == StepKind::network) result = forward(ops, network_.config, n_layer, network_.range);
    result_ = {};
    if (result && (network_.observer == nullptr || !network_.observer->only_taps))
        result_ = {result->hidden.tensor, result->logits ? result->logits->tensor : nullptr,
                   result->pooled ? result->pooled->tensor : nullptr,
                   result->exit_scores ? result->exit_scores->tensor : nullptr,
                   result->score ? result->score->tensor : nullptr};
    for (ggml_tensor* output :
         {result_.hidden, result_.logits, result_.pooled, result_.exit_scores, result_.score}) {
        if (output == nullptr) continue;
        ggml_set_output(output);
        ggml_build_forward_expand(graph_, output);
    }
}

void StepGraph::fill_tables(const ForwardInput& in, const Weights& weights) {
    for (const auto& [slot, rows] : tables_) {
        const bool by_token = slot == Slot::token_embd || slot == Slot::layer_input_embd;
        const std::span<const int32_t> ids = by_token                      ? in.tokens
                                             : slot == Slot::position_embd ? in.positions
                                                                           : in.token_types;
        const auto width = static_cast<size_t>(rows->ne[0]);
        for (size_t t = 0; t < in.positions.size(); ++t)
            weights.table_row(slot, ids.empty() ? 0 : ids[t],
                              {static_cast<float*>(rows->data) + t * width, width});
    }
}

ggml_tensor* StepGraph::mask(const MaskKey& key, const SequenceGroup& group, size_t first_query) {
    Mask& mask = masks_[key];
    if (mask.tensor == nullptr) {
        mask.tensor =
            input(ggml_new_tensor_4d(context_.get(), key.type, group.rows, group.tokens, 1, group.sequences));
        mask.group = group;
        mask.first = first_query;
        // Keeps its memory when it has been read: fill_mask().
        if (workspace_.device != nullptr) ggml_set_output(mask.tensor);
    }
    return mask.tensor;
}

ggml_tensor* StepGraph::mask(int64_t window, int64_t tokens) {
    return mask({window, tokens < shape_.tokens, false, 0, GGML_TYPE_F16},
                {.tokens = tokens, .rows = all_.cached}, 0);
}

ggml_tensor* StepGraph::constant(ggml_type type, std::span<const std::byte> values) {
    const auto count = static_cast<int64_t>(values.size() / ggml_type_size(type));
    ggml_tensor* tensor = input(ggml_new_tensor_1d(context_.get(), type, count));
    constants_.emplace_back(tensor, std::vector(values.begin(), values.end()));
    return tensor;
}

ggml_tensor* StepGraph::constant(std::span<const int32_t> values) {
    return constant(GGML_TYPE_I32, std::as_bytes(values));
}

ggml_tensor* StepGraph::constant(std::span<const float> values) {
    return constant(GGML_TYPE_F32, std::as_bytes(values));
}

// 0 where a token sees a row of the cache (with ALiBi, minus their distance), else -infinity. With many
// sequences, most of a large mask stays as the last step left it.
void StepGraph::fill_mask(const MaskKey& key, Mask& filled, const ForwardInput& in,
                          const StepRows& rows) const {
    ggml_tensor* mask = filled.tensor;
    const bool known = !filled.shown.empty();
    // With workers, other graphs take the memory.
    const bool stays = workspace_.device != nullptr && !workspace_.device->has_worker() && in.mask.empty();
    filled.shown.resize(stays ? static_cast<size_t>(ggml_nrows(mask)) : 0);
    const ModelConfig& config = network_.config;
    const std::vector<CacheRow>& by_token = key.kept ? rows.kept : rows.all;
    const std::vector<int32_t>& asking = (key.outputs ? rows.output_groups : rows.groups).tokens;
    const SequenceGroup& group = filled.group;
    const int64_t cached = group.rows;
    for (int64_t i = 0; i < group.queries(); ++i) {
        auto t = static_cast<size_t>(i) + filled.first;
        if (!asking.empty()) t = static_cast<size_t>(asking[t]);
        if (key.outputs) t = static_cast<size_t>(rows.outputs[t]);
        const CacheRow seen = group.seen(i, by_token[t]);
        const int64_t own = seen.own, first = seen.first;
        const int64_t window = key.window,
                      end = config.causal || window > 0 ? own + 1 : config.n_prefix + in.past + shape_.tokens,
                      begin = window > 0 ? std::max<int64_t>(first, own + 1 - window) : first;
        const auto fill = [&](auto* row, auto number) {
            const auto hidden = number(-INFINITY);
            const auto [from, to] =
                known && stays ? filled.shown[static_cast<size_t>(i)] : std::pair(int64_t{0}, cached);
            std::fill(row + from, row + to, hidden);
            if (stays) filled.shown[static_cast<size_t>(i)] = {begin, end};
            std::fill(row + begin, row + end, number(0.0F));
            for (int64_t j = begin; j < end && config.max_alibi_bias > 0; ++j)
                row[j] = number(-static_cast<float>(std::abs(own - j)));
            for (size_t j = 0; j < in.mask.size(); ++j)
                if (in.mask[j] == 0) row[j] = hidden;
        };
        if (key.type == GGML_TYPE_F32)
            fill(static_cast<float*>(mask->data) + i * cached, [](float x) { return x; });
        else
            fill(static_cast<ggml_fp16_t*>(mask->data) + i * cached, ggml_fp32_to_fp16);
    }
}

// A device counts sets from 1: DeviceTerms.
void StepGraph::fill_sets(const StepRows& rows) {
    const int32_t first = workspace_.device != nullptr ? DeviceTerms::kFirstSet : 0;
    const auto fill = [&](ggml_tensor* sets, const std::vector<int32_t>& by_token, bool outputs) {
        if (sets == nullptr) return;
        for (int64_t i = 0; i < sets->ne[0]; ++i) {
            const auto t = static_cast<size_t>(outputs ? rows.outputs[static_cast<size_t>(i)] : i);
            static_cast<int32_t*>(sets->data)[i] = std::max(by_token[t] + first, first - 1);
        }
    };
    fill(loops_, rows.loops, false);
    fill(loops_of_outputs_, rows.loops, true);
    fill(adapters_, rows.adapters, false);
    fill(adapters_of_outputs_, rows.adapters, true);
    for (int64_t t = 0; resumed_ != nullptr && t < shape_.tokens; ++t)
        static_cast<float*>(resumed_->data)[t] = rows.loops[static_cast<size_t>(t)] > 0 ? 1.0F : 0.0F;
}

void StepGraph::fill_rows(const Rows& rows, std::span<const CacheRow> by_token,
                          std::span<const int32_t> outputs) {
    auto* written = static_cast<int64_t*>(rows.written->data);
    auto* seen = static_cast<CacheRow*>(rows.seen->data);
    for (size_t t = 0; t < by_token.size(); ++t) {
        written[t] = by_token[t].own;
        seen[t] = by_token[t];
    }
    if (rows.seen_by_outputs == nullptr) return;
    auto* selected = static_cast<CacheRow*>(rows.seen_by_outputs->data);
    for (size_t i = 0; i < outputs.size(); ++i) selected[i] = by_token[static_cast<size_t>(outputs[i])];
}

void StepGraph::fill_order(const Order& order, const GroupedSequences& groups) {
    if (order.tokens == nullptr) return;
    std::ranges::copy(groups.tokens, static_cast<int32_t*>(order.tokens->data));
    std::ranges::copy(groups.queries, static_cast<int32_t*>(order.queries->data));
}

void StepGraph::compute(const ForwardInput& in, const StepRows& rows, const Weights& weights,
                        EngineThreads& engine_threads) {
    fill_tables(in, weights);
    for (auto& [key, mask] : masks_) fill_mask(key, mask, in, rows);
    for (const auto& [tensor, values] : constants_)
        std::copy(values.begin(), values.end(), static_cast<std::byte*>(tensor->data));
    if (residual_ != nullptr)
        std::copy(in.residual.begin(), in.residual.end(), static_cast<float*>(residual_->data));
    std::copy(in.positions.begin(), in.positions.end(), static_cast<int32_t*>(positions_->data));
    fill_rows(all_, rows.all, rows.outputs);
    if (shape_.kept > 0) fill_rows(kept_, rows.kept, rows.outputs);
    if (outputs_ != nullptr)
        std::copy(rows.outputs.begin(), rows.outputs.end(), static_cast<int32_t*>(outputs_->data));
    fill_sets(rows);
    fill_order(order_, rows.groups);
    fill_order(output_order_, rows.output_groups);
    workspace_.device != nullptr ? run_on_device() : run_on_cpu(engine_threads);
    show(in);
}

void StepGraph::run_on_device() {
    fetched_.clear();
    workspace_.device->compute(graph_, place_);
}

std::span<const float> StepGraph::result(const ggml_tensor* tensor) const {
    if (tensor == nullptr) return {};
    if (workspace_.device == nullptr)
        return {static_cast<const float*>(tensor->data), static_cast<size_t>(ggml_nelements(tensor))};
    const auto [entry, is_new] = fetched_.try_emplace(tensor);
    std::vector<float>& values = entry->second;
    if (is_new) {
        values.resize(static_cast<size_t>(ggml_nelements(tensor)));
        ggml_backend_tensor_get(tensor, values.data(), 0, ggml_nbytes(tensor));
        workspace_.device->check_workers();
    }
    return values;
}

void StepGraph::run_on_cpu(EngineThreads& engine_threads) {
    ThreadChoice& choice = workspace_.choice(shape_.tokens);
    const CoreShare::Part cores = CoreShare::of_process().take(workspace_.threads);
    const int threads = std::min(choice.threads(), cores.threads());
    const bool others = threads > 1 || workspace_.threads == 1;
    // They would spin meanwhile.
    if (!others) engine_threads.sleep();
    ggml_threadpool* pool = others ? engine_threads.awake() : nullptr;
    ggml_cplan plan = ggml_graph_plan(graph_, threads, pool);
    if (workspace_.buffer.size() < plan.work_size) workspace_.buffer.resize(plan.work_size);
    plan.work_data = workspace_.buffer.data();
    const auto start = std::chrono::steady_clock::now();
    if (ggml_graph_compute(graph_, &plan) != GGML_STATUS_SUCCESS)
        fail(ErrorCode::internal, "engine", "ggml could not compute the graph");
    if (cores.threads() < workspace_.threads) return;  // comparable with no other step
    choice.took(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
                static_cast<double>(shape_.tokens));
}

void StepGraph::show(const ForwardInput& in) {
    for (const auto& [layer, tap, copy] : observed_) {
        const bool matrices = tap == Tap::probabilities;
        // Without the padding of the cache.
        const int64_t keys = network_.config.n_prefix + in.past + shape_.tokens;
        const int64_t features = matrices ? keys : copy->ne[0], rows = ggml_nrows(copy);
        std::span<const float> values = result(copy);
        const int64_t skipped = shape_.tokens - copy->ne[1];
        if (matrices) {
            // Attention writes no probabilities of rows that a token does not see.
            const int64_t window = network_.config.window(layer);
            shown_.assign(static_cast<size_t>(features * rows), 0.0F);
            for (int64_t r = 0; r < rows; ++r) {
                const int64_t end = keys - copy->ne[1] + r % copy->ne[1] + 1,
                              begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
                std::copy_n(values.data() + r * copy->ne[0] + begin, end - begin,
                            shown_.data() + r * features + begin);
            }
            values = shown_;
        }
        network_.observer->see({layer, tap, in.past + skipped, copy->ne[1], features, values});
    }
}

}  // namespace refold
