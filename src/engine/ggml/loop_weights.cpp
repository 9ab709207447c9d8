// Low-rank terms, biases and norms by loop.
//
// In: x F32 [row][column], the loop of each row, A and B of each loop in panels. Out: y F32 [row][element],
// added to in place; or x scaled or shifted in place.
//
// Threads: with few rows all threads share the panels: each computes its panels of A x for all rows, and
// after a barrier its panels of B (A x); biases wait for another barrier, because they are split by rows.
// With many rows every thread takes a share of the rows and needs no barrier.
//
// Runs of rows of one loop are the outer loop, matrices of the group the inner one: the input of a run is
// converted once for all matrices of one panel type (many rows), and A and B are read once per run of up to
// kBlock rows.
#include "engine/ggml/loop_weights.h"

#include <algorithm>
#include <functional>

#include "core/parallel.h"
#include "engine/ggml/thread_share.h"
#include "model/materialize.h"

namespace refold {
namespace {

// With fewer rows per thread than this the threads split the weights, else the rows.
constexpr int64_t kFewRows = 4;
// Most rows of one loop that are multiplied together: a multiple of the kernels' tiles of 6 and 8 tokens.
constexpr int64_t kBlock = 24;

PanelType panel_type(DType type, int64_t columns, bool f32) {
    if (f32 || type == DType::F32) return PanelType::f32;
    if (type == DType::Q8_0 && row_panels::supports(GGML_TYPE_Q8_0, columns)) return PanelType::q8;
    return type == DType::F16 ? PanelType::f16 : PanelType::bf16;
}

int64_t whole_panels(int64_t rows) { return (rows + Panels::kRows - 1) / Panels::kRows * Panels::kRows; }

}  // namespace

LoopWeights::LoopWeights(const LoopedBlock& model, bool f32, int threads)
    : config_(model.block.config), threads_(threads) {
    const auto loops = static_cast<size_t>(model.loops);
    std::vector<std::function<void()>> loading;
    const Model& block = model.block;
    for (const auto& entry : model.terms) {
        const auto& terms = entry.second;
        Matrix& matrix = matrices_[entry.first];
        matrix.terms.resize(loops);
        for (size_t loop = 0; loop < loops; ++loop) {
            if (!terms[loop]) continue;
            loading.emplace_back([&, loop] {
                const LowRank& e = *terms[loop];
                const Tensor &u = block.tensor(e.u), &v = block.tensor(e.v);
                const int64_t rank = u.row_elements(), in = v.row_elements();
                std::vector<float> a = floats_of(block, e.v);
                if (!e.scale.empty()) {
                    const auto scales = floats_of(block, e.scale);
                    for (int64_t i = 0; i < rank; ++i) {
                        const float scale = scales[static_cast<size_t>(e.row * rank + i)];
                        for (int64_t c = 0; c < in; ++c) a[static_cast<size_t>(i * in + c)] *= scale;
                    }
                }
                matrix.terms[loop] = {
                    Panels(panel_type(v.type, in, f32), a, rank, in),
                    Panels(panel_type(u.type, rank, f32), floats_of(block, e.u), u.rows(), rank)};
                if (block.source) {
                    block.source->release(u.mapped);
                    block.source->release(v.mapped);
                }
            });
        }
    }
    for (const auto& [key, expressions] : model.vectors) {
        std::vector<std::vector<float>> values;
        for (const Expression& e : expressions)
            values.push_back(materialize(block, e, key.second, key.first));
        for (const auto& own : values) bytes_ += own.size() * sizeof(float);
        const Slots& slots = block.topology.layers[key.first];
        const auto matrix = std::find_if(slots.begin(), slots.end(), [&, bias = key.second](const auto& s) {
            return is_matrix(s.first) && bias_of(s.first) == bias;
        });
        if (matrix != slots.end())
            matrices_[{key.first, matrix->first}].biases = std::move(values);
        else
            vectors_[key] = std::move(values);
    }
    parallel_for(static_cast<int64_t>(loading.size()), threads,
                 [&](int64_t i) { loading[static_cast<size_t>(i)](); });
    for (const auto& [key, matrix] : matrices_) {
        for (const LowRankPanels& term : matrix.terms) bytes_ += term.a.bytes() + term.b.bytes();
    }
}

// ---- LoRA and biases ----

ggml_tensor* LoopWeights::add_terms(ggml_context* context, const Products& products, ggml_tensor* y,
                                    ggml_tensor* x, ggml_tensor* loops) {
    const auto& [layer, slots, first] = products;
    const auto [entry, is_new] =
        groups_.try_emplace({layer, {slots.begin(), slots.end()}, first}, Group{this, {}, 0, false});
    Group& group = entry->second;
    int64_t row = first;
    for (const Slot slot : slots) {
        if (!is_new) break;
        if (const auto matrix = matrices_.find({layer, slot}); matrix != matrices_.end()) {
            group.members.push_back({&matrix->second, row, group.width});
            int64_t rank = 0;
            for (const LowRankPanels& term : matrix->second.terms) rank = std::max(rank, term.a.rows());
            group.width += whole_panels(rank);
            group.has_biases |= !matrix->second.biases.empty();
        }
        row += slot_shape(slot, config_, layer).out;
    }
    if (group.members.empty()) return y;
    const auto few = static_cast<size_t>(kFewRows * threads_ * group.width);
    if (ax_.size() < few) ax_.resize(few);
    ggml_tensor* sources[] = {x, loops};
    return ggml_custom_inplace(context, y, sources, 2, compute_terms, GGML_N_TASKS_MAX, &group);
}

void LoopWeights::Matrix::add_bias(size_t loop, float* y) const {
    if (biases.empty()) return;
    const std::vector<float>& bias = biases[loop];
    for (size_t i = 0; i < bias.size(); ++i) y[i] += bias[i];
}

// The tensors of a node.
struct LoopWeights::Rows {
    const float* x;
    float* y;
    int64_t x_stride, y_stride;
    const int32_t* loops;
    int64_t count;

    // Number of rows from `first` on, before `last`, that are at the loop of `first`.
    int64_t same_loop(int64_t first, int64_t last) const {
        int64_t end = first + 1;
        while (end < last && loops[end] == loops[first]) ++end;
        return end - first;
    }
};

void LoopWeights::add_block(const Group& group, const Rows& rows, int64_t first, int64_t count) {
    thread_local Panels::Scratch inputs, ax_inputs;
    thread_local std::vector<float> ax;
    const auto loop = static_cast<size_t>(rows.loops[first]);
    const float* x = rows.x + first * rows.x_stride;
    const Panels* read = nullptr;  // the matrix for which `input` was made
    Panels::Input input{};
    for (const auto& [matrix, row, column] : group.members) {
        float* y = rows.y + first * rows.y_stride + row;
        if (const LowRankPanels* term = matrix->term(loop)) {
            if (read == nullptr || read->type() != term->a.type())
                input = term->a.input(x, rows.x_stride, count, inputs);
            read = &term->a;
            const int64_t width = whole_panels(term->a.rows());
            ax.resize(static_cast<size_t>(width * count));
            term->a.multiply(input, term->a.all(), ax.data(), width, false);
            term->b.multiply(term->b.input(ax.data(), width, count, ax_inputs), term->b.all(), y,
                             rows.y_stride, true);
        }
        for (int64_t t = 0; t < count; ++t) matrix->add_bias(loop, y + t * rows.y_stride);
    }
}

void LoopWeights::add_few_rows(const Group& group, const Rows& rows, int thread, int threads) {
    thread_local Panels::Scratch inputs;
    std::vector<float>& ax = group.weights->ax_;
    const auto own_panels = [&](const Panels& panels) {
        const auto [first, last] = thread_share(panels.panels(), thread, threads);
        return Panels::Range{first, last};
    };
    const auto for_terms = [&](auto&& visit) {
        for (int64_t first = 0, count = 0; first < rows.count; first += count) {
            count = rows.same_loop(first, rows.count);
            const auto loop = static_cast<size_t>(rows.loops[first]);
            for (const Group::Member& member : group.members) visit(member, loop, first, count);
        }
    };
    for_terms([&](const Group::Member& member, size_t loop, int64_t first, int64_t count) {
        const LowRankPanels* term = member.matrix->term(loop);
        if (term == nullptr) return;
        term->a.multiply(term->a.input(rows.x + first * rows.x_stride, rows.x_stride, count, inputs),
                         own_panels(term->a), ax.data() + first * group.width + member.ax_column, group.width,
                         false);
    });
    group.weights->barrier_.arrive_and_wait(threads);
    for_terms([&](const Group::Member& member, size_t loop, int64_t first, int64_t count) {
        float* y = rows.y + first * rows.y_stride + member.first;
        if (const LowRankPanels* term = member.matrix->term(loop)) {
            const float* x = ax.data() + first * group.width + member.ax_column;
            term->b.multiply(term->b.input(x, group.width, count, inputs), own_panels(term->b), y,
                             rows.y_stride, true);
        }
    });
    if (!group.has_biases) return;
    // B is split by panels, the biases by rows.
    group.weights->barrier_.arrive_and_wait(threads);
    const auto [from, to] = thread_share(rows.count, thread, threads);
    for (int64_t t = from; t < to; ++t) {
        for (const Group::Member& member : group.members)
            member.matrix->add_bias(static_cast<size_t>(rows.loops[t]),
                                    rows.y + t * rows.y_stride + member.first);
    }
}

void LoopWeights::compute_terms(ggml_tensor* dst, int thread, int threads, void* user) {
    const auto& group = *static_cast<const Group*>(user);
    const ggml_tensor *x = dst->src[1], *loops = dst->src[2];
    const Rows rows{static_cast<const float*>(x->data),
                    static_cast<float*>(dst->data),
                    static_cast<int64_t>(x->nb[1] / sizeof(float)),
                    static_cast<int64_t>(dst->nb[1] / sizeof(float)),
                    static_cast<const int32_t*>(loops->data),
                    x->ne[1]};
    if (threads > 1 && rows.count < kFewRows * threads) return add_few_rows(group, rows, thread, threads);
    const auto [from, to] = thread_share(rows.count, thread, threads);
    for (int64_t first = from, count = 0; first < to; first += count) {
        count = std::min(rows.same_loop(first, to), kBlock);
        add_block(group, rows, first, count);
    }
}

// ---- norms and other vectors ----

namespace {

// Calls apply(x, vector, n) for this thread's share of the rows of `dst`.
template <class Apply>
void for_vectors(ggml_tensor* dst, int thread, int threads, const void* user, Apply apply) {
    const auto& vectors = *static_cast<const std::vector<std::vector<float>>*>(user);
    const ggml_tensor* loops = dst->src[1];
    const int64_t rows = ggml_nrows(dst), heads = rows / loops->ne[0];
    const auto [first, last] = thread_share(rows, thread, threads);
    for (int64_t row = first; row < last; ++row) {
        const int32_t loop = static_cast<const int32_t*>(loops->data)[row / heads];
        apply(static_cast<float*>(dst->data) + row * dst->ne[0], vectors[static_cast<size_t>(loop)].data(),
              dst->ne[0]);
    }
}

void scale_rows(ggml_tensor* dst, int thread, int threads, void* user) {
    for_vectors(dst, thread, threads, user, [](float* x, const float* by, int64_t n) {
        for (int64_t i = 0; i < n; ++i) x[i] *= by[i];
    });
}

void add_to_rows(ggml_tensor* dst, int thread, int threads, void* user) {
    for_vectors(dst, thread, threads, user, [](float* x, const float* by, int64_t n) {
        for (int64_t i = 0; i < n; ++i) x[i] += by[i];
    });
}

}  // namespace

ggml_tensor* LoopWeights::scale(ggml_context* context, size_t layer, Slot slot, ggml_tensor* x,
                                ggml_tensor* loops) {
    return ggml_custom_inplace(context, x, &loops, 1, scale_rows, GGML_N_TASKS_MAX,
                               &vectors_.at({layer, slot}));
}

ggml_tensor* LoopWeights::add(ggml_context* context, size_t layer, Slot slot, ggml_tensor* x,
                              ggml_tensor* loops) {
    return ggml_custom_inplace(context, x, &loops, 1, add_to_rows, GGML_N_TASKS_MAX,
                               &vectors_.at({layer, slot}));
}

}  // namespace refold
