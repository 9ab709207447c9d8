#include "engine/ggml/graph.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "engine/ggml/parts.h"

namespace refold {

// The operations of the forward pass (model/forward.h) as ggml nodes.
class GraphOps {
public:
    // A result, possibly some rows of a larger one that was computed together with its neighbours.
    struct Value {
        ggml_tensor* tensor = nullptr;  // [features, tokens]
        ggml_tensor* whole = nullptr;
        int64_t row = 0;

        bool followed_by(const Value& next) const {
            return whole != nullptr && whole == next.whole && row + tensor->ne[0] == next.row;
        }
    };

    GraphOps(StepGraph& step, const ModelConfig& config, const Weights& weights, const KvCache& cache,
             StepShape shape)
        : step_(step),
          config_(config),
          weights_(weights),
          cache_(cache),
          shape_(shape),
          context_(step.context_.get()) {}

    Value embed() { return {step_.embeddings_}; }

    Value norm(size_t position, Slot slot, Value x) {
        return {ggml_mul(context_, ggml_rms_norm(context_, x.tensor, config_.norm_eps),
                         weights_.vector(position, slot))};
    }

    void linear(size_t position, std::span<const Slot> slots, Value x, std::span<Value> out) {
        size_t next = 0;
        for (const LinearPlan& plan : weights_.linear(position, slots)) {
            ggml_tensor* y = multiply(plan, x.tensor);
            if (plan.bias != nullptr) y = ggml_add(context_, y, plan.bias);
            int64_t row = 0;
            for (const int64_t rows : plan.slot_rows) {
                out[next++] = {plan.slot_rows.size() == 1 ? y : rows_of(y, row, rows), y, row};
                row += rows;
            }
        }
    }

    void rope(Value& q, Value& k) {
        if (q.followed_by(k)) {
            // Neighbours in memory: one rotation over the heads of both.
            expand(rotate_heads(rows_of(q.whole, q.row, q.tensor->ne[0] + k.tensor->ne[0])));
        } else {
            expand(rotate_heads(q.tensor));
            expand(rotate_heads(k.tensor));
        }
    }

    Value attention(size_t position, Value q, Value k, Value v) {
        ggml_tensor* cache = cache_.positions[position];
        const int64_t heads = config_.n_head_kv;
        ggml_tensor* stored = nullptr;
        if (k.followed_by(v)) {
            stored = ggml_set_rows(context_, cache, split_heads(rows_of(k.whole, k.row, 2 * k.tensor->ne[0])),
                                   step_.rows_);
        } else {
            expand(ggml_set_rows(context_, heads_of(cache, 0, heads), split_heads(k.tensor), step_.rows_));
            stored =
                ggml_set_rows(context_, heads_of(cache, heads, heads), split_heads(v.tensor), step_.rows_);
        }
        expand(stored);  // before everything that reads the cache
        // Selected tokens are the last ones of the step.
        const int64_t tokens = q.tensor->ne[1], skipped = shape_.tokens - tokens;
        if (tokens <= DecodeAttention::kMaxTokens) {
            ggml_tensor* positions = ggml_view_1d(context_, step_.positions_, tokens,
                                                  static_cast<size_t>(skipped) * sizeof(int32_t));
            return {step_.attention_.node(context_, q.tensor, cache, positions)};
        }
        ggml_tensor* mask = ggml_view_2d(context_, step_.mask_, shape_.cached, tokens, step_.mask_->nb[1],
                                         static_cast<size_t>(skipped) * step_.mask_->nb[1]);
        const auto cached = [&](int64_t first_head) {  // [head_dim, cached tokens, n_head_kv]
            return ggml_view_3d(context_, cache, config_.head_dim, shape_.cached, heads, cache->nb[1],
                                cache->nb[2], static_cast<size_t>(first_head) * cache->nb[2]);
        };
        const float scale = 1.0F / std::sqrt(static_cast<float>(config_.head_dim));
        ggml_tensor* attended = ggml_flash_attn_ext(context_, split_heads(q.tensor), cached(0), cached(heads),
                                                    mask, scale, 0.0F, 0.0F);
        ggml_prec_set_acc(attended, GGML_PREC_F32);
        return {ggml_reshape_2d(context_, attended, config_.n_head * config_.head_dim, tokens)};
    }

    Value gated(Activation, Value gate, Value up) {
        if (gate.followed_by(up) && gate.row == 0 && gate.whole->ne[0] == 2 * gate.tensor->ne[0])
            return {ggml_swiglu(context_, gate.whole)};
        return {ggml_swiglu_split(context_, gate.tensor, up.tensor)};
    }

    Value add(Value a, Value b) { return {ggml_add(context_, a.tensor, b.tensor)}; }

    Value select_outputs(Value x) {
        if (shape_.outputs == shape_.tokens) return x;
        return {ggml_get_rows(context_, x.tensor, step_.outputs_)};
    }

private:
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

    ggml_tensor* rotate_heads(ggml_tensor* x) {
        const Rope& r = config_.rope;
        const auto head_bytes = static_cast<size_t>(config_.head_dim) * sizeof(float);
        ggml_tensor* heads = ggml_view_3d(context_, x, config_.head_dim, x->ne[0] / config_.head_dim,
                                          shape_.tokens, head_bytes, x->nb[1], 0);
        const int mode = r.kind == RopeKind::halves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
        return ggml_rope_ext_inplace(context_, heads, step_.positions_, weights_.rope_frequencies(), r.dims,
                                     mode, r.original_context, r.base, r.frequency_scale, r.ext_factor,
                                     r.attention_factor, r.beta_fast, r.beta_slow);
    }

    ggml_tensor* multiply(const LinearPlan& plan, ggml_tensor* x) {
        if (plan.kind == LinearPlan::Kind::whole)
            return ggml_mul_mat(context_, plan.runs.front().storage->tensor, x);
        if (plan.kind == LinearPlan::Kind::composed) return composed(plan, x);
        auto* user = const_cast<LinearPlan*>(&plan);
        if (x->ne[1] <= parts::kInPlaceTokens) {
            return ggml_custom_4d(context_, GGML_TYPE_F32, plan.out, x->ne[1], 1, 1, &x, 1,
                                  parts::multiply_in_place, GGML_N_TASKS_MAX, user);
        }
        // x among the sources keeps the gathering behind the last product that read the scratch.
        ggml_tensor* gathered =
            ggml_custom_inplace(context_, plan.scratch, &x, 1, parts::gather, GGML_N_TASKS_MAX, user);
        return ggml_mul_mat(context_, gathered, x);
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
                y = ggml_mul_mat(context_,
                                 ggml_view_2d(context_, w, w->ne[0], run.count, w->nb[1],
                                              static_cast<size_t>(run.first) * w->nb[1]),
                                 x);
                result = result == nullptr ? y : ggml_concat(context_, result, y, 0);
            }
        }
        return result;
    }

    StepGraph& step_;
    const ModelConfig& config_;
    const Weights& weights_;
    const KvCache& cache_;
    StepShape shape_;
    ggml_context* context_;
};

static_assert(ForwardOps<GraphOps>);

KvCache::KvCache(const ModelConfig& config, size_t n_positions, int64_t length, ggml_type type)
    : context(make_context(n_positions)) {
    for (size_t p = 0; p < n_positions; ++p) {
        positions.push_back(
            ggml_new_tensor_3d(context.get(), type, config.head_dim, length, 2 * config.n_head_kv));
    }
    buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(context.get(), ggml_backend_cpu_buffer_type()));
    if (!buffer) {
        fail(ErrorCode::io, "engine",
             "cannot allocate the KV cache of {} tokens: not enough memory - use a smaller --context",
             length);
    }
    advise_large_pages(buffer.get());
    // Padding rows are masked out, but 0 x NaN would not be.
    ggml_backend_buffer_clear(buffer.get(), 0);
}

void StepGraph::prepare(const ModelConfig& config, size_t n_positions, const Weights& weights,
                        const KvCache& cache, StepShape shape) {
    if (context_ && shape == shape_) return;
    shape_ = shape;
    constexpr size_t kNodesPerPosition = 64, kNodesAround = 64;
    const size_t nodes = n_positions * kNodesPerPosition + kNodesAround;
    context_ = make_context(2 * nodes, ggml_graph_overhead_custom(nodes, false));
    ggml_context* c = context_.get();
    graph_ = ggml_new_graph_custom(c, nodes, false);
    const auto input = [&](ggml_tensor* tensor) {
        ggml_set_input(tensor);
        return tensor;
    };
    embeddings_ = input(ggml_new_tensor_2d(c, GGML_TYPE_F32, config.n_embd, shape.tokens));
    positions_ = input(ggml_new_tensor_1d(c, GGML_TYPE_I32, shape.tokens));
    rows_ = input(ggml_new_tensor_1d(c, GGML_TYPE_I64, shape.tokens));
    mask_ = input(ggml_new_tensor_2d(c, GGML_TYPE_F16, shape.cached, shape.tokens));
    outputs_ = input(ggml_new_tensor_1d(c, GGML_TYPE_I32, shape.outputs));
    for (ggml_tensor* tensor : {embeddings_, positions_, rows_, mask_, outputs_})
        ggml_build_forward_expand(graph_, tensor);
    GraphOps ops(*this, config, weights, cache, shape);
    logits_ = forward(ops, config, n_positions).tensor;
    ggml_set_output(logits_);
    ggml_build_forward_expand(graph_, logits_);
    if (!ggml_gallocr_alloc_graph(allocator_.get(), graph_)) {
        fail(ErrorCode::io, "engine", "cannot allocate the activations of {} tokens: not enough memory",
             shape.tokens);
    }
    advise_large_pages(embeddings_->buffer);
}

void StepGraph::compute(int64_t past, ggml_threadpool* pool) {
    auto* positions = static_cast<int32_t*>(positions_->data);
    auto* rows = static_cast<int64_t*>(rows_->data);
    auto* mask = static_cast<ggml_fp16_t*>(mask_->data);
    const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0F), hidden = ggml_fp32_to_fp16(-INFINITY);
    for (int64_t t = 0; t < shape_.tokens; ++t) {
        positions[t] = static_cast<int32_t>(past + t);
        rows[t] = past + t;
        ggml_fp16_t* row = mask + t * shape_.cached;
        std::fill(row, row + past + t + 1, visible);
        std::fill(row + past + t + 1, row + shape_.cached, hidden);
    }
    auto* outputs = static_cast<int32_t*>(outputs_->data);
    for (int64_t i = 0; i < shape_.outputs; ++i)
        outputs[i] = static_cast<int32_t>(shape_.tokens - shape_.outputs + i);
    ggml_cplan plan = ggml_graph_plan(graph_, threads_, pool);
    if (work_.size() < plan.work_size) work_.resize(plan.work_size);
    plan.work_data = work_.data();
    if (ggml_graph_compute(graph_, &plan) != GGML_STATUS_SUCCESS)
        fail(ErrorCode::internal, "engine", "ggml could not compute the graph");
}

uint64_t StepGraph::compute_bytes() const {
    return ggml_gallocr_get_buffer_size(allocator_.get(), 0) + work_.size();
}

}  // namespace refold
