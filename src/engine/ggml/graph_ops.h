// The operations of the forward pass (model/forward.h) as ggml nodes for the CPU, by refold's kernels where
// there are some.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/ggml/activation.h"
#include "engine/ggml/composed.h"
#include "engine/ggml/graph.h"
#include "engine/ggml/head_runs.h"
#include "engine/ggml/row_parts.h"
#include "engine/ggml/streams.h"
#include "engine/ggml/thread_share.h"
#include "model/forward.h"

namespace refold {

class GraphOps {
public:
    // A result. Neighbors that were computed together are rows of one larger tensor, `whole`.
    struct Value {
        ggml_tensor* tensor = nullptr;  // [features, tokens]
        ggml_tensor* whole = nullptr;
        int64_t row = 0;

        bool followed_by(const Value& next) const {
            return whole != nullptr && whole == next.whole && row + tensor->ne[0] == next.row;
        }
    };

    GraphOps(StepGraph& step, const Weights& weights, const KvCache& cache, const StepShape& shape)
        : step_(step),
          network_(step.network_),
          config_(network_.config),
          weights_(weights),
          cache_(cache),
          shape_(shape),
          attention_(step.workspace_.attention),
          loops_(shape.kind == StepKind::network ? nullptr : step.workspace_.loops.get()),
          context_(step.context_.get()) {}

    bool has(size_t layer, Slot slot) const { return weights_.has(layer, slot); }

    Value embed(Slot table) {
        ggml_tensor*& rows = step_.tables_[table];
        rows = step_.input(
            ggml_new_tensor_2d(context_, GGML_TYPE_F32, slot_shape(table, config_).in, shape_.tokens));
        return {rows};
    }

    Value norm(size_t layer, Slot slot, Value x) {
        ggml_tensor* weight = weights_.vector(layer, slot);
        ggml_tensor* groups = groups_of(x.tensor, normalized_width(slot, config_, layer));
        ggml_tensor* y = config_.norm == NormKind::rms ? ggml_rms_norm(context_, groups, config_.norm_eps)
                                                       : ggml_norm(context_, groups, config_.norm_eps);
        const auto whole = [&] { return ggml_reshape_2d(context_, y, x.tensor->ne[0], x.tensor->ne[1]); };
        if (groups != x.tensor && weight->ne[0] == x.tensor->ne[0]) y = whole();
        const auto differs = [&](Slot s) { return loops_ != nullptr && loops_->differs(layer, s); };
        y = differs(slot) ? loops_->scale(context_, layer, slot, y, step_.loops_)
                          : ggml_mul(context_, y, weight);
        if (const auto bias = bias_of(slot); bias && has(layer, *bias)) {
            y = differs(*bias) ? loops_->add(context_, layer, *bias, y, step_.loops_)
                               : ggml_add(context_, y, weights_.vector(layer, *bias));
        }
        return {groups == x.tensor ? y : whole()};
    }

    void linear(size_t layer, std::span<const Slot> slots, Value x, std::span<Value> out) {
        if (slots[0] == Slot::attn_k)
            keys_and_values(layer, x, out);
        else
            multiply(layer, slots, x, out);
        if (loops_ != nullptr) add_terms(loops_->terms(), step_.loops_, layer, slots, x, out);
        if (shape_.adapted)
            add_terms(*step_.workspace_.adapters, adapters_of(layer, x), layer, slots, x, out);
    }

    void rope(size_t layer, Value& q, Value& k) {
        if (q.followed_by(k)) {
            // Neighbors in memory take one rotation over the heads of both.
            expand(rotate_heads(layer, rows_of(q.whole, q.row, q.tensor->ne[0] + k.tensor->ne[0])));
        } else {
            expand(rotate_heads(layer, q.tensor));
            expand(rotate_heads(layer, k.tensor));
        }
    }

    void rope(size_t layer, Value& q) { expand(rotate_heads(layer, q.tensor)); }

    const AttentionSource& source(size_t layer) const { return network_.topology.source(layer); }

    std::optional<Value> given_input() {
        if (!shape_.residual) return std::nullopt;
        step_.residual_ =
            step_.input(ggml_new_tensor_2d(context_, GGML_TYPE_F32, config_.n_embd, shape_.tokens));
        return Value{step_.residual_};
    }

    void tap(size_t layer, Tap tap, Value x) {
        if (network_.observes(layer, tap)) keep(layer, tap, x.tensor);
    }

    Value attention(size_t layer, Value q, Value k, Value v) {
        store(layer, k, v);
        const bool lends =
            network_.topology.lends_probabilities(layer) || network_.observes(layer, Tap::probabilities);
        if (!lends || !config_.causal) return attend(layer, q);
        return attend_by_probabilities(layer, q);
    }

    Value attention_over_source(size_t layer, Value q) { return attend(layer, q); }

    Value attention_as_source(size_t layer, Value v, bool selected) {
        store(layer, v);
        return weighted(layer, *source(layer).probabilities, selected);
    }

    Value activate(Activation activation, Value x) {
        ggml_tensor* rows = x.tensor;
        if (activation == Activation::gelu_tanh) return {gelu_tanh(context_, rows)};
        if (!ggml_is_contiguous(rows)) rows = ggml_cont(context_, rows);
        switch (activation) {
            case Activation::silu: return {ggml_silu(context_, rows)};
            case Activation::gelu: return {ggml_gelu_erf(context_, rows)};
            case Activation::relu: return {ggml_relu(context_, rows)};
            case Activation::relu_squared: return {ggml_sqr(context_, ggml_relu(context_, rows))};
            default: return {ggml_tanh(context_, rows)};
        }
    }

    Value gated(Activation activation, Value gate, Value up) {
        switch (activation) {
            case Activation::silu:
                if (gate.followed_by(up) && gate.row == 0 && gate.whole->ne[0] == 2 * gate.tensor->ne[0])
                    return {ggml_swiglu(context_, gate.whole)};
                return {ggml_swiglu_split(context_, gate.tensor, up.tensor)};
            case Activation::gelu_tanh: return {gelu_tanh(context_, gate.tensor, up.tensor)};
            case Activation::gelu: return {ggml_geglu_erf_split(context_, gate.tensor, up.tensor)};
            case Activation::relu: return {ggml_reglu_split(context_, gate.tensor, up.tensor)};
            case Activation::swiglu_clamped:
                return {ggml_swiglu_oai(context_, gate.tensor, up.tensor, kSwigluAlpha, kSwigluLimit)};
            default: return {ggml_mul(context_, activate(activation, gate).tensor, up.tensor)};
        }
    }

    Value route(Value scores) {
        return {experts().route(context_, scores.tensor, config_.n_expert_used, config_.norm_expert_weights)};
    }
    Value dispatch(Value x, Value routes) { return {experts().dispatch(context_, x.tensor, routes.tensor)}; }
    Value combine(Value uses, Value routes) {
        return {experts().combine(context_, uses.tensor, routes.tensor)};
    }

    void expert_linear(size_t layer, std::span<const Slot> slots, Value x, Value routes,
                       std::span<Value> out) {
        const ExpertPlan& plan = weights_.experts(layer, slots);
        ggml_tensor* y = experts().multiply(context_, plan, x.tensor, routes.tensor);
        int64_t row = 0;
        for (size_t s = 0; s < out.size(); ++s) {
            const int64_t rows = plan.slots[s].rows;
            out[s] = {out.size() == 1 ? y : rows_of(y, row, rows), y, row};
            row += rows;
        }
    }

    Value scale(Value x, float factor) { return {ggml_scale(context_, x.tensor, factor)}; }

    Value softcap(Value x, float cap) {
        return {ggml_scale(context_, ggml_tanh(context_, ggml_scale(context_, x.tensor, 1.0F / cap)), cap)};
    }

    Value divide_by_row_norms(Slot, Value x) {
        return {ggml_mul(context_, x.tensor, weights_.inverse_output_norms())};
    }

    Value part(Value x, int64_t first, int64_t count) { return {rows_of(x.tensor, first, count)}; }

    Value join(std::span<const Value> values) {
        ggml_tensor* all = values.front().tensor;
        for (const Value& value : values.subspan(1)) all = ggml_concat(context_, all, value.tensor, 0);
        return {all};
    }

    Value scale_features(size_t layer, Slot slot, Value x) {
        return {ggml_mul(context_, x.tensor, weights_.vector(layer, slot))};
    }

    Value normalized(Value x, int64_t width) {
        ggml_tensor* y = ggml_rms_norm(context_, groups_of(x.tensor, width), config_.norm_eps);
        return {ggml_reshape_2d(context_, y, x.tensor->ne[0], x.tensor->ne[1])};
    }

    Value with_rms_of(Value x, Value y) { return {refold::with_rms_of(context_, x.tensor, y.tensor)}; }
    Value cut(size_t layer, Value gate) {
        return {cut_gates(context_, gate.tensor, config_.ffn_cuts[layer])};
    }
    Value mix(Value x, Value coefficients) {
        return {mix_streams(context_, x.tensor, coefficients.tensor, config_.n_embd)};
    }

    Value linear_by_part(size_t layer, Slot slot, Value x) {
        const std::array slots = {slot};
        const SlotShape shape = slot_shape(slot, config_, layer);
        const int64_t parts = x.tensor->ne[0] / shape.in, rows = shape.out / parts;
        std::vector<Value> out;
        for (int64_t p = 0; p < parts; ++p) {
            const Value in{rows_of(x.tensor, p * shape.in, shape.in)};
            Value y{some_rows(layer, slots, in.tensor, p * rows, rows)};
            if (y.tensor == nullptr) {
                multiply(layer, slots, in, {&y, 1});
                y.tensor = rows_of(y.tensor, p * rows, rows);
            }
            out.push_back(y);
        }
        return join(out);
    }

    Value add_to_each(Value x, int64_t first, Value y) {
        ggml_tensor *to = x.tensor, *added = y.tensor;
        const int64_t width = added->ne[0], tokens = to->ne[1];
        const auto bytes = [](int64_t count) { return static_cast<size_t>(count) * sizeof(float); };
        ggml_tensor* each = ggml_view_3d(context_, to, width, (to->ne[0] - first) / width, tokens,
                                         bytes(width), to->nb[1], bytes(first));
        expand(ggml_add_inplace(
            context_, each, ggml_view_3d(context_, added, width, 1, tokens, added->nb[1], added->nb[1], 0)));
        return x;
    }

    Value select_first(Value x) {
        return {ggml_view_2d(context_, x.tensor, x.tensor->ne[0], 1, x.tensor->nb[1], 0)};
    }

    Value add(Value a, Value b) { return {ggml_add(context_, a.tensor, b.tensor)}; }
    Value subtract(Value a, Value b) { return {ggml_sub(context_, a.tensor, b.tensor)}; }

    Value select_outputs(Value x) {
        // Steps by loop may want them in another order.
        if (shape_.outputs == shape_.tokens && shape_.kind == StepKind::network) return x;
        return {ggml_get_rows(context_, x.tensor, step_.outputs_)};
    }

    Value with_exit_map(size_t layer, Value x) { return add_exit_term(layer, Slot::exit_map, x, x); }
    Value with_exit_output(size_t layer, Value x, Value y) {
        return add_exit_term(layer, Slot::exit_output, x, y);
    }

    Value resume(Value x) {
        step_.residual_ =
            step_.input(ggml_new_tensor_2d(context_, GGML_TYPE_F32, config_.n_embd, shape_.tokens));
        ggml_tensor* sources[] = {step_.residual_, step_.loops_};
        return {ggml_custom_inplace(context_, x.tensor, sources, 2, resume_rows, GGML_N_TASKS_MAX, nullptr)};
    }

    // Writes this step's keys and values to the cache.
    void store(size_t layer, Value k, Value v) {
        ggml_tensor* cache = cache_.layers[layer];
        ggml_tensor* written = rows(layer).written;
        const int64_t heads = config_.n_head_kv_of(layer);
        if (k.followed_by(v)) {
            expand(ggml_set_rows(context_, cache, split_heads(rows_of(k.whole, k.row, 2 * k.tensor->ne[0])),
                                 written));
            return;
        }
        expand(ggml_set_rows(context_, heads_of(cache, 0, heads), split_heads(k.tensor), written));
        expand(ggml_set_rows(context_, heads_of(cache, heads, heads), split_heads(v.tensor), written));
    }

    void store(size_t layer, Value v) {
        expand(ggml_set_rows(context_, cache_.layers[layer], split_heads(v.tensor), rows(layer).written));
    }

private:
    ExpertProduct& experts() { return step_.workspace_.expert_product; }

    // y + W x of the selected tokens, with the W of each one's loop.
    Value add_exit_term(size_t layer, Slot slot, Value x, Value y) {
        const std::array slots = {slot};
        ggml_tensor* loops = ggml_get_rows(
            context_, ggml_reshape_2d(context_, step_.loops_, 1, shape_.tokens), step_.outputs_);
        return {loops_->terms().add_to(context_, {layer, slots, 0}, y.tensor, x.tensor, loops)};
    }

    // Products with the weights that all loops share.
    void multiply(size_t layer, std::span<const Slot> slots, Value x, std::span<Value> out) {
        if (const FactoredPlan* plan = weights_.factored(layer, slots)) {
            return step_.own_operations_ && x.tensor->ne[1] <= FactoredPlan::kFewTokens
                       ? multiply_in_place(*plan, x.tensor, out)
                       : multiply_composed(*plan, x.tensor, out);
        }
        size_t next = 0;
        for (const LinearPlan& plan : weights_.linear(layer, slots)) {
            ggml_tensor* y = multiply(plan, x.tensor);
            if (plan.bias != nullptr) y = ggml_add(context_, y, plan.bias);
            int64_t row = 0;
            for (const int64_t rows : plan.slot_rows) {
                out[next++] = {plan.slot_rows.size() == 1 ? y : rows_of(y, row, rows), y, row};
                row += rows;
            }
        }
    }

    // Skips the rows of the queries where the layout of the product allows it.
    void keys_and_values(size_t layer, Value x, std::span<Value> out) {
        constexpr auto kQkv = product_group(Slot::attn_k);
        const int64_t skipped = slot_shape(Slot::attn_q, config_, layer).out,
                      rows = slot_shape(Slot::attn_k, config_, layer).out;
        ggml_tensor* y = some_rows(layer, kQkv, x.tensor, skipped, 2 * rows);
        if (y == nullptr) {
            std::array<Value, kQkv.size()> all{};
            multiply(layer, kQkv, x, all);
            std::copy(all.begin() + 1, all.end(), out.begin());
            return;
        }
        out[0] = {rows_of(y, 0, rows), y, 0};
        out[1] = {rows_of(y, rows, rows), y, rows};
    }

    // `count` rows of the product of x with the weights of `slots`, where the layout of the weights allows to
    // skip the others; else null.
    ggml_tensor* some_rows(size_t layer, std::span<const Slot> slots, ggml_tensor* x, int64_t first,
                           int64_t count) {
        if (weights_.factored(layer, slots) != nullptr) return nullptr;
        const LinearPlan& plan = weights_.linear(layer, slots).front();
        constexpr int64_t kRowsTogether = 16;  // of all layouts
        if (plan.slot_rows.size() != slots.size() || plan.kind != LinearPlan::Kind::whole ||
            plan.layout() == Layout::opaque || plan.runs.front().storage->fold > 1 ||
            first % kRowsTogether != 0 || count % kRowsTogether != 0)
            return nullptr;
        ggml_tensor* w = plan.runs.front().storage->tensor;
        ggml_tensor* y = product(
            ggml_view_2d(context_, w, w->ne[0], count, w->nb[1], static_cast<size_t>(first) * w->nb[1]),
            plan.layout(), x);
        if (plan.bias == nullptr) return y;
        return ggml_add(context_, y,
                        ggml_view_1d(context_, plan.bias, count, static_cast<size_t>(first) * sizeof(float)));
    }

    // The adapter of each row of x: a token of the step, or an output.
    ggml_tensor* adapters_of(size_t layer, Value x) {
        const bool all =
            shape_.kind == StepKind::network ? x.tensor->ne[1] == shape_.tokens : layer != kWholeModel;
        if (all) return step_.adapters_;
        if (adapters_of_outputs_ == nullptr)
            adapters_of_outputs_ = ggml_get_rows(
                context_, ggml_reshape_2d(context_, step_.adapters_, 1, shape_.tokens), step_.outputs_);
        return adapters_of_outputs_;
    }

    // Adds each row's own LoRA and biases, to neighbors of one product together.
    void add_terms(RowTerms& terms, ggml_tensor* sets, size_t layer, std::span<const Slot> slots, Value x,
                   std::span<Value> out) {
        for (size_t s = 0, count = 1; s < slots.size(); s += count) {
            count = 1;
            while (s + count < slots.size() && out[s + count - 1].followed_by(out[s + count])) ++count;
            ggml_tensor* y = out[s].whole != nullptr ? out[s].whole : out[s].tensor;
            ggml_tensor* sum =
                terms.add_to(context_, {layer, slots.subspan(s, count), out[s].row}, y, x.tensor, sets);
            if (sum == y) continue;
            for (Value& value : out.subspan(s, count)) {
                value = {count == 1 ? sum : rows_of(sum, value.row, value.tensor->ne[0]), sum, value.row};
            }
        }
    }

    // Rows after the first loop take their residual stream, src[1], in place of the embeddings.
    static void resume_rows(ggml_tensor* dst, int thread, int threads, void* /*user*/) {
        const ggml_tensor *residual = dst->src[1], *loops = dst->src[2];
        const auto [first, last] = thread_share(dst->ne[1], thread, threads);
        for (int64_t t = first; t < last; ++t) {
            if (static_cast<const int32_t*>(loops->data)[t] > 0)
                std::copy_n(static_cast<const float*>(residual->data) + t * dst->ne[0], dst->ne[0],
                            static_cast<float*>(dst->data) + t * dst->ne[0]);
        }
    }

    const StepGraph::Rows& rows(size_t layer) const {
        return network_.eviction.at(layer) ? step_.kept_ : step_.all_;
    }

    // Heads [first, first + count) of a cache, as far as this step reads its rows: [head_dim, cached, count].
    ggml_tensor* cached(size_t layer, int64_t first, int64_t count) {
        ggml_tensor* cache = cache_.layers[layer];
        return ggml_view_3d(context_, cache, config_.head_dim, rows(layer).cached, count, cache->nb[1],
                            cache->nb[2], static_cast<size_t>(first) * cache->nb[2]);
    }

    ggml_tensor* keys_of(size_t layer) { return cached(layer, 0, config_.n_head_kv_of(layer)); }
    // The cache's last heads: it may hold values only.
    ggml_tensor* values_of(size_t layer) {
        const int64_t heads = config_.n_head_kv_of(layer);
        return cached(layer, cache_.layers[layer]->ne[2] - heads, heads);
    }

    // The rows that the step's tokens see, or its outputs.
    ggml_tensor* seen_by(size_t layer, int64_t tokens) {
        return tokens == shape_.tokens ? rows(layer).seen : rows(layer).seen_by_outputs;
    }

    Value attend(size_t layer, Value q) {
        if (network_.eviction.scores(layer)) return attend_by_probabilities(layer, q);
        const int64_t tokens = q.tensor->ne[1], window = config_.window(layer);
        const float scale = config_.attention_scale_of(layer);
        ggml_tensor *keys = keys_of(layer), *values = values_of(layer);
        if (config_.causal)
            return {attention_.node(context_, q.tensor, keys, values, seen_by(layer, tokens), scale, window,
                                    heads_of_layer(layer))};
        ggml_tensor* attended =
            ggml_flash_attn_ext(context_, split_heads(q.tensor), keys, values, step_.mask(window, tokens),
                                scale, config_.max_alibi_bias, config_.attention_softcap);
        ggml_prec_set_acc(attended, GGML_PREC_F32);
        return {ggml_reshape_2d(context_, attended, config_.n_head_of(layer) * config_.head_dim, tokens)};
    }

    AttentionHeads heads_of_layer(size_t layer) const {
        AttentionHeads out{{}, weights_.vector(layer, Slot::attn_sinks)};
        const int64_t group = config_.q_per_kv();
        for (const int64_t kv : config_.alibi_heads_of(layer)) {
            for (int64_t h = kv * group; h < (kv + 1) * group; ++h) out.numbers.push_back(h);
        }
        return out;
    }

    Value attend_by_probabilities(size_t layer, Value q) {
        // Eviction counts the attention of all tokens, not just of the outputs.
        const bool scores = network_.eviction.scores(layer);
        ggml_tensor* queries = scores ? before_selection(q.tensor) : q.tensor;
        ggml_tensor* p = lent_[layer] = probabilities(layer, queries);
        if (scores) {
            ggml_tensor* sums = attention_.column_sums(context_, p, seen_by(layer, queries->ne[1]),
                                                       config_.window(layer), config_.n_head_kv_of(layer));
            ggml_set_output(sums);
            expand(sums);
            step_.scores_.push_back({layer, sums});
        }
        return weighted(layer, layer, queries != q.tensor);
    }

    ggml_tensor* before_selection(ggml_tensor* x) const { return x->ne[1] == shape_.tokens ? x : x->src[0]; }

    // [longest, tokens, heads]; kept as long as later layers of the step need them.
    ggml_tensor* probabilities(size_t layer, ggml_tensor* queries) {
        const bool observed = network_.observes(layer, Tap::probabilities);
        const bool precise = observed || cache_.layers[layer]->type == GGML_TYPE_F32;
        ggml_tensor* p = attention_.probabilities(
            context_, queries, keys_of(layer), seen_by(layer, queries->ne[1]),
            config_.attention_scale_of(layer), config_.window(layer), rows(layer).longest,
            precise ? GGML_TYPE_F32 : GGML_TYPE_F16, heads_of_layer(layer));
        if (observed) keep(layer, Tap::probabilities, p);
        return p;
    }

    // The layer's values weighted with the probabilities of `source`, for its tokens or, with `selected`, for
    // the outputs among them.
    Value weighted(size_t layer, size_t source, bool selected) {
        ggml_tensor* p = lent_.at(source);
        selected = selected && shape_.outputs < shape_.tokens;
        return {attention_.apply(context_, p, values_of(layer),
                                 seen_by(layer, selected ? shape_.outputs : p->ne[1]), config_.window(source),
                                 selected ? step_.outputs_ : nullptr)};
    }

    // Copies an activation for the observer, whose memory is reused otherwise.
    void keep(size_t layer, Tap tap, ggml_tensor* x) {
        ggml_tensor* copy = ggml_cont(context_, x);
        ggml_set_output(copy);
        expand(copy);
        step_.observed_.push_back({layer, tap, copy});
    }

    void expand(ggml_tensor* tensor) { ggml_build_forward_expand(step_.graph_, tensor); }

    ggml_tensor* rows_of(ggml_tensor* x, int64_t first, int64_t count) {
        return ggml_view_2d(context_, x, count, x->ne[1], x->nb[1], ggml_row_size(x->type, first));
    }

    // [head_dim, tokens, heads]
    ggml_tensor* split_heads(ggml_tensor* x) {
        const auto head_bytes = static_cast<size_t>(config_.head_dim) * sizeof(float);
        return ggml_view_3d(context_, x, config_.head_dim, x->ne[1], x->ne[0] / config_.head_dim, x->nb[1],
                            head_bytes, 0);
    }

    ggml_tensor* heads_of(ggml_tensor* cache, int64_t first, int64_t count) {
        return ggml_view_3d(context_, cache, cache->ne[0], cache->ne[1], count, cache->nb[1], cache->nb[2],
                            static_cast<size_t>(first) * cache->nb[2]);
    }

    // [width, groups, tokens]; x itself where it is one group.
    ggml_tensor* groups_of(ggml_tensor* x, int64_t width) {
        if (width == x->ne[0]) return x;
        return ggml_view_3d(context_, x, width, x->ne[0] / width, x->ne[1],
                            static_cast<size_t>(width) * sizeof(float), x->nb[1], 0);
    }

    // [head_dim, heads, tokens]
    ggml_tensor* heads_view(ggml_tensor* x) {
        const auto head_bytes = static_cast<size_t>(config_.head_dim) * sizeof(float);
        return ggml_view_3d(context_, x, config_.head_dim, x->ne[0] / config_.head_dim, x->ne[1], head_bytes,
                            x->nb[1], 0);
    }

    ggml_tensor* rotate_heads(size_t layer, ggml_tensor* x) {
        const Rope& r = config_.rope_of(layer);
        const bool stretched = shape_.stretched > 0 && r.long_factors;
        // Frequency factors apply to the model's main rotation only.
        ggml_tensor* factors =
            &r == &config_.rope
                ? weights_.vector(kWholeModel, stretched ? Slot::rope_freqs_long : Slot::rope_freqs)
                : nullptr;
        const float base = shape_.stretched > 0 ? r.base_for(shape_.stretched) : r.base;
        const int mode = r.kind == RopeKind::halves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
        return ggml_rope_ext_inplace(context_, heads_view(x), step_.positions_, factors, r.dims, mode,
                                     r.original_context, base, r.frequency_scale, r.ext_factor,
                                     r.attention_factor, r.beta_fast, r.beta_slow);
    }

    ggml_tensor* multiply(const LinearPlan& plan, ggml_tensor* x) {
        if (plan.kind == LinearPlan::Kind::whole) {
            const Storage& storage = *plan.runs.front().storage;
            return product(storage.tensor, storage.layout, x);
        }
        if (plan.kind == LinearPlan::Kind::panels)
            return step_.workspace_.panel_product.of_runs(context_, plan.panel_runs, plan.out, x);
        if (plan.kind == LinearPlan::Kind::composed) return composed(plan, x);
        if (plan.kind == LinearPlan::Kind::parts) return from_parts(plan, x);
        return ggml_custom_4d(context_, GGML_TYPE_F32, plan.out, x->ne[1], 1, 1, &x, 1,
                              head_runs::multiply_in_place, GGML_N_TASKS_MAX, const_cast<LinearPlan*>(&plan));
    }

    ggml_tensor* from_parts(const LinearPlan& plan, ggml_tensor* x) {
        std::vector<ggml_tensor*> products;
        for (const Run& run : plan.runs)
            products.push_back(product(run.storage->tensor, run.storage->layout, x));
        return rows_of_parts(context_, std::move(products), plan.row_ids);
    }

    // Multiplies by a whole matrix. Our operations give a token the same result whatever the number of
    // tokens; ggml's do not (products of floats).
    ggml_tensor* product(ggml_tensor* weight, Layout layout, ggml_tensor* x) {
        if (layout == Layout::panels) return step_.workspace_.panel_product.of_panels(context_, weight, x);
        if (layout == Layout::folded) return step_.workspace_.folded_product.multiply(context_, weight, x);
        if (layout == Layout::plain && step_.own_operations_)
            return head_runs::multiply_rows(context_, weight, x);
        return ggml_mul_mat(context_, weight, x);
    }

    // `source` is the input of the map's only term if it has just one.
    ggml_tensor* node(const factors::Product& map, size_t source, std::vector<ggml_tensor*> sources) {
        if (const Storage* storage = map.whole(sources[source]->ne[0]))
            return product(storage->tensor, storage->layout, sources[source]);
        return ggml_custom_4d(context_, GGML_TYPE_F32, map.out, sources[0]->ne[1], 1, 1, sources.data(),
                              static_cast<int>(sources.size()), factors::multiply, GGML_N_TASKS_MAX,
                              const_cast<factors::Product*>(&map));
    }

    // Up to three nodes, and ggml's for the stored weights. A group without a core has `first` in its place.
    void multiply_in_place(const FactoredPlan& plan, ggml_tensor* x, std::span<Value> out) {
        ggml_tensor* first = node(plan.first, FactoredPlan::kInput, {x});
        ggml_tensor* core = plan.core.empty() ? first : node(plan.core, FactoredPlan::kFirst, {x, first});
        std::vector<ggml_tensor*> sources = {x, first, core};
        for (const size_t stored : plan.separate) sources.push_back(multiply(plan.stored[stored].plan, x));
        ggml_tensor* y = node(plan.last, FactoredPlan::kFirst, sources);
        if (plan.bias != nullptr) y = ggml_add(context_, y, plan.bias);
        for (size_t s = 0; s < out.size(); ++s) {
            const factors::Segment& rows = plan.last.segments[s];
            out[s] = {out.size() == 1 ? y : rows_of(y, rows.first, rows.rows), y, rows.first};
        }
    }

    void multiply_composed(const FactoredPlan& plan, ggml_tensor* x, std::span<Value> out) {
        std::vector<ggml_tensor*> stored(out.size());
        for (const auto& part : plan.stored) {
            ggml_tensor* y = multiply(part.plan, x);
            int64_t row = 0;
            for (size_t s = 0; s < part.plan.slot_rows.size(); ++s) {
                stored[part.slot + s] = rows_of(y, row, part.plan.slot_rows[s]);
                row += part.plan.slot_rows[s];
            }
        }
        Composer composer(context_, plan, x,
                          step_.own_operations_ ? &step_.workspace_.panel_product : nullptr);
        for (size_t s = 0; s < out.size(); ++s) {
            ggml_tensor* y = composer.product(s, stored[s]);
            const factors::Segment& rows = plan.last.segments[s];
            if (plan.bias != nullptr) {
                y = ggml_add(context_, y,
                             ggml_view_1d(context_, plan.bias, rows.rows,
                                          static_cast<size_t>(rows.first) * sizeof(float)));
            }
            out[s] = {y};
        }
    }

    ggml_tensor* composed(const LinearPlan& plan, ggml_tensor* x) {
        ggml_tensor* result = nullptr;
        int64_t offset = 0;
        for (const Run& run : plan.runs) {
            ggml_tensor* w = run.storage->tensor;
            ggml_tensor* y = nullptr;
            if (plan.columns) {
                ggml_tensor* columns = ggml_view_2d(context_, w, run.count, w->ne[1], w->nb[1],
                                                    ggml_row_size(w->type, run.first));
                y = ggml_mul_mat(context_, columns, rows_of(x, offset, run.count));
                result = result == nullptr ? y : ggml_add(context_, result, y);
                offset += run.count;
            } else {
                const int64_t fold = run.storage->fold;
                ggml_tensor* rows = ggml_view_2d(context_, w, w->ne[0], run.count / fold, w->nb[1],
                                                 static_cast<size_t>(run.first / fold) * w->nb[1]);
                y = fold > 1 ? product(rows, Layout::folded, x) : ggml_mul_mat(context_, rows, x);
                result = result == nullptr ? y : ggml_concat(context_, result, y, 0);
            }
        }
        return result;
    }

    StepGraph& step_;
    const Network& network_;
    const ModelConfig& config_;
    const Weights& weights_;
    const KvCache& cache_;
    StepShape shape_;
    Attention& attention_;
    LoopWeights* loops_;  // null unless the step is by loop
    ggml_context* context_;
    std::map<size_t, ggml_tensor*> lent_;  // probabilities, by layer
    ggml_tensor* adapters_of_outputs_ = nullptr;
};

static_assert(LoopOps<GraphOps>);

}  // namespace refold
