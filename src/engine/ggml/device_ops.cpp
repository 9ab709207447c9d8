#include "engine/ggml/device_ops.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "engine/ggml/composed.h"
#include "model/rotation.h"

namespace refold {

static_assert(LoopOps<DeviceOps>);

DeviceOps::DeviceOps(StepGraph& step, const Weights& weights, const KvCache& cache, const StepShape& shape)
    : step_(step),
      network_(step.network_),
      config_(network_.config),
      weights_(weights),
      cache_(cache),
      run_(*step.workspace_.device),
      shape_(shape),
      loops_(shape.kind == StepKind::network ? nullptr : step.workspace_.device_loops.get()),
      adapters_(shape.adapted ? step.workspace_.device_adapters.get() : nullptr),
      context_(step.context_.get()) {}

// ---- shapes ----

ggml_tensor* DeviceOps::contiguous(ggml_tensor* x) {
    return ggml_is_contiguous(x) ? x : ggml_cont(context_, x);
}

ggml_tensor* DeviceOps::rows_of(ggml_tensor* x, int64_t first, int64_t count) {
    return ggml_view_2d(context_, x, count, x->ne[1], x->nb[1], ggml_row_size(x->type, first));
}

ggml_tensor* DeviceOps::groups_of(ggml_tensor* x, int64_t width) {
    return ggml_reshape_3d(context_, contiguous(x), width, x->ne[0] / width, x->ne[1]);
}

ggml_tensor* DeviceOps::flat(ggml_tensor* x) {
    return ggml_reshape_2d(context_, x, x->ne[0] * x->ne[1], x->ne[2]);
}

ggml_tensor* DeviceOps::split_heads(ggml_tensor* x) {
    return ggml_permute(context_, groups_of(x, config_.head_dim), 0, 2, 1, 3);
}

DeviceOps::Value DeviceOps::part(Value x, int64_t first, int64_t count) {
    return {contiguous(rows_of(x.tensor, first, count))};
}

DeviceOps::Value DeviceOps::join(std::span<const Value> values) {
    ggml_tensor* all = values.front().tensor;
    for (const Value& value : values.subspan(1)) all = ggml_concat(context_, all, value.tensor, 0);
    return {all};
}

DeviceOps::Value DeviceOps::select_outputs(Value x) {
    // Steps by loop may want them in another order.
    if (shape_.outputs == shape_.tokens && shape_.kind == StepKind::network) return x;
    return {ggml_get_rows(context_, x.tensor, step_.outputs_)};
}

DeviceOps::Value DeviceOps::select_first(Value x) {
    return {ggml_view_2d(context_, x.tensor, x.tensor->ne[0], 1, x.tensor->nb[1], 0)};
}

void DeviceOps::expand(ggml_tensor* tensor) { ggml_build_forward_expand(step_.graph_, tensor); }

// ---- inputs and results ----

DeviceOps::Value DeviceOps::embed(Slot table) {
    ggml_tensor*& rows = step_.tables_[table];
    rows = step_.input(
        ggml_new_tensor_2d(context_, GGML_TYPE_F32, slot_shape(table, config_).in, shape_.tokens));
    return {rows};
}

std::optional<DeviceOps::Value> DeviceOps::given_input() {
    if (!shape_.residual) return std::nullopt;
    step_.residual_ = step_.input(ggml_new_tensor_2d(context_, GGML_TYPE_F32, config_.n_embd, shape_.tokens));
    return Value{step_.residual_};
}

void DeviceOps::tap(size_t layer, Tap tap, Value x) {
    if (network_.observes(layer, tap)) keep(layer, tap, x.tensor);
}

void DeviceOps::keep(size_t layer, Tap tap, ggml_tensor* x) {
    ggml_tensor* copy = ggml_cont(context_, x);
    ggml_set_output(copy);
    expand(copy);
    step_.observed_.push_back({layer, tap, copy});
}

// ---- norms and functions ----

DeviceOps::Value DeviceOps::norm(size_t layer, Slot slot, Value x) {
    ggml_tensor* weight = weights_.vector(layer, slot);
    const int64_t width = normalized_width(slot, config_, layer), all = x.tensor->ne[0];
    ggml_tensor* groups = width == all ? contiguous(x.tensor) : groups_of(x.tensor, width);
    ggml_tensor* y = config_.norm == NormKind::rms ? ggml_rms_norm(context_, groups, config_.norm_eps)
                                                   : ggml_norm(context_, groups, config_.norm_eps);
    if (width != all && weight->ne[0] == all) y = flat(y);
    // A vector of every token's loop.
    const auto own = [&](Slot s) {
        ggml_tensor* vectors = loops_->vectors(context_, layer, s, step_.loops_);
        return ggml_n_dims(y) > 2 ? ggml_reshape_3d(context_, vectors, vectors->ne[0], 1, vectors->ne[1])
                                  : vectors;
    };
    const auto differs = [&](Slot s) { return loops_ != nullptr && loops_->differs(layer, s); };
    y = ggml_mul(context_, y, differs(slot) ? own(slot) : weight);
    if (const auto bias = bias_of(slot); bias && has(layer, *bias))
        y = ggml_add(context_, y, differs(*bias) ? own(*bias) : weights_.vector(layer, *bias));
    return {ggml_n_dims(y) > 2 || y->ne[0] != all ? flat(y) : y};
}

DeviceOps::Value DeviceOps::normalized(Value x, int64_t width) {
    return {flat(ggml_rms_norm(context_, groups_of(x.tensor, width), config_.norm_eps))};
}

DeviceOps::Value DeviceOps::scale_features(size_t layer, Slot slot, Value x) {
    return {ggml_mul(context_, x.tensor, weights_.vector(layer, slot))};
}

DeviceOps::Value DeviceOps::divide_by_row_norms(Slot, Value x) {
    return {ggml_mul(context_, x.tensor, weights_.inverse_output_norms())};
}

DeviceOps::Value DeviceOps::softcap(Value x, float cap) {
    return {ggml_scale(context_, ggml_tanh(context_, ggml_scale(context_, x.tensor, 1.0F / cap)), cap)};
}

// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). ggml's own operation takes it from a table of F16 on the
// CPU, which loses three digits.
ggml_tensor* DeviceOps::gelu_tanh(ggml_tensor* x) {
    if (!run_.has_cpu()) return ggml_gelu(context_, x);
    constexpr float kCube = 0.044715F, kScale = 0.7978845608F;
    ggml_tensor* inner = ggml_scale_bias(context_, ggml_sqr(context_, x), kScale * kCube, kScale);
    ggml_tensor* part =
        ggml_scale_bias(context_, ggml_tanh(context_, ggml_mul(context_, inner, x)), 0.5F, 0.5F);
    return ggml_mul(context_, part, x);
}

DeviceOps::Value DeviceOps::activate(Activation activation, Value x) {
    ggml_tensor* rows = contiguous(x.tensor);
    switch (activation) {
        case Activation::silu: return {ggml_silu(context_, rows)};
        case Activation::gelu: return {ggml_gelu_erf(context_, rows)};
        case Activation::gelu_tanh: return {gelu_tanh(rows)};
        case Activation::relu: return {ggml_relu(context_, rows)};
        case Activation::relu_squared: return {ggml_sqr(context_, ggml_relu(context_, rows))};
        default: return {ggml_tanh(context_, rows)};
    }
}

DeviceOps::Value DeviceOps::gated(Activation activation, Value gate, Value up) {
    ggml_tensor *g = gate.tensor, *u = up.tensor;
    switch (activation) {
        case Activation::silu: return {ggml_swiglu_split(context_, g, u)};
        case Activation::gelu_tanh:
            if (!run_.has_cpu()) return {ggml_geglu_split(context_, g, u)};
            return {ggml_mul(context_, gelu_tanh(contiguous(g)), u)};
        case Activation::gelu: return {ggml_geglu_erf_split(context_, g, u)};
        case Activation::relu: return {ggml_reglu_split(context_, g, u)};
        case Activation::swiglu_clamped: return {ggml_swiglu_oai(context_, g, u, kSwigluAlpha, kSwigluLimit)};
        default: return {ggml_mul(context_, activate(activation, gate).tensor, u)};
    }
}

DeviceOps::Value DeviceOps::with_rms_of(Value x, Value y) {
    const auto mean_square = [&](ggml_tensor* t) { return ggml_mean(context_, ggml_sqr(context_, t)); };
    ggml_tensor* own = ggml_clamp(context_, mean_square(x.tensor), kLeastSquare, INFINITY);
    ggml_tensor* factor = ggml_sqrt(context_, ggml_div(context_, mean_square(y.tensor), own));
    return {ggml_mul(context_, x.tensor, factor)};
}

DeviceOps::Value DeviceOps::cut(size_t layer, Value gate) {
    ggml_tensor* mean = ggml_mean(context_, gate.tensor);
    ggml_tensor* from_mean = ggml_sub(context_, gate.tensor, mean);
    ggml_tensor* deviation = ggml_sqrt(context_, ggml_mean(context_, ggml_sqr(context_, from_mean)));
    return {ggml_relu(
        context_, ggml_sub(context_, from_mean, ggml_scale(context_, deviation, config_.ffn_cuts[layer])))};
}

DeviceOps::Value DeviceOps::mix(Value x, Value coefficients) {
    const int64_t width = config_.n_embd, from = x.tensor->ne[0] / width,
                  to = coefficients.tensor->ne[0] / from;
    ggml_tensor* streams = ggml_cont(context_, ggml_transpose(context_, groups_of(x.tensor, width)));
    return {flat(ggml_mul_mat(
        context_, streams,
        ggml_reshape_3d(context_, contiguous(coefficients.tensor), from, to, coefficients.tensor->ne[1])))};
}

DeviceOps::Value DeviceOps::add_to_each(Value x, int64_t first, Value y) {
    const int64_t width = y.tensor->ne[0], tokens = y.tensor->ne[1], rest = x.tensor->ne[0] - first;
    ggml_tensor* each = groups_of(rows_of(x.tensor, first, rest), width);
    ggml_tensor* sum =
        flat(ggml_add(context_, each, ggml_reshape_3d(context_, contiguous(y.tensor), width, 1, tokens)));
    return {first == 0 ? sum : ggml_concat(context_, rows_of(x.tensor, 0, first), sum, 0)};
}

// ---- linear maps ----

void DeviceOps::linear(size_t layer, std::span<const Slot> slots, Value x, std::span<Value> out) {
    ggml_tensor* in = contiguous(x.tensor);
    base_linear(layer, slots, in, out);
    if (loops_ != nullptr) add_terms(*loops_, step_.loops_, layer, slots, in, out);
    if (adapters_ != nullptr) add_terms(*adapters_, adapters_of(layer, in), layer, slots, in, out);
}

void DeviceOps::add_terms(DeviceTerms& terms, ggml_tensor* sets, size_t layer, std::span<const Slot> slots,
                          ggml_tensor* x, std::span<Value> out) {
    for (size_t s = 0; s < slots.size(); ++s)
        out[s].tensor = terms.add_to(context_, layer, slots[s], out[s].tensor, x, sets);
}

ggml_tensor* DeviceOps::of_outputs(ggml_tensor*& sets) {
    if (sets == nullptr) sets = step_.input(ggml_new_tensor_1d(context_, GGML_TYPE_I32, shape_.outputs));
    return sets;
}

// The adapter of each row of x: a token of the step, or an output.
ggml_tensor* DeviceOps::adapters_of(size_t layer, ggml_tensor* x) {
    const bool all = shape_.kind == StepKind::network ? x->ne[1] == shape_.tokens : layer != kWholeModel;
    return all ? step_.adapters_ : of_outputs(step_.adapters_of_outputs_);
}

// y + W x of the selected tokens, with the W of each one's loop.
DeviceOps::Value DeviceOps::add_exit_term(size_t layer, Slot slot, Value x, Value y) {
    return {loops_->add_to(context_, layer, slot, y.tensor, x.tensor, of_outputs(step_.loops_of_outputs_))};
}

// Tokens after their first loop take their residual stream in place of x.
DeviceOps::Value DeviceOps::resume(Value x) {
    step_.residual_ = step_.input(ggml_new_tensor_2d(context_, GGML_TYPE_F32, config_.n_embd, shape_.tokens));
    step_.resumed_ = step_.input(ggml_new_tensor_2d(context_, GGML_TYPE_F32, 1, shape_.tokens));
    ggml_tensor* begun = ggml_scale_bias(context_, step_.resumed_, -1.0F, 1.0F);
    return {ggml_add(context_, ggml_mul(context_, x.tensor, begun),
                     ggml_mul(context_, step_.residual_, step_.resumed_))};
}

// A product for each slot: the results are contiguous.
void DeviceOps::base_linear(size_t layer, std::span<const Slot> slots, ggml_tensor* in,
                            std::span<Value> out) {
    if (slots[0] == Slot::attn_k) {
        // They are planned with the queries, whose product is not added to the graph.
        constexpr auto kQkv = product_group(Slot::attn_k);
        std::array<Value, kQkv.size()> all{};
        base_linear(layer, kQkv, in, all);
        std::copy(all.begin() + 1, all.end(), out.begin());
        return;
    }
    if (const FactoredPlan* plan = weights_.factored(layer, slots))
        return factored_linear(*plan, slots, in, out);
    size_t next = 0;
    for (const LinearPlan& plan : weights_.linear(layer, slots)) {
        int64_t row = 0;
        for (ggml_tensor* y : products(plan, slots.subspan(next), in)) {
            const int64_t rows = y->ne[0];
            if (plan.bias != nullptr)
                y = ggml_add(
                    context_, y,
                    ggml_view_1d(context_, plan.bias, rows, static_cast<size_t>(row) * sizeof(float)));
            out[next++] = {y};
            row += rows;
        }
    }
}

std::vector<ggml_tensor*> DeviceOps::products(const LinearPlan& plan, std::span<const Slot> slots,
                                              ggml_tensor* x) {
    std::vector<ggml_tensor*> out;
    int64_t row = 0;
    const auto by_slot = [&](const auto& rows_from) {
        for (const int64_t rows : plan.slot_rows) {
            out.push_back(rows_from(row, rows));
            row += rows;
        }
    };
    const HeadBank& bank = plan.bank;
    const int64_t tokens = x->ne[1];
    // Of one token, the parts of a result are contiguous.
    const bool fused =
        plan.kind == LinearPlan::Kind::whole && !plan.columns && slots[0] == Slot::attn_q && tokens == 1;
    if (fused) {
        ggml_tensor* y = product(plan, x, 0, plan.out);
        by_slot([&](int64_t first, int64_t count) { return rows_of(y, first, count); });
    } else if (bank.blocks == nullptr) {
        by_slot([&](int64_t first, int64_t count) { return product(plan, x, first, count); });
    } else if (tokens <= HeadBank::kFewTokens) {
        ggml_tensor* numbers =
            ggml_view_2d(context_, bank.numbers, bank.numbers->ne[0], tokens, bank.numbers->nb[1], 0);
        ggml_tensor* y =
            ggml_mul_mat_id(context_, bank.blocks, ggml_reshape_3d(context_, x, plan.in, 1, tokens), numbers);
        y = ggml_reshape_2d(context_, y, plan.out, tokens);
        by_slot([&](int64_t first, int64_t count) { return contiguous(rows_of(y, first, count)); });
    } else {
        ggml_tensor* w = gathered(plan);
        by_slot([&](int64_t first, int64_t count) {
            return ggml_mul_mat(
                context_,
                ggml_view_2d(context_, w, plan.in, count, w->nb[1], static_cast<size_t>(first) * w->nb[1]),
                x);
        });
    }
    return out;
}

// Blocks are copied as words, whatever the type: ggml_get_rows() would make floats of them.
ggml_tensor* DeviceOps::gathered(const LinearPlan& plan) {
    const HeadBank& bank = plan.bank;
    ggml_tensor* words = ggml_get_rows(context_, bank.words, bank.pieces);
    ggml_tensor* w = ggml_view_1d(context_, words, ggml_nelements(words), 0);
    w->type = plan.type();
    w->ne[0] = plan.in;
    w->ne[1] = plan.out;
    w->nb[0] = ggml_type_size(w->type);
    w->nb[1] = ggml_row_size(w->type, plan.in);
    w->nb[2] = w->nb[3] = w->nb[1] * static_cast<size_t>(plan.out);
    return w;
}

ggml_tensor* DeviceOps::product(const LinearPlan& plan, ggml_tensor* x, int64_t first, int64_t count) {
    if (plan.columns && plan.kind == LinearPlan::Kind::whole)
        return ggml_mul_mat(context_, plan.runs.front().storage->tensor, x);
    if (plan.columns) return column_product(plan, x);
    if (plan.kind == LinearPlan::Kind::parts) return product_of_parts(plan, x);
    ggml_tensor* all = nullptr;
    int64_t before = 0;
    for (const Run& run : plan.runs) {
        const int64_t from = std::max(before, first), to = std::min(before + run.count, first + count);
        if (from < to) {
            ggml_tensor* w = run.storage->tensor;
            ggml_tensor* rows = ggml_view_2d(context_, w, w->ne[0], to - from, w->nb[1],
                                             static_cast<size_t>(run.first + from - before) * w->nb[1]);
            ggml_tensor* y = ggml_mul_mat(context_, to - from == w->ne[1] ? w : rows, x);
            all = all == nullptr ? y : ggml_concat(context_, all, y, 0);
        }
        before += run.count;
    }
    return all;
}

ggml_tensor* DeviceOps::column_product(const LinearPlan& plan, ggml_tensor* x) {
    ggml_tensor* sum = nullptr;
    int64_t offset = 0;
    for (const Run& run : plan.runs) {
        ggml_tensor* w = run.storage->tensor;
        ggml_tensor* columns =
            ggml_view_2d(context_, w, run.count, w->ne[1], w->nb[1], ggml_row_size(w->type, run.first));
        // ggml's module for Vulkan would round what is not contiguous to F16.
        if (w->type == GGML_TYPE_F32) columns = contiguous(columns);
        ggml_tensor* y = ggml_mul_mat(context_, columns, contiguous(rows_of(x, offset, run.count)));
        sum = sum == nullptr ? y : ggml_add(context_, sum, y);
        offset += run.count;
    }
    return sum;
}

ggml_tensor* DeviceOps::product_of_parts(const LinearPlan& plan, ggml_tensor* x) {
    ggml_tensor* all = nullptr;
    for (const Run& run : plan.runs) {
        ggml_tensor* y = ggml_mul_mat(context_, run.storage->tensor, x);
        all = all == nullptr ? y : ggml_concat(context_, all, y, 0);
    }
    // Row r of W is row place[r] of the parts.
    std::vector<int32_t> place(plan.row_ids.size());
    for (size_t i = 0; i < place.size(); ++i)
        place[static_cast<size_t>(plan.row_ids[i])] = static_cast<int32_t>(i);
    ggml_tensor* ids = step_.constant(place);
    ggml_tensor* turned = ggml_cont(context_, ggml_transpose(context_, all));
    return ggml_cont(context_, ggml_transpose(context_, ggml_get_rows(context_, turned, ids)));
}

void DeviceOps::factored_linear(const FactoredPlan& plan, std::span<const Slot> slots, ggml_tensor* x,
                                std::span<Value> out) {
    std::vector<ggml_tensor*> stored(out.size());
    for (const auto& part : plan.stored) {
        std::ranges::copy(products(part.plan, slots.subspan(part.slot), x),
                          stored.begin() + static_cast<ptrdiff_t>(part.slot));
    }
    Composer composer(context_, plan, x, nullptr);
    for (size_t s = 0; s < out.size(); ++s) {
        ggml_tensor* y = composer.product(s, stored[s]);
        const factors::Segment& rows = plan.last.segments[s];
        if (plan.bias != nullptr)
            y = ggml_add(context_, y,
                         ggml_view_1d(context_, plan.bias, rows.rows,
                                      static_cast<size_t>(rows.first) * sizeof(float)));
        out[s] = {contiguous(y)};
    }
}

DeviceOps::Value DeviceOps::linear_by_part(size_t layer, Slot slot, Value x) {
    const std::array slots = {slot};
    const SlotShape shape = slot_shape(slot, config_, layer);
    const int64_t parts = x.tensor->ne[0] / shape.in, rows = shape.out / parts;
    std::vector<Value> out;
    for (int64_t p = 0; p < parts; ++p) {
        Value y;
        linear(layer, slots, part(x, p * shape.in, shape.in), {&y, 1});
        out.push_back(part(y, p * rows, rows));
    }
    return join(out);
}

// ---- experts ----

DeviceOps::Value DeviceOps::route(Value scores) {
    const int64_t used = config_.n_expert_used, tokens = scores.tensor->ne[1], experts = scores.tensor->ne[0];
    ggml_tensor* numbers = ggml_argsort_top_k(context_, scores.tensor, static_cast<int>(used));
    const auto pick = [&](ggml_tensor* from) {
        return ggml_reshape_2d(
            context_, ggml_get_rows(context_, ggml_reshape_3d(context_, from, 1, experts, tokens), numbers),
            used, tokens);
    };
    ggml_tensor* weights = config_.norm_expert_weights ? ggml_soft_max(context_, pick(scores.tensor))
                                                       : pick(ggml_soft_max(context_, scores.tensor));
    return {nullptr, {numbers, ggml_reshape_3d(context_, weights, 1, used, tokens)}};
}

ggml_tensor* DeviceOps::product_of_experts(const ExpertPlan::Weights& weights, const Storage* storage,
                                           ggml_tensor* in, ggml_tensor* numbers) {
    ggml_tensor* w = storage->tensor;
    const int64_t rows = weights.rows, used = numbers->ne[0], tokens = numbers->ne[1],
                  experts = static_cast<int64_t>(weights.experts.size());
    // The matrices of all experts [in, rows, experts], and where each expert's is.
    ggml_tensor* matrices = ggml_view_3d(context_, w, w->ne[0], rows, w->ne[1] / rows, w->nb[1],
                                         static_cast<size_t>(rows) * w->nb[1], 0);
    std::vector<int32_t> places, there;
    for (const Run& run : weights.experts) {
        const bool here = run.storage == storage;
        if (here && run.first % rows != 0)
            fail(ErrorCode::unsupported, "engine",
                 "experts that are no whole number of matrices apart run on the CPU only - use --device cpu");
        there.push_back(here ? 1 : 0);
        places.push_back(here ? static_cast<int32_t>(run.first / rows) : 0);
    }
    const auto of_uses = [&](std::span<const int32_t> by_expert) {
        ggml_tensor* table = ggml_reshape_2d(context_, step_.constant(by_expert), 1, experts);
        ggml_tensor* asked = ggml_reshape_1d(context_, ggml_cont(context_, numbers), used * tokens);
        return ggml_reshape_2d(context_, ggml_get_rows(context_, table, asked), used, tokens);
    };
    bool in_order = true;
    for (size_t e = 0; e < places.size(); ++e) in_order = in_order && places[e] == static_cast<int32_t>(e);
    ggml_tensor* y = ggml_mul_mat_id(context_, matrices, in, in_order ? numbers : of_uses(places));
    if (std::ranges::count(there, 0) == 0) return y;
    ggml_tensor* own = ggml_cast(context_, of_uses(there), GGML_TYPE_F32);
    return ggml_mul(context_, y, ggml_reshape_3d(context_, own, 1, used, tokens));
}

void DeviceOps::expert_linear(size_t layer, std::span<const Slot> slots, Value x, Value routes,
                              std::span<Value> out) {
    const ExpertPlan& plan = weights_.experts(layer, slots);
    ggml_tensor* numbers = routes.routes.experts;
    const int64_t used = numbers->ne[0], tokens = numbers->ne[1];
    // One row for all experts of a token, or one for each.
    ggml_tensor* in = ggml_reshape_3d(context_, contiguous(x.tensor), plan.in,
                                      ggml_nelements(x.tensor) / plan.in / tokens, tokens);
    for (size_t s = 0; s < out.size(); ++s) {
        std::vector<const Storage*> storages;
        ggml_tensor* y = nullptr;
        for (const Run& run : plan.slots[s].experts) {
            if (std::ranges::find(storages, run.storage) != storages.end()) continue;
            storages.push_back(run.storage);
            ggml_tensor* part = product_of_experts(plan.slots[s], run.storage, in, numbers);
            y = y == nullptr ? part : ggml_add(context_, y, part);
        }
        if (ggml_tensor* bias = plan.slots[s].bias; bias != nullptr) {
            const int64_t rows = plan.slots[s].rows;
            y = ggml_add_id(context_, y, ggml_reshape_2d(context_, bias, rows, ggml_nelements(bias) / rows),
                            numbers);
        }
        out[s] = {ggml_reshape_2d(context_, y, y->ne[0], used * tokens)};
    }
}

DeviceOps::Value DeviceOps::combine(Value uses, Value routes) {
    ggml_tensor* weights = routes.routes.weights;
    const int64_t features = uses.tensor->ne[0], used = weights->ne[1], tokens = weights->ne[2];
    ggml_tensor* all =
        ggml_mul(context_, ggml_reshape_3d(context_, uses.tensor, features, used, tokens), weights);
    ggml_tensor* sum = nullptr;
    for (int64_t i = 0; i < used; ++i) {
        ggml_tensor* one =
            ggml_view_2d(context_, all, features, tokens, all->nb[2], static_cast<size_t>(i) * all->nb[1]);
        sum = sum == nullptr ? one : ggml_add(context_, sum, one);
    }
    return {contiguous(sum)};
}

// ---- attention ----

void DeviceOps::rope(size_t layer, Value& q, Value& k) {
    rope(layer, q);
    rope(layer, k);
}

// By frequencies that are worked out here in double precision: a device computes powers in float32, whose
// error grows with the position.
void DeviceOps::rope(size_t layer, Value& q) {
    const Rope& r = config_.rope_of(layer);
    const int mode = r.kind == RopeKind::halves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    q.tensor = flat(ggml_rope_ext(context_, groups_of(q.tensor, config_.head_dim), step_.positions_,
                                  periods(r), r.dims, mode, 0, 1.0F, 1.0F, 0.0F,
                                  static_cast<float>(rotation_magnitude(r)), 0.0F, 0.0F));
}

ggml_tensor* DeviceOps::periods(const Rope& r) {
    ggml_tensor*& periods = periods_[&r];
    if (periods != nullptr) return periods;
    // Divisors apply to the model's main rotation only.
    const bool stretched = shape_.stretched > 0 && r.long_factors;
    const ggml_tensor* divisors =
        &r == &config_.rope
            ? weights_.vector(kWholeModel, stretched ? Slot::rope_freqs_long : Slot::rope_freqs)
            : nullptr;
    std::vector<float> values(divisors == nullptr ? 0 : static_cast<size_t>(divisors->ne[0]));
    if (divisors != nullptr) ggml_backend_tensor_get(divisors, values.data(), 0, ggml_nbytes(divisors));
    std::vector<float> out;
    for (const double frequency : rotation_frequencies(r, shape_.stretched, values))
        out.push_back(static_cast<float>(1 / frequency));
    // ggml reads one for each pair of a head, rotated or not.
    out.resize(static_cast<size_t>(config_.head_dim / 2), 1.0F);
    return periods = step_.constant(out);
}

void DeviceOps::store_heads(size_t layer, int64_t first_head, ggml_tensor* x) {
    ggml_tensor* cache = cache_.layers[layer];
    ggml_tensor* heads =
        ggml_view_3d(context_, cache, cache->ne[0], cache->ne[1], x->ne[0] / config_.head_dim, cache->nb[1],
                     cache->nb[2], static_cast<size_t>(first_head) * cache->nb[2]);
    expand(ggml_set_rows(context_, heads, split_heads(x), rows(layer).written));
}

void DeviceOps::store(size_t layer, Value k, Value v) {
    store_heads(layer, 0, k.tensor);
    store_heads(layer, config_.n_head_kv_of(layer), v.tensor);
}

void DeviceOps::store(size_t layer, Value v) { store_heads(layer, 0, v.tensor); }

std::vector<DeviceOps::Group> DeviceOps::sequence_groups(size_t layer, int64_t tokens) const {
    const bool outputs = tokens < shape_.tokens;
    std::vector<Group> out;
    size_t first = 0;
    for (const SequenceGroup& group : (outputs ? shape_.output_groups : shape_.groups).groups) {
        out.push_back({group, outputs, out.size(), first});
        first += static_cast<size_t>(group.queries());
    }
    if (out.empty()) out.push_back({{.tokens = tokens, .rows = rows(layer).cached}, outputs});
    return out;
}

template <class Function>
DeviceOps::Value DeviceOps::by_group(size_t layer, int64_t tokens, ggml_tensor* q, Function function) {
    const bool outputs = tokens < shape_.tokens;
    const GroupedSequences::Shape& shape = outputs ? shape_.output_groups : shape_.groups;
    const std::vector<Group> groups = sequence_groups(layer, tokens);
    StepGraph::Order& order = outputs ? step_.output_order_ : step_.order_;
    if (!shape.in_order && order.tokens == nullptr) {
        const auto queries = static_cast<int64_t>(groups.back().first_query) + groups.back().rows.queries();
        order = {step_.input(ggml_new_tensor_1d(context_, GGML_TYPE_I32, queries)),
                 step_.input(ggml_new_tensor_1d(context_, GGML_TYPE_I32, tokens))};
    }
    if (!shape.in_order && q != nullptr) q = ggml_get_rows(context_, contiguous(q), order.tokens);
    ggml_tensor* all = nullptr;
    for (const Group& group : groups) {
        ggml_tensor* part = nullptr;
        if (q != nullptr) {
            const int64_t heads = q->ne[0] / config_.head_dim;
            part = groups.size() == 1 ? q
                                      : ggml_view_2d(context_, q, q->ne[0], group.rows.queries(), q->nb[1],
                                                     group.first_query * q->nb[1]);
            part = ggml_permute(context_,
                                ggml_reshape_4d(context_, contiguous(part), config_.head_dim, heads,
                                                group.rows.tokens, group.rows.sequences),
                                0, 2, 1, 3);
        }
        ggml_tensor* y = function(group, part);
        all = all == nullptr ? y : ggml_concat(context_, all, y, 1);
    }
    return {shape.in_order ? all : ggml_get_rows(context_, all, order.queries)};
}

ggml_tensor* DeviceOps::cached(size_t layer, const Group& group, int64_t first, int64_t count) {
    ggml_tensor* cache = cache_.layers[layer];
    return ggml_view_4d(
        context_, cache, config_.head_dim, group.rows.rows, count, group.rows.sequences, cache->nb[1],
        cache->nb[2], static_cast<size_t>(group.rows.distance) * cache->nb[1],
        static_cast<size_t>(first) * cache->nb[2] + static_cast<size_t>(group.rows.first) * cache->nb[1]);
}

ggml_tensor* DeviceOps::mask(size_t layer, const Group& group, ggml_type type) {
    return step_.mask({config_.window(layer), group.outputs, network_.eviction.at(layer), group.number, type},
                      group.rows, group.first_query);
}

DeviceOps::Value DeviceOps::attention(size_t layer, Value q, Value k, Value v) {
    store(layer, k, v);
    const bool lends =
        network_.topology.lends_probabilities(layer) || network_.observes(layer, Tap::probabilities);
    return attend(layer, q.tensor, lends && config_.causal);
}

DeviceOps::Value DeviceOps::attention_as_source(size_t layer, Value v, bool selected) {
    store(layer, v);
    const Value all = by_group(layer, shape_.tokens, nullptr, [&](const Group& group, ggml_tensor*) {
        return weighted(layer, group, lent_.at(*source(layer).probabilities)[group.number]);
    });
    return selected ? select_outputs(all) : all;
}

DeviceOps::Value DeviceOps::attend(size_t layer, ggml_tensor* q, bool lends) {
    // Eviction counts the attention of all tokens, not just of the outputs.
    const bool scores = network_.eviction.scores(layer), selected = scores && q->ne[1] < shape_.tokens;
    if (selected) q = q->src[0];
    const Value all = by_group(layer, q->ne[1], q, [&](const Group& group, ggml_tensor* queries) {
        if (!lends && !scores) return attended(layer, group, queries);
        ggml_tensor* p = lent_[layer].emplace_back(probabilities(layer, group, queries));
        if (network_.observes(layer, Tap::probabilities)) keep(layer, Tap::probabilities, p);
        if (scores) keep_sums(layer, p);
        return weighted(layer, group, p);
    });
    return selected ? select_outputs(all) : all;
}

ggml_tensor* DeviceOps::attended(size_t layer, const Group& group, ggml_tensor* q) {
    const int64_t kv = config_.n_head_kv_of(layer), heads = cache_.layers[layer]->ne[2];
    if (config_.alibi_heads_of(layer).empty()) {
        ggml_tensor* y = ggml_flash_attn_ext(context_, q, cached(layer, group, 0, kv),
                                             cached(layer, group, heads - kv, kv), mask(layer, group),
                                             config_.attention_scale_of(layer), config_.max_alibi_bias,
                                             config_.attention_softcap);
        ggml_prec_set_acc(y, GGML_PREC_F32);
        if (ggml_tensor* sinks = weights_.vector(layer, Slot::attn_sinks))
            ggml_flash_attn_ext_add_sinks(y, sinks);
        if (run_.supports(layer, y))
            return ggml_reshape_2d(context_, y, y->ne[0] * y->ne[1], group.rows.queries());
    }
    return weighted(layer, group, probabilities(layer, group, q));
}

ggml_tensor* DeviceOps::probabilities(size_t layer, const Group& group, ggml_tensor* q) {
    ggml_tensor* keys = cached(layer, group, 0, config_.n_head_kv_of(layer));
    // As in column_product().
    if (keys->type == GGML_TYPE_F32 && group.rows.sequences > 1) keys = contiguous(keys);
    ggml_tensor* scores = ggml_mul_mat(context_, keys, contiguous(q));
    ggml_prec_set_acc(scores, GGML_PREC_F32);
    float scale = config_.attention_scale_of(layer), bias = config_.max_alibi_bias;
    if (config_.attention_softcap > 0) {
        scores = softcap({ggml_scale(context_, scores, scale)}, config_.attention_softcap).tensor;
        scale = 1;
    }
    const std::vector<int64_t>& own = config_.alibi_heads_of(layer);
    ggml_tensor* added = mask(layer, group, own.empty() ? GGML_TYPE_F16 : GGML_TYPE_F32);
    if (!own.empty()) {
        added = alibi_of(own, added);
        bias = 0;
    }
    ggml_tensor* p = ggml_soft_max_ext(context_, scores, added, scale, bias);
    if (ggml_tensor* sinks = weights_.vector(layer, Slot::attn_sinks)) ggml_soft_max_add_sinks(p, sinks);
    return p;
}

ggml_tensor* DeviceOps::alibi_of(const std::vector<int64_t>& numbers, ggml_tensor* mask) {
    const std::vector<float> all = alibi_slopes(config_.n_head, config_.max_alibi_bias);
    const int64_t group = config_.q_per_kv();
    std::vector<float> own;
    for (const int64_t kv : numbers)
        for (int64_t h = kv * group; h < (kv + 1) * group; ++h) own.push_back(all[static_cast<size_t>(h)]);
    const auto heads = static_cast<int64_t>(own.size());
    ggml_tensor* repeated = ggml_repeat_4d(context_, mask, mask->ne[0], mask->ne[1], heads, mask->ne[3]);
    return ggml_mul(context_, repeated, ggml_reshape_3d(context_, step_.constant(own), 1, 1, heads));
}

ggml_tensor* DeviceOps::weighted(size_t layer, const Group& group, ggml_tensor* p) {
    const int64_t kv = config_.n_head_kv_of(layer), heads = cache_.layers[layer]->ne[2];
    ggml_tensor* values = cached(layer, group, heads - kv, kv);
    if (ggml_is_quantized(values->type)) values = ggml_cast(context_, values, GGML_TYPE_F32);
    ggml_tensor* turned = ggml_cont(context_, ggml_transpose(context_, values));
    ggml_tensor* y = ggml_mul_mat(context_, turned, p);  // [head_dim, tokens, heads, sequences]
    ggml_prec_set_acc(y, GGML_PREC_F32);
    y = ggml_cont(context_, ggml_permute(context_, y, 0, 2, 1, 3));
    return ggml_reshape_2d(context_, y, y->ne[0] * y->ne[1], group.rows.queries());
}

void DeviceOps::keep_sums(size_t layer, ggml_tensor* p) {
    const int64_t kv = config_.n_head_kv_of(layer), group = p->ne[2] / kv, cached = p->ne[0];
    const auto summed = [&](ggml_tensor* x) {  // over the second dimension
        ggml_tensor* turned = ggml_cont(context_, ggml_permute(context_, x, 1, 0, 2, 3));
        return ggml_sum_rows(context_, turned);
    };
    ggml_tensor* heads = summed(p);  // [1, cached, heads]
    ggml_tensor* sums = summed(ggml_reshape_3d(context_, heads, cached, group, kv));
    sums = ggml_reshape_2d(context_, sums, cached, kv);
    ggml_set_output(sums);
    expand(sums);
    step_.scores_.push_back({layer, sums});
}

}  // namespace refold
