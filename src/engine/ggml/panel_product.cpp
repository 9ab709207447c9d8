// Weights in panels times activations.
//
// In: panels of sixteen stored rows; x F32 [token][column]. Out: F32 [token][row].
//
// Threads: up to eight tokens are quantized by every thread for itself, which is cheaper than a barrier, and
// panels are split evenly. Otherwise each thread quantizes a share of the tokens, all wait, and panels are
// taken from a common counter, a few neighbors at a time.
//
// Panels are the outer loop, all tokens meet some panels before the next ones are read: weights stream from
// memory once.
#include "engine/ggml/panel_product.h"

#include <algorithm>

#include "engine/ggml/thread_share.h"

namespace refold {
namespace {

using row_panels::Range;

// Up to here quantizing all tokens takes less time than a barrier.
constexpr int64_t kFewTokens = 8;

ggml_tensor* node(ggml_context* context, ggml_tensor* weight, ggml_tensor* x, ggml_custom_op_t compute,
                  PanelProduct* product) {
    ggml_tensor* arguments[] = {weight, x};
    const int64_t fold = weight->ne[0] / x->ne[0];
    return ggml_custom_4d(context, GGML_TYPE_F32, weight->ne[1] * fold, x->ne[1], 1, 1, arguments, 2, compute,
                          GGML_N_TASKS_MAX, product);
}

row_panels::Matrix matrix_of(const ggml_tensor* dst) {
    const ggml_tensor *weight = dst->src[0], *x = dst->src[1];
    return {weight->type, static_cast<const std::byte*>(weight->data), weight->ne[0], weight->ne[1],
            weight->ne[0] / x->ne[0]};
}

InputForms forms_of(ggml_type type) {
    InputForms forms;
    row_panels::add_form(forms, type);
    return forms;
}

row_panels::Output output_of(const ggml_tensor* dst) {
    return {static_cast<float*>(dst->data), dst->nb[1] / sizeof(float)};
}

}  // namespace

ggml_tensor* PanelProduct::of_panels(ggml_context* context, ggml_tensor* weight, ggml_tensor* x) {
    return node(context, weight, x, compute_panels, this);
}

ggml_tensor* PanelProduct::of_runs(ggml_context* context, const std::vector<PanelRun>& runs, int64_t rows,
                                   ggml_tensor* x) {
    Job& job = jobs_[&runs];
    job = {this, &runs};
    return ggml_custom_4d(context, GGML_TYPE_F32, rows, x->ne[1], 1, 1, &x, 1, compute_runs, GGML_N_TASKS_MAX,
                          &job);
}

template <class Multiply>
void PanelProduct::compute(ggml_tensor* dst, int64_t panels, InputForms forms, int thread, int threads,
                           const Multiply& multiply) {
    placement_.here(thread);
    const ggml_tensor* x = dst->src[1] != nullptr ? dst->src[1] : dst->src[0];
    const int64_t tokens = x->ne[1];
    ThreadScratch& own = threads_[static_cast<size_t>(thread)];
    const auto* floats = static_cast<const float*>(x->data);
    const auto stride = static_cast<int64_t>(x->nb[1] / sizeof(float));
    if (tokens <= kFewTokens) {
        own.few.fit(tokens, x->ne[0], forms);
        own.few.quantize(floats, stride, 0, tokens);
        const auto [first, last] = thread_share(panels, thread, threads);
        multiply(Range{first, last}, own.few.get(floats, stride));
        return;
    }
    barrier_.arrive_and_wait(threads, [&] {
        next_.store(0, std::memory_order_relaxed);
        inputs_.fit(tokens, x->ne[0], forms);
    });
    const auto [first, last] = thread_share(tokens, thread, threads);
    inputs_.quantize(floats, stride, first, last);
    barrier_.arrive_and_wait(threads);
    // Several neighbors at a time, because tokens are read again for each range.
    const int64_t some = std::clamp<int64_t>(panels / (8 * threads), 1, 16);
    for (int64_t i = next_.fetch_add(some); i < panels; i = next_.fetch_add(some))
        multiply(Range{i, std::min(panels, i + some)}, inputs_.get(floats, stride));
}

void PanelProduct::compute_panels(ggml_tensor* dst, int thread, int threads, void* product) {
    auto& self = *static_cast<PanelProduct*>(product);
    const row_panels::Matrix matrix = matrix_of(dst);
    self.compute(dst, matrix.panels(), forms_of(matrix.type), thread, threads,
                 [&](Range panels, const Inputs& x) {
                     row_panels::Output out = output_of(dst);
                     out.data += panels.first * row_panels::kRows * matrix.fold;
                     row_panels::multiply(matrix, panels, {0, matrix.groups()}, x, dst->ne[1], out,
                                          self.threads_[static_cast<size_t>(thread)].panels);
                 });
}

void PanelProduct::compute_runs(ggml_tensor* dst, int thread, int threads, void* user) {
    const auto& job = *static_cast<const Job*>(user);
    int64_t panels = 0;
    InputForms forms;
    for (const PanelRun& run : *job.runs) {
        panels += run.add ? 0 : run.panels.last - run.panels.first;
        row_panels::add_form(forms, run.weight->type);
    }
    job.product->compute(dst, panels, forms, thread, threads, [&](Range wanted, const Inputs& x) {
        int64_t before = 0;  // panels of the result that earlier runs have written
        for (const PanelRun& run : *job.runs) {
            const int64_t count = run.panels.last - run.panels.first, offset = run.add ? 0 : before;
            const int64_t first = std::max(wanted.first - offset, int64_t{0}),
                          last = std::min(wanted.last - offset, count);
            if (!run.add) before += count;
            if (first >= last) continue;
            const row_panels::Matrix matrix{run.weight->type, static_cast<const std::byte*>(run.weight->data),
                                            run.weight->ne[0], run.weight->ne[1], run.fold};
            row_panels::Output out = output_of(dst);
            out.data += run.row + first * row_panels::kRows * run.fold;
            out.add = run.add;
            row_panels::multiply(matrix, {run.panels.first + first, run.panels.first + last}, run.groups,
                                 x.from(run.input_group), dst->ne[1], out,
                                 job.product->threads_[static_cast<size_t>(thread)].panels);
        }
    });
}

}  // namespace refold
