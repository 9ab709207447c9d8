// Products with factored weights.
//
// In: sources F32 [token][element]; factors as rows of any ggml type: plain, in groups of eight (q4_0x8), or
// in panels (row_panels.h).
// Out: F32 [token][row], the segments one after the other.
//
// Threads split the work items, about 64 rows of a segment each, evenly; items do not depend on each other,
// so a node has no barrier. Each thread quantizes the inputs that its items need, once per node.
//
// Items are the outer loop, then terms, then a few rows, then tokens: weights stream from memory once and
// meet all tokens while they are in the L1 cache; the rows of y stay there as well while terms are added.
#include "engine/ggml/factors.h"

#include <algorithm>
#include <numeric>

#include "engine/ggml/factor_kernels.h"
#include "engine/ggml/head_runs.h"
#include "engine/ggml/row_panels.h"
#include "engine/ggml/thread_share.h"
#include "model/topology.h"

namespace refold::factors {
namespace {

using kernels::Element;

constexpr int64_t kRowsPerItem = 64;

bool is_float(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

// Whether our kernels multiply rows of `columns` columns faster than ggml's dot product, which is dominated
// by the call where rows are short and processes the end of a row element by element. For F32 ours is as
// fast.
bool is_ours(ggml_type type, Layout layout, int64_t columns) {
    constexpr int64_t kShort = 128, kStep = 64;
    if (type == GGML_TYPE_F32) return true;
    if (is_float(type)) return columns <= kShort || columns % kStep != 0;
    return type == GGML_TYPE_Q8_0 && layout == Layout::plain && columns <= kShort;
}

// The element type for our kernels, which read these types without conversion.
Element element_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32: return Element::f32;
        case GGML_TYPE_F16: return Element::f16;
        case GGML_TYPE_BF16: return Element::bf16;
        default: return Element::q8_0;
    }
}

// Rows that lie interleaved in memory.
int64_t rows_per_group(const Storage& storage) {
    return storage.layout == Layout::panels ? row_panels::kRows * storage.fold
                                            : head_runs::rows_per_group(storage.layout);
}

const std::byte* row_of(const Run& run, int64_t row) {
    const ggml_tensor* tensor = run.storage->tensor;
    return static_cast<const std::byte*>(tensor->data) + static_cast<size_t>(run.first + row) * tensor->nb[1];
}

// An input or result of a node, from element `offset` of each token on.
struct Tokens {
    float* data;
    int64_t stride, count;

    Tokens(const ggml_tensor* tensor, int64_t offset)
        : data(static_cast<float*>(tensor->data) + offset),
          stride(static_cast<int64_t>(tensor->nb[1] / sizeof(float))),
          count(tensor->ne[1]) {}
    float* of(int64_t token) const { return data + token * stride; }
};

// Columns [offset, offset + columns) of a source, as kernels of a weight type take them.
struct Slice {
    int source;
    int64_t offset, columns;
    ggml_type type;
    bool operator==(const Slice&) const = default;
};

// Slices for panels; each once per node and thread.
class PanelInputs {
public:
    void clear() { used_ = 0; }

    // Valid until clear().
    Inputs get(const Slice& key, const Tokens& x) {
        const auto end = keys_.begin() + static_cast<ptrdiff_t>(used_),
                   found = std::find(keys_.begin(), end, key);
        const auto at = static_cast<size_t>(found - keys_.begin());
        if (found != end) return inputs_[at].get(x.data, x.stride);
        if (++used_ > keys_.size()) {
            keys_.emplace_back();
            inputs_.emplace_back();
        }
        keys_[at] = key;
        InputForms forms;
        row_panels::add_form(forms, key.type);
        inputs_[at].fit(x.count, key.columns, forms);
        inputs_[at].quantize(x.data, x.stride, 0, x.count);
        return inputs_[at].get(x.data, x.stride);
    }

private:
    std::vector<Slice> keys_;
    std::vector<QuantizedInputs> inputs_;
    size_t used_ = 0;
};

// Slices for ggml's kernels, in the type of the inputs; each once per node and thread.
class RowInputs {
public:
    void clear() {
        entries_.clear();
        used_ = 0;
    }

    // One row per token, ggml_row_size(type, columns) bytes apart; valid until the next call.
    const std::byte* get(const Slice& key, const Tokens& x) {
        for (const auto& [entry_key, offset] : entries_) {
            if (entry_key == key) return buffer_.data() + offset;
        }
        const size_t row = ggml_row_size(key.type, key.columns), begin = used_;
        used_ += row * static_cast<size_t>(x.count);
        if (buffer_.size() < used_) buffer_.resize(used_);
        entries_.emplace_back(key, begin);
        const ggml_from_float_t from_float = ggml_get_type_traits_cpu(key.type)->from_float;
        for (int64_t t = 0; t < x.count; ++t)
            from_float(x.of(t), buffer_.data() + begin + row * static_cast<size_t>(t), key.columns);
        return buffer_.data() + begin;
    }

private:
    std::vector<std::pair<Slice, size_t>> entries_;
    std::vector<std::byte> buffer_;
    size_t used_ = 0;
};

// Buffers of a thread, kept from node to node.
struct Workspace {
    RowInputs inputs;
    PanelInputs panel_inputs;
    row_panels::Scratch panels;
    std::vector<float> floats, head, sums;
};

// Computes rows [from, to) of a segment.
class SegmentProduct {
public:
    SegmentProduct(const ggml_tensor* dst, const Segment& segment, int64_t from, int64_t to, Workspace& work)
        : dst_(dst), segment_(segment), from_(from), to_(to), work_(work) {}

    void clear() {
        const Tokens y(dst_, segment_.first);
        for (int64_t t = 0; t < y.count; ++t) std::fill(y.of(t) + from_, y.of(t) + to_, 0.0F);
    }

    void run() {
        const Tokens y(dst_, segment_.first);
        for (const Term& term : segment_.terms) add(term);
        if (segment_.scale.storage == nullptr) return;
        const auto* scale = reinterpret_cast<const float*>(row_of(segment_.scale, 0));
        for (int64_t t = 0; t < y.count; ++t) {
            for (int64_t i = from_; i < to_; ++i) y.of(t)[i] *= scale[i];
        }
    }

private:
    // The part of a term's rows that lies in [from, to).
    struct Range {
        int64_t first, last;
    };
    Range range(const Term& term, int64_t rows) const {
        return {std::max(from_, term.segment_row) - term.segment_row,
                std::min(to_, term.segment_row + rows) - term.segment_row};
    }
    Tokens result(const Term& term) const { return {dst_, segment_.first + term.segment_row}; }
    Tokens input(const Term& term) const { return {dst_->src[term.source], term.offset}; }

    void add(const Term& term) {
        switch (term.kind) {
            case Term::Kind::rows: return add_rows(term);
            case Term::Kind::transposed: return add_transposed(term);
            case Term::Kind::combine: return combine(term);
            case Term::Kind::spread: return spread(term);
            case Term::Kind::identity: return add_identity(term);
        }
    }

    void add_rows(const Term& term) {
        const auto [first, last] = range(term, term.run.count);
        if (first >= last) return;
        const Storage& storage = *term.run.storage;
        if (storage.layout == Layout::panels) return add_panels(term, first, last);
        const ggml_type type = storage.tensor->type;
        const Tokens x = input(term), y = result(term);
        if (is_ours(type, storage.layout, term.columns)) {
            const kernels::Rows rows{row_of(term.run, first) + ggml_row_size(type, term.column),
                                     storage.tensor->nb[1], last - first, term.columns, element_of(type)};
            return kernels::add_products(rows, x.data, x.stride, y.data + first, y.stride, y.count);
        }
        const int64_t height = head_runs::rows_per_group(storage.layout);
        const size_t stride = head_runs::group_bytes(type, storage.layout, storage.in());
        const ggml_type x_type = head_runs::input_type(type, storage.layout);
        const std::byte* quantized = work_.inputs.get({term.source, term.offset, term.columns, x_type}, x);
        const std::byte* weights = static_cast<const std::byte*>(storage.tensor->data) +
                                   static_cast<size_t>((term.run.first + first) / height) * stride +
                                   head_runs::group_bytes(type, storage.layout, term.column);
        const head_runs::RowProduct product{type, storage.layout, term.columns};
        // A few row groups meet all tokens before the next ones are read.
        constexpr int64_t kGroups = 8;
        const int64_t groups = (last - first) / height;
        for (int64_t g = 0; g < groups; g += kGroups) {
            for (int64_t t = 0; t < y.count; ++t) {
                product(weights + static_cast<size_t>(g) * stride, stride,
                        quantized + static_cast<size_t>(t) * ggml_row_size(x_type, term.columns),
                        std::min(kGroups, groups - g), y.of(t) + first + g * height, true);
            }
        }
    }

    // Rows [first, last) of the term.
    void add_panels(const Term& term, int64_t first, int64_t last) {
        const Storage& storage = *term.run.storage;
        const ggml_tensor* t = storage.tensor;
        const Tokens x = input(term), y = result(term);
        const row_panels::Matrix matrix{t->type, static_cast<const std::byte*>(t->data), t->ne[0], t->ne[1],
                                        storage.fold};
        const int64_t height = rows_per_group(storage), from = term.run.first + first,
                      to = term.run.first + last;
        row_panels::multiply(matrix, {from / height, (to + height - 1) / height}, {0, matrix.groups()},
                             work_.panel_inputs.get({term.source, term.offset, term.columns, t->type}, x),
                             y.count, {y.data + first, static_cast<size_t>(y.stride), true}, work_.panels);
    }

    void add_transposed(const Term& term) {
        const auto [first, last] = range(term, term.columns);
        if (first >= last) return;
        const Tokens y = result(term);
        const int64_t columns = last - first;
        work_.sums.assign(static_cast<size_t>(y.count * columns), 0.0F);
        sum_transposed(term, first, last, work_.sums.data());
        for (int64_t t = 0; t < y.count; ++t) {
            const float* sums = work_.sums.data() + t * columns;
            for (int64_t i = 0; i < columns; ++i) y.of(t)[first + i] += sums[i];
        }
    }

    // sums [token][last - first], zeros before.
    void sum_transposed(const Term& term, int64_t first, int64_t last, float* sums) {
        const ggml_tensor* tensor = term.run.storage->tensor;
        const ggml_type type = tensor->type;
        const Tokens x = input(term);
        const int64_t columns = last - first;
        const size_t skipped = ggml_row_size(type, term.column + first);
        if (is_float(type) || type == GGML_TYPE_Q8_0) {
            const kernels::Rows rows{row_of(term.run, 0) + skipped, tensor->nb[1], term.run.count, columns,
                                     element_of(type)};
            return kernels::add_weighted_rows(rows, x.data, x.stride, sums, columns, x.count);
        }
        constexpr int64_t kRows = 4;
        work_.floats.resize(static_cast<size_t>(kRows * columns));
        const ggml_to_float_t to_float = ggml_get_type_traits(type)->to_float;
        for (int64_t r = 0; r < term.run.count; r += kRows) {
            const int64_t count = std::min(kRows, term.run.count - r);
            for (int64_t i = 0; i < count; ++i)
                to_float(row_of(term.run, r + i) + skipped, work_.floats.data() + i * columns, columns);
            const kernels::Rows rows{work_.floats.data(), static_cast<size_t>(columns) * sizeof(float), count,
                                     columns, Element::f32};
            kernels::add_weighted_rows(rows, x.data + r, x.stride, sums, columns, x.count);
        }
    }

    static float role(const Combination& c, int64_t row) {
        return reinterpret_cast<const float*>(row_of(c.roles, row))[c.role];
    }

    // y_h = mean over the heads g of its group of U2^T sum over c of U3[c, role] x[:, c, g]
    void combine(const Term& term) {
        const Combination& c = term.combination;
        const int64_t width = c.width(), r2 = c.r2(), r3 = c.r3();
        const auto [first, last] = range(term, width * c.heads);
        const Tokens x = input(term), y = result(term);
        for (int64_t h = first / width; h * width < last; ++h) {
            const int64_t begin = std::max(first - h * width, int64_t{0}),
                          end = std::min(last - h * width, width);
            for (int64_t t = 0; t < y.count; ++t) {
                std::vector<float>& weights = work_.floats;
                weights.assign(static_cast<size_t>(r2), 0.0F);
                for (int64_t part = 0; part < c.group * r3; ++part) {
                    const float factor = role(c, part % r3) / static_cast<float>(c.group);
                    const float* from = x.of(t) + (h * c.group * r3 + part) * r2;
                    for (int64_t j = 0; j < r2; ++j) weights[static_cast<size_t>(j)] += factor * from[j];
                }
                add_head(c, weights.data(), begin, end, y.of(t) + h * width);
            }
        }
    }

    // y[begin, end) += rows [begin, end) of U2^T weights, in the order of the rotary pairs.
    void add_head(const Combination& c, const float* weights, int64_t begin, int64_t end, float* y) {
        const size_t stride = c.head.storage->tensor->nb[1];
        const auto* rows = reinterpret_cast<const float*>(row_of(c.head, 0));
        if (!c.halves) {
            return kernels::add_weighted_rows({rows + begin, stride, c.r2(), end - begin, Element::f32},
                                              weights, 0, y + begin, 0, 1);
        }
        const int64_t width = c.width();
        work_.head.assign(static_cast<size_t>(width), 0.0F);
        kernels::add_weighted_rows({rows, stride, c.r2(), width, Element::f32}, weights, 0, work_.head.data(),
                                   0, 1);
        for (int64_t i = begin; i < end; ++i) y[i] += work_.head[static_cast<size_t>(rotary_row(i, width))];
    }

    // y[j, c, h] += U3[c, role] <U2 row j, x_h>
    void spread(const Term& term) {
        const Combination& c = term.combination;
        const int64_t width = c.width(), r2 = c.r2(), rows = r2 * c.r3();
        const auto [first, last] = range(term, rows * c.heads);
        const Tokens x = input(term), y = result(term);
        for (int64_t h = first / rows; h * rows < last; ++h) {
            const int64_t begin = std::max(first, h * rows), end = std::min(last, (h + 1) * rows);
            for (int64_t t = 0; t < y.count; ++t) {
                const float* head = in_rotary_order(c, x.of(t) + h * width);
                std::vector<float>& products = work_.floats;
                products.assign(static_cast<size_t>(r2), 0.0F);
                const int64_t from = end - begin < r2 ? begin % r2 : 0, count = std::min(end - begin, r2);
                // `count` rows of U2 from row `from` on, cyclically.
                for (int64_t j = from, left = count; left > 0; j = 0) {
                    const int64_t rows_here = std::min(left, r2 - j);
                    kernels::add_products(
                        {row_of(c.head, j), c.head.storage->tensor->nb[1], rows_here, width, Element::f32},
                        head, 0, products.data() + j, 0, 1);
                    left -= rows_here;
                }
                for (int64_t i = begin; i < end; ++i)
                    y.of(t)[i] += role(c, i % rows / r2) * products[static_cast<size_t>(i % r2)];
            }
        }
    }

    const float* in_rotary_order(const Combination& c, const float* x) {
        if (!c.halves) return x;
        const int64_t width = c.width();
        work_.head.resize(static_cast<size_t>(width));
        for (int64_t i = 0; i < width; ++i) work_.head[static_cast<size_t>(rotary_row(i, width))] = x[i];
        return work_.head.data();
    }

    void add_identity(const Term& term) {
        const Tokens x = input(term), y(dst_, segment_.first);
        for (int64_t t = 0; t < y.count; ++t) {
            for (int64_t i = from_; i < to_; ++i) y.of(t)[i] += x.of(t)[i];
        }
    }

    const ggml_tensor* dst_;
    const Segment& segment_;
    int64_t from_, to_;
    Workspace& work_;
};

// Rows of a segment that must stay in one work item: a row group, a block, a head.
int64_t rows_together(const Term& term) {
    const Combination& c = term.combination;
    switch (term.kind) {
        case Term::Kind::rows: return rows_per_group(*term.run.storage);
        case Term::Kind::transposed: return ggml_blck_size(term.run.storage->tensor->type);
        case Term::Kind::combine: return c.heads > 1 || c.halves ? c.width() : 1;
        case Term::Kind::spread: return c.heads > 1 ? c.r2() * c.r3() : 1;
        default: return 1;
    }
}

}  // namespace

void Product::split_work() {
    work_items.clear();
    for (size_t s = 0; s < segments.size(); ++s) {
        int64_t together = 1;
        for (const Term& term : segments[s].terms) together = std::lcm(together, rows_together(term));
        const int64_t rows = (kRowsPerItem + together - 1) / together * together;
        for (int64_t from = 0; from < segments[s].rows; from += rows)
            work_items.push_back({s, from, std::min(from + rows, segments[s].rows)});
    }
}

const Storage* Product::whole(int64_t columns) const {
    const Storage* storage = nullptr;
    for (const Segment& segment : segments) {
        const Term& term = segment.terms.front();
        if (segment.terms.size() != 1 || segment.scale.storage != nullptr || term.kind != Term::Kind::rows ||
            term.offset != 0 || term.columns != columns || term.columns != term.run.storage->in() ||
            term.run.first != segment.first || (storage != nullptr && storage != term.run.storage))
            return nullptr;
        storage = term.run.storage;
    }
    const bool is_whole = storage != nullptr && storage->rows() == out && storage->layout == Layout::panels;
    return is_whole ? storage : nullptr;
}

bool is_of_panels(const Term& term) {
    return term.kind == Term::Kind::rows && term.run.storage->layout == Layout::panels;
}

static void run(ggml_tensor* dst, int thread, int threads, void* user, bool adds) {
    thread_local Workspace work;
    work.inputs.clear();
    work.panel_inputs.clear();
    const auto& product = *static_cast<const Product*>(user);
    const auto [first, last] = thread_share(static_cast<int64_t>(product.work_items.size()), thread, threads);
    for (int64_t i = first; i < last; ++i) {
        const Product::WorkItem& item = product.work_items[static_cast<size_t>(i)];
        SegmentProduct segment(dst, product.segments[item.segment], item.from, item.to, work);
        if (!adds) segment.clear();
        segment.run();
    }
}

void multiply(ggml_tensor* dst, int thread, int threads, void* product) {
    run(dst, thread, threads, product, false);
}
void add(ggml_tensor* dst, int thread, int threads, void* product) {
    run(dst, thread, threads, product, true);
}

}  // namespace refold::factors
