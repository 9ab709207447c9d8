// Weights of experts times the activations of their tokens.
//
// In: weights [expert][row][block], or panels of sixteen rows; uses F32 [use][column], sorted by expert. Out:
// F32 [use][row].
//
// Threads: each converts a share of the inputs, all wait; then parts - some panels of an expert, for all of
// its uses - are taken from a common counter.
//
// An expert's rows are the outer loop, its uses the inner one: weights stream from memory once, and those of
// experts that no token uses not at all.
#include "engine/ggml/expert_product.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/ggml/head_runs.h"
#include "engine/ggml/thread_share.h"
#include "engine/ggml/token_rows.h"

namespace refold {
namespace {

constexpr int64_t kRowsOfPart = row_panels::kRows;

Dispatch dispatch_of(const ggml_tensor* routes, int64_t experts) {
    const int64_t used = routes->ne[0] / 2;
    return refold::dispatch(experts, used * routes->ne[1], [&](int64_t use) {
        return static_cast<int64_t>(row_of(routes, use / used)[use % used]);
    });
}

// One more than the largest number of an expert that is used.
int64_t experts_of(const ggml_tensor* routes) {
    const int64_t used = routes->ne[0] / 2;
    float last = 0;
    for (int64_t t = 0; t < routes->ne[1]; ++t)
        last = std::max(last, *std::max_element(row_of(routes, t), row_of(routes, t) + used));
    return static_cast<int64_t>(last) + 1;
}

template <bool Normalized>
void compute_routes(ggml_tensor* dst, int thread, int threads, void* /*user*/) {
    const ggml_tensor* scores = dst->src[0];
    const int64_t used = dst->ne[0] / 2;
    const auto [first, last] = thread_share(dst->ne[1], thread, threads);
    for (int64_t t = first; t < last; ++t) {
        const auto routes =
            refold::route({row_of(scores, t), static_cast<size_t>(scores->ne[0])}, used, Normalized);
        float* out = row_of(dst, t);
        for (int64_t i = 0; i < used; ++i) {
            out[i] = static_cast<float>(routes[static_cast<size_t>(i)].expert);
            out[used + i] = routes[static_cast<size_t>(i)].weight;
        }
    }
}

void compute_dispatch(ggml_tensor* dst, int thread, int threads, void* /*user*/) {
    const ggml_tensor *x = dst->src[0], *routes = dst->src[1];
    const int64_t used = routes->ne[0] / 2;
    const Dispatch order = dispatch_of(routes, experts_of(routes));
    const auto [first, last] = thread_share(dst->ne[1], thread, threads);
    for (int64_t i = first; i < last; ++i)
        std::copy_n(row_of(x, order.use[static_cast<size_t>(i)] / used), dst->ne[0], row_of(dst, i));
}

void compute_sum(ggml_tensor* dst, int thread, int threads, void* /*user*/) {
    const ggml_tensor *uses = dst->src[0], *routes = dst->src[1];
    const int64_t used = routes->ne[0] / 2;
    const Dispatch order = dispatch_of(routes, experts_of(routes));
    std::vector<int64_t> place(order.use.size());
    for (size_t i = 0; i < place.size(); ++i)
        place[static_cast<size_t>(order.use[i])] = static_cast<int64_t>(i);
    const auto [first, last] = thread_share(dst->ne[1], thread, threads);
    for (int64_t t = first; t < last; ++t) {
        float* out = row_of(dst, t);
        std::fill_n(out, dst->ne[0], 0.0F);
        for (int64_t i = 0; i < used; ++i) {
            const float weight = row_of(routes, t)[used + i];
            const float* from = row_of(uses, place[static_cast<size_t>(t * used + i)]);
            for (int64_t c = 0; c < dst->ne[0]; ++c) out[c] += weight * from[c];
        }
    }
}

}  // namespace

// Rows [first, first + count) of an expert, for its uses.
struct ExpertProduct::Part {
    const ExpertPlan::Weights* weights;
    int64_t expert, first, count;
    int64_t first_use, uses;
    float* out;  // of the first use and row
    size_t stride;
};

ggml_tensor* ExpertProduct::route(ggml_context* context, ggml_tensor* scores, int64_t used, bool normalized) {
    return ggml_custom_4d(context, GGML_TYPE_F32, 2 * used, scores->ne[1], 1, 1, &scores, 1,
                          normalized ? compute_routes<true> : compute_routes<false>, GGML_N_TASKS_MAX,
                          nullptr);
}

ggml_tensor* ExpertProduct::dispatch(ggml_context* context, ggml_tensor* x, ggml_tensor* routes) {
    ggml_tensor* sources[] = {x, routes};
    return ggml_custom_4d(context, GGML_TYPE_F32, x->ne[0], routes->ne[0] / 2 * routes->ne[1], 1, 1, sources,
                          2, compute_dispatch, GGML_N_TASKS_MAX, nullptr);
}

ggml_tensor* ExpertProduct::combine(ggml_context* context, ggml_tensor* uses, ggml_tensor* routes) {
    ggml_tensor* sources[] = {uses, routes};
    return ggml_custom_4d(context, GGML_TYPE_F32, uses->ne[0], routes->ne[1], 1, 1, sources, 2, compute_sum,
                          GGML_N_TASKS_MAX, nullptr);
}

ggml_tensor* ExpertProduct::multiply(ggml_context* context, const ExpertPlan& plan, ggml_tensor* uses,
                                     ggml_tensor* routes) {
    Job& job = jobs_[&plan];
    job = {this, &plan};
    ggml_tensor* sources[] = {uses, routes};
    return ggml_custom_4d(context, GGML_TYPE_F32, plan.out, uses->ne[1], 1, 1, sources, 2, compute_product,
                          GGML_N_TASKS_MAX, &job);
}

uint64_t ExpertProduct::bytes() const {
    uint64_t bytes = inputs_.bytes();
    for (const auto& [type, rows] : rows_) bytes += rows.data.size();
    return bytes;
}

void ExpertProduct::compute_product(ggml_tensor* dst, int thread, int threads, void* user) {
    const auto& job = *static_cast<const Job*>(user);
    job.product->compute(dst, *job.plan, thread, threads);
}

// Room for all uses in the forms that some expert's weights need.
void ExpertProduct::fit(const ExpertPlan& plan, const ggml_tensor* x) {
    InputForms forms;
    in_panels_ = false;
    std::set<ggml_type> types;
    for (const auto& weights : plan.slots) {
        for (const Run& run : weights.experts) {
            const ggml_type type = run.storage->tensor->type;
            if (run.storage->layout == Layout::panels) {
                in_panels_ = true;
                row_panels::add_form(forms, type);
            } else {
                types.insert(head_runs::input_type(type, Layout::plain));
            }
        }
    }
    types.erase(GGML_TYPE_F32);
    if (in_panels_) inputs_.fit(x->ne[1], x->ne[0], forms);
    std::erase_if(rows_, [&](const auto& entry) { return !types.contains(entry.first); });
    for (const ggml_type type : types) {
        Rows& rows = rows_[type];
        rows.stride = ggml_row_size(type, x->ne[0]);
        rows.data.resize(rows.stride * static_cast<size_t>(x->ne[1]));
    }
}

void ExpertProduct::convert(const ggml_tensor* x, int64_t first, int64_t last) {
    if (in_panels_)
        inputs_.quantize(static_cast<const float*>(x->data), static_cast<int64_t>(x->nb[1] / sizeof(float)),
                         first, last);
    for (auto& [type, rows] : rows_) {
        const ggml_from_float_t from_float = ggml_get_type_traits_cpu(type)->from_float;
        for (int64_t i = first; i < last; ++i)
            from_float(row_of(x, i), rows.data.data() + rows.stride * static_cast<size_t>(i), x->ne[0]);
    }
}

void ExpertProduct::compute(ggml_tensor* dst, const ExpertPlan& plan, int thread, int threads) {
    const ggml_tensor *x = dst->src[0], *routes = dst->src[1];
    const auto experts = static_cast<int64_t>(plan.slots.front().experts.size());
    const Dispatch order = dispatch_of(routes, experts);
    barrier_.arrive_and_wait(threads, [&] {
        next_.store(0, std::memory_order_relaxed);
        fit(plan, x);
    });
    const auto [first, last] = thread_share(x->ne[1], thread, threads);
    convert(x, first, last);
    barrier_.arrive_and_wait(threads);
    int64_t before = 0, wanted = next_.fetch_add(1);  // parts
    int64_t row = 0;
    for (const auto& weights : plan.slots) {
        const int64_t parts = (weights.rows + kRowsOfPart - 1) / kRowsOfPart;
        for (int64_t e = 0; e < experts; ++e) {
            const int64_t first_use = order.first[static_cast<size_t>(e)],
                          uses = order.first[static_cast<size_t>(e) + 1] - first_use;
            if (uses == 0) continue;
            for (; wanted < before + parts; wanted = next_.fetch_add(1)) {
                const int64_t from = (wanted - before) * kRowsOfPart;
                multiply_part({&weights, e, from, std::min(kRowsOfPart, weights.rows - from), first_use, uses,
                               row_of(dst, first_use) + row + from, dst->nb[1] / sizeof(float)},
                              x, thread);
            }
            before += parts;
        }
        row += weights.rows;
    }
}

void ExpertProduct::multiply_part(const Part& part, const ggml_tensor* x, int thread) const {
    const Run& run = part.weights->experts[static_cast<size_t>(part.expert)];
    const ggml_tensor* t = run.storage->tensor;
    if (run.storage->layout == Layout::panels) {
        const row_panels::Matrix matrix{t->type, static_cast<const std::byte*>(t->data), t->ne[0], t->ne[1]};
        const int64_t panel = (run.first + part.first) / row_panels::kRows;
        row_panels::multiply(
            matrix, {panel, panel + 1}, {0, matrix.groups()},
            inputs_.get(static_cast<const float*>(x->data), static_cast<int64_t>(x->nb[1] / sizeof(float)))
                .after(part.first_use),
            part.uses, {part.out, part.stride}, threads_[static_cast<size_t>(thread)].panels);
    } else {
        const ggml_type type = head_runs::input_type(t->type, Layout::plain);
        const ggml_vec_dot_t dot = ggml_get_type_traits_cpu(t->type)->vec_dot;
        for (int64_t r = 0; r < part.count; ++r) {
            const auto* weights = static_cast<const std::byte*>(t->data) +
                                  static_cast<size_t>(run.first + part.first + r) * t->nb[1];
            for (int64_t u = 0; u < part.uses; ++u) {
                const int64_t use = part.first_use + u;
                const void* input = row_of(x, use);
                if (type != GGML_TYPE_F32) {
                    const Rows& rows = rows_.at(type);
                    input = rows.data.data() + rows.stride * static_cast<size_t>(use);
                }
                dot(static_cast<int>(t->ne[0]), part.out + static_cast<size_t>(u) * part.stride + r, 0,
                    weights, 0, input, 0, 1);
            }
        }
    }
    if (part.weights->bias == nullptr) return;
    const float* bias =
        static_cast<const float*>(part.weights->bias->data) + part.expert * part.weights->rows + part.first;
    for (int64_t u = 0; u < part.uses; ++u) {
        for (int64_t r = 0; r < part.count; ++r)
            part.out[static_cast<size_t>(u) * part.stride + r] += bias[r];
    }
}

}  // namespace refold
