#include "engine/ggml/factors.h"

#include <algorithm>
#include <numeric>

#include "engine/ggml/factor_kernels.h"
#include "engine/ggml/parts.h"
#include "model/topology.h"

namespace refold::factors {
namespace {

using kernels::Element;

constexpr int64_t kPieceRows = 64;

bool is_float(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

// ggml's product of two rows is mostly call where they are short, and takes the end of a row number by
// number; of float32 rows ours is as fast.
bool is_ours(ggml_type type, Layout layout, int64_t columns) {
    constexpr int64_t kShort = 128, kStep = 64;
    if (type == GGML_TYPE_F32) return true;
    if (is_float(type)) return columns <= kShort || columns % kStep != 0;
    return type == GGML_TYPE_Q8_0 && layout == Layout::plain && columns <= kShort;
}

// Kernels of ours read these types as they are.
Element element_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F32: return Element::f32;
        case GGML_TYPE_F16: return Element::f16;
        case GGML_TYPE_BF16: return Element::bf16;
        default: return Element::q8_0;
    }
}

const std::byte* row_of(const Run& run, int64_t row) {
    const ggml_tensor* tensor = run.storage->tensor;
    return static_cast<const std::byte*>(tensor->data) + static_cast<size_t>(run.first + row) * tensor->nb[1];
}

// A node's input or result: floats of several tokens.
struct Tokens {
    float* data;
    int64_t stride, count;

    Tokens(const ggml_tensor* tensor, int64_t offset)
        : data(static_cast<float*>(tensor->data) + offset),
          stride(static_cast<int64_t>(tensor->nb[1] / sizeof(float))),
          count(tensor->ne[1]) {}
    float* of(int64_t token) const { return data + token * stride; }
};

// Parts of the sources in the types that kernels of quantised weights want; each is made once per node and
// thread.
class QuantisedInputs {
public:
    struct Key {
        int source;
        int64_t offset, columns;
        ggml_type type;
        bool operator==(const Key&) const = default;
    };

    void clear() {
        entries_.clear();
        used_ = 0;
    }

    // Rows of the input, ggml_row_size(type, columns) bytes apart; valid until the next call.
    const std::byte* get(const Key& key, const Tokens& x) {
        for (const auto& [known, place] : entries_) {
            if (known == key) return buffer_.data() + place;
        }
        const size_t row = ggml_row_size(key.type, key.columns), place = used_;
        used_ += row * static_cast<size_t>(x.count);
        if (buffer_.size() < used_) buffer_.resize(used_);
        entries_.emplace_back(key, place);
        const ggml_from_float_t from_float = ggml_get_type_traits_cpu(key.type)->from_float;
        for (int64_t t = 0; t < x.count; ++t)
            from_float(x.of(t), buffer_.data() + place + row * static_cast<size_t>(t), key.columns);
        return buffer_.data() + place;
    }

private:
    std::vector<std::pair<Key, size_t>> entries_;
    std::vector<std::byte> buffer_;
    size_t used_ = 0;
};

// Buffers that a thread keeps between nodes.
struct Workspace {
    QuantisedInputs inputs;
    std::vector<float> floats, head;
};

// One thread's rows [from, to) of a segment.
class Adder {
public:
    Adder(const ggml_tensor* dst, const Segment& segment, int64_t from, int64_t to, Workspace& work)
        : dst_(dst), segment_(segment), from_(from), to_(to), work_(work) {}

    void run() {
        const Tokens y(dst_, segment_.first);
        for (int64_t t = 0; t < y.count; ++t) std::fill(y.of(t) + from_, y.of(t) + to_, 0.0F);
        for (const Term& term : segment_.terms) add(term);
        if (segment_.scale.storage == nullptr) return;
        const auto* scale = reinterpret_cast<const float*>(row_of(segment_.scale, 0));
        for (int64_t t = 0; t < y.count; ++t) {
            for (int64_t i = from_; i < to_; ++i) y.of(t)[i] *= scale[i];
        }
    }

private:
    // Rows of a term that this thread has.
    struct Range {
        int64_t first, last;
    };
    Range range(const Term& term, int64_t rows) const {
        return {std::max(from_, term.to) - term.to, std::min(to_, term.to + rows) - term.to};
    }
    Tokens result(const Term& term) const { return {dst_, segment_.first + term.to}; }
    Tokens input(const Term& term) const { return {dst_->src[term.source], term.offset}; }

    void add(const Term& term) {
        switch (term.kind) {
            case Term::Kind::rows: return add_rows(term);
            case Term::Kind::transposed: return add_transposed(term);
            case Term::Kind::combine: return combine(term);
            case Term::Kind::spread: return spread(term);
            case Term::Kind::given: return add_given(term);
        }
    }

    void add_rows(const Term& term) {
        const auto [first, last] = range(term, term.run.count);
        if (first >= last) return;
        const Storage& storage = *term.run.storage;
        const ggml_type type = storage.tensor->type;
        const Tokens x = input(term), y = result(term);
        if (is_ours(type, storage.layout, term.columns)) {
            const kernels::Rows rows{row_of(term.run, first) + ggml_row_size(type, term.column),
                                     storage.tensor->nb[1], last - first, term.columns, element_of(type)};
            return kernels::add_products(rows, x.data, x.stride, y.data + first, y.stride, y.count);
        }
        const int64_t height = parts::rows_per_group(storage.layout);
        const size_t stride = parts::group_bytes(type, storage.layout, storage.in());
        const ggml_type x_type = parts::input_type(type, storage.layout);
        const std::byte* quantised = work_.inputs.get({term.source, term.offset, term.columns, x_type}, x);
        const std::byte* weights = static_cast<const std::byte*>(storage.tensor->data) +
                                   static_cast<size_t>((term.run.first + first) / height) * stride +
                                   parts::group_bytes(type, storage.layout, term.column);
        const parts::RowProduct product{type, storage.layout, term.columns};
        // A few rows for all tokens before the next ones are read.
        constexpr int64_t kGroups = 8;
        const int64_t groups = (last - first) / height;
        for (int64_t g = 0; g < groups; g += kGroups) {
            for (int64_t t = 0; t < y.count; ++t) {
                product(weights + static_cast<size_t>(g) * stride, stride,
                        quantised + static_cast<size_t>(t) * ggml_row_size(x_type, term.columns),
                        std::min(kGroups, groups - g), y.of(t) + first + g * height, true);
            }
        }
    }

    void add_transposed(const Term& term) {
        const auto [first, last] = range(term, term.columns);
        if (first >= last) return;
        const ggml_tensor* tensor = term.run.storage->tensor;
        const ggml_type type = tensor->type;
        const Tokens x = input(term), y = result(term);
        const size_t skipped = ggml_row_size(type, term.column + first);
        if (is_float(type) || type == GGML_TYPE_Q8_0) {
            const kernels::Rows rows{row_of(term.run, 0) + skipped, tensor->nb[1], term.run.count,
                                     last - first, element_of(type)};
            return kernels::add_weighted_rows(rows, x.data, x.stride, y.data + first, y.stride, y.count);
        }
        constexpr int64_t kRows = 4;
        const int64_t columns = last - first;
        work_.floats.resize(static_cast<size_t>(kRows * columns));
        const ggml_to_float_t to_float = ggml_get_type_traits(type)->to_float;
        for (int64_t r = 0; r < term.run.count; r += kRows) {
            const int64_t count = std::min(kRows, term.run.count - r);
            for (int64_t i = 0; i < count; ++i)
                to_float(row_of(term.run, r + i) + skipped, work_.floats.data() + i * columns, columns);
            const kernels::Rows rows{work_.floats.data(), static_cast<size_t>(columns) * sizeof(float), count,
                                     columns, Element::f32};
            kernels::add_weighted_rows(rows, x.data + r, x.stride, y.data + first, y.stride, y.count);
        }
    }

    static float role(const Combination& c, int64_t row) {
        return reinterpret_cast<const float*>(row_of(c.roles, row))[c.role];
    }

    // y_h = U2 sum over c of U3[c] x[:, c, h], the mean of a group's heads.
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

    // y[begin..end) += U2[:, begin..end) weights, in the order of the rotation.
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

    // y[j, c, h] += U3[c] <U2 row j, x_h>
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
                // Rows of U2 from `from` on, around its end.
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

    void add_given(const Term& term) {
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

int64_t unit_of(const Term& term) {
    const Combination& c = term.combination;
    switch (term.kind) {
        case Term::Kind::rows: return parts::rows_per_group(term.run.storage->layout);
        case Term::Kind::transposed: return ggml_blck_size(term.run.storage->tensor->type);
        case Term::Kind::combine: return c.heads > 1 || c.halves ? c.width() : 1;
        case Term::Kind::spread: return c.heads > 1 ? c.r2() * c.r3() : 1;
        default: return 1;
    }
}

}  // namespace

void Product::divide() {
    pieces.clear();
    for (size_t s = 0; s < segments.size(); ++s) {
        int64_t unit = 1;
        for (const Term& term : segments[s].terms) unit = std::lcm(unit, unit_of(term));
        const int64_t rows = (kPieceRows + unit - 1) / unit * unit;
        for (int64_t from = 0; from < segments[s].rows; from += rows)
            pieces.push_back({s, from, std::min(from + rows, segments[s].rows)});
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
    return storage != nullptr && storage->rows() == out ? storage : nullptr;
}

void multiply(ggml_tensor* dst, int thread, int threads, void* user) {
    thread_local Workspace work;
    work.inputs.clear();
    const auto& product = *static_cast<const Product*>(user);
    const auto [first, last] = parts::share_of(static_cast<int64_t>(product.pieces.size()), thread, threads);
    for (int64_t i = first; i < last; ++i) {
        const Product::Piece& piece = product.pieces[static_cast<size_t>(i)];
        Adder(dst, product.segments[piece.segment], piece.from, piece.to, work).run();
    }
}

}  // namespace refold::factors
