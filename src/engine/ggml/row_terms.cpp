// Low-rank terms and biases by set.
//
// In: x F32 [row][column], the set of each row, A and B of each set in panels. Out: y F32 [row][element],
// added to in place.
//
// Threads: with few rows all threads share the panels: each computes its panels of A x for all rows, and
// after a barrier its panels of B (A x); biases wait for another barrier, because they are split by rows.
// With many rows every thread takes a share of the rows and needs no barrier.
//
// Runs of rows of one set are the outer loop, matrices of the group the inner one: the input of a run is
// converted once for all matrices of one panel type (many rows), and A and B are read once per run of up to
// kBlock rows.
#include "engine/ggml/row_terms.h"

#include <algorithm>
#include <iterator>

#include "engine/ggml/thread_share.h"

namespace refold {
namespace {

// With fewer rows per thread than this the threads split the weights, else the rows.
constexpr int64_t kFewRows = 4;
// Most rows of one set that are multiplied together: a multiple of the kernels' tiles of 6 and 8 tokens.
constexpr int64_t kBlock = 24;

PanelType panel_type(DType type, int64_t columns, bool f32) {
    if (f32 || type == DType::F32) return PanelType::f32;
    if (type == DType::Q8_0 && row_panels::supports(GGML_TYPE_Q8_0, columns)) return PanelType::q8;
    return type == DType::F16 ? PanelType::f16 : PanelType::bf16;
}

int64_t whole_panels(int64_t rows) { return (rows + Panels::kRows - 1) / Panels::kRows * Panels::kRows; }

}  // namespace

RowTerms::Term RowTerms::term(const Factors& f, bool f32) {
    const int64_t in = static_cast<int64_t>(f.a.size()) / f.rank,
                  out = static_cast<int64_t>(f.b.size()) / f.rank;
    return {Panels(panel_type(f.a_type, in, f32), f.a, f.rank, in),
            Panels(panel_type(f.b_type, f.rank, f32), f.b, out, f.rank)};
}

void RowTerms::put(size_t layer, Slot slot, size_t set, Term term) {
    std::vector<Term>& terms = matrices_[{layer, slot}].terms;
    if (terms.size() <= set) terms.resize(set + 1);
    terms[set] = std::move(term);
    groups_.clear();
}

void RowTerms::put_biases(size_t layer, Slot slot, std::vector<std::vector<float>> by_set) {
    matrices_[{layer, slot}].biases = std::move(by_set);
    groups_.clear();
}

void RowTerms::erase(size_t set) {
    groups_.clear();
    for (auto entry = matrices_.begin(); entry != matrices_.end();) {
        Matrix& matrix = entry->second;
        if (set < matrix.terms.size()) matrix.terms[set] = {};
        const bool empty = matrix.biases.empty() && std::ranges::all_of(matrix.terms, [](const Term& term) {
                               return term.a.rows() == 0;
                           });
        entry = empty ? matrices_.erase(entry) : std::next(entry);
    }
}

uint64_t RowTerms::bytes() const {
    uint64_t bytes = 0;
    for (const auto& [key, matrix] : matrices_) {
        for (const Term& term : matrix.terms) bytes += term.a.bytes() + term.b.bytes();
        for (const auto& bias : matrix.biases) bytes += bias.size() * sizeof(float);
    }
    return bytes;
}

ggml_tensor* RowTerms::add_to(ggml_context* context, const Products& products, ggml_tensor* y, ggml_tensor* x,
                              ggml_tensor* sets) {
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
            for (const Term& term : matrix->second.terms) rank = std::max(rank, term.a.rows());
            group.width += whole_panels(rank);
            group.has_biases |= !matrix->second.biases.empty();
        }
        row += slot_shape(slot, config_, layer).out;
    }
    if (group.members.empty()) return y;
    const auto few = static_cast<size_t>(kFewRows * threads_ * group.width);
    if (ax_.size() < few) ax_.resize(few);
    ggml_tensor* sources[] = {x, sets};
    return ggml_custom_inplace(context, y, sources, 2, compute, GGML_N_TASKS_MAX, &group);
}

void RowTerms::Matrix::add_bias(int32_t set, float* y) const {
    if (biases.empty() || set < 0) return;
    const std::vector<float>& bias = biases[static_cast<size_t>(set)];
    for (size_t i = 0; i < bias.size(); ++i) y[i] += bias[i];
}

// The tensors of a node.
struct RowTerms::Rows {
    const float* x;
    float* y;
    int64_t x_stride, y_stride;
    const int32_t* sets;
    int64_t count;

    // Number of rows from `first` on, before `last`, that are of the set of `first`.
    int64_t same_set(int64_t first, int64_t last) const {
        int64_t end = first + 1;
        while (end < last && sets[end] == sets[first]) ++end;
        return end - first;
    }
};

void RowTerms::add_block(const Group& group, const Rows& rows, int64_t first, int64_t count) {
    thread_local Panels::Scratch inputs, ax_inputs;
    thread_local std::vector<float> ax;
    const int32_t set = rows.sets[first];
    const float* x = rows.x + first * rows.x_stride;
    const Panels* read = nullptr;  // the matrix for which `input` was made
    Panels::Input input{};
    for (const auto& [matrix, row, column] : group.members) {
        float* y = rows.y + first * rows.y_stride + row;
        if (const Term* term = matrix->term(set)) {
            if (read == nullptr || read->type() != term->a.type())
                input = term->a.input(x, rows.x_stride, count, inputs);
            read = &term->a;
            const int64_t width = whole_panels(term->a.rows());
            ax.resize(static_cast<size_t>(width * count));
            term->a.multiply(input, term->a.all(), ax.data(), width, false);
            term->b.multiply(term->b.input(ax.data(), width, count, ax_inputs), term->b.all(), y,
                             rows.y_stride, true);
        }
        for (int64_t t = 0; t < count; ++t) matrix->add_bias(set, y + t * rows.y_stride);
    }
}

void RowTerms::add_few_rows(const Group& group, const Rows& rows, int thread, int threads) {
    thread_local Panels::Scratch inputs;
    std::vector<float>& ax = group.terms->ax_;
    const auto own_panels = [&](const Panels& panels) {
        const auto [first, last] = thread_share(panels.panels(), thread, threads);
        return Panels::Range{first, last};
    };
    const auto for_terms = [&](auto&& visit) {
        for (int64_t first = 0, count = 0; first < rows.count; first += count) {
            count = rows.same_set(first, rows.count);
            const int32_t set = rows.sets[first];
            for (const Group::Member& member : group.members) visit(member, set, first, count);
        }
    };
    for_terms([&](const Group::Member& member, int32_t set, int64_t first, int64_t count) {
        const Term* term = member.matrix->term(set);
        if (term == nullptr) return;
        term->a.multiply(term->a.input(rows.x + first * rows.x_stride, rows.x_stride, count, inputs),
                         own_panels(term->a), ax.data() + first * group.width + member.ax_column, group.width,
                         false);
    });
    group.terms->barrier_.arrive_and_wait(threads);
    for_terms([&](const Group::Member& member, int32_t set, int64_t first, int64_t count) {
        float* y = rows.y + first * rows.y_stride + member.first;
        if (const Term* term = member.matrix->term(set)) {
            const float* x = ax.data() + first * group.width + member.ax_column;
            term->b.multiply(term->b.input(x, group.width, count, inputs), own_panels(term->b), y,
                             rows.y_stride, true);
        }
    });
    if (!group.has_biases) return;
    // B is split by panels, the biases by rows.
    group.terms->barrier_.arrive_and_wait(threads);
    const auto [from, to] = thread_share(rows.count, thread, threads);
    for (int64_t t = from; t < to; ++t) {
        for (const Group::Member& member : group.members)
            member.matrix->add_bias(rows.sets[t], rows.y + t * rows.y_stride + member.first);
    }
}

void RowTerms::compute(ggml_tensor* dst, int thread, int threads, void* user) {
    const auto& group = *static_cast<const Group*>(user);
    const ggml_tensor *x = dst->src[1], *sets = dst->src[2];
    const Rows rows{static_cast<const float*>(x->data),
                    static_cast<float*>(dst->data),
                    static_cast<int64_t>(x->nb[1] / sizeof(float)),
                    static_cast<int64_t>(dst->nb[1] / sizeof(float)),
                    static_cast<const int32_t*>(sets->data),
                    x->ne[1]};
    if (threads > 1 && rows.count < kFewRows * threads) return add_few_rows(group, rows, thread, threads);
    const auto [from, to] = thread_share(rows.count, thread, threads);
    for (int64_t first = from, count = 0; first < to; first += count) {
        count = std::min(rows.same_set(first, to), kBlock);
        add_block(group, rows, first, count);
    }
}

}  // namespace refold
