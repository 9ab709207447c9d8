#include "compress/rounding/gptq_rounding.h"

#include <algorithm>

#include "core/parallel.h"
#include "io/block_grid.h"
#include "linalg/blas.h"
#include "linalg/device.h"

namespace refold {
namespace {

using Floats = std::vector<float>;

// So many rows are corrected together, side by side in vectors: a row's own sums have the same order as
// alone.
constexpr size_t kTogether = 32;
using Lanes [[gnu::vector_size(kTogether * sizeof(double))]] = double;

// sums += errors[k] factors[k] over k < count.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
[[gnu::target_clones("avx512f", "avx2", "default")]]
#endif
void add_products(const Lanes* errors, const double* factors, size_t count, Lanes& sums) {
    Lanes out = sums;
    for (size_t k = 0; k < count; ++k) out += errors[k] * factors[k];
    sums = out;
}

// Columns are kept in reversed order: column c of the map has index inputs - 1 - c. With gram = L L^T, the
// squared error of the outputs is |E L|^2, whose element at index i depends only on the errors at indices
// from i on: those of column c and of the columns before.
class GptqRounding {
public:
    GptqRounding(std::span<const float> weights, const RoundingInputs& in, DType type)
        : in_(in),
          n_(static_cast<size_t>(in.inputs)),
          outputs_(weights.size() / n_),
          type_(type),
          grid_(block_grid(type)),
          factor_(in.gram.rbegin(), in.gram.rend()),
          weights_(weights.begin(), weights.end()),
          errors_(weights.size()),
          kept_errors_(std::span<const double>(errors_)),
          packed_(row_bytes(type, in.rounded) * outputs_) {}

    Rounded run() {
        if (!factorize()) return nearest_rounded(weights_, {{}, in_.inputs, in_.rounded}, type_);
        const auto rounded = static_cast<size_t>(in_.rounded),
                   block = static_cast<size_t>(block_elements(type_));
        for (size_t first = 0; first < rounded; first += block) round(corrected(first, block));
        if (rounded < n_) store(corrected(rounded, n_ - rounded));
        return {std::move(weights_), std::move(packed_)};
    }

private:
    // Columns [first, first + count) of the map, at indices [end - count, end).
    struct Block {
        size_t first, count, end;
        // [outputs x count]: what the errors of earlier blocks add to E L, and the best values where the
        // whole block can still correct them.
        std::vector<double> carried;
        Floats targets;
        // Row j: the elements of L that tell how the errors of the block's columns 0 ... j change column j.
        std::vector<double> factors;
    };

    bool factorize() {
        double mean = 0;
        for (size_t i = 0; i < n_; ++i) mean += factor_[i * (n_ + 1)] / static_cast<double>(n_);
        // As in GPTQ: weights of inputs that the text lacks must not change without limit.
        for (size_t i = 0; i < n_; ++i) factor_[i * (n_ + 1)] += 0.01 * mean;
        return mean > 0 && blas::cholesky(in_.inputs, factor_.data());
    }

    // L[row][column]
    double factor(size_t row, size_t column) const { return factor_[column * n_ + row]; }

    Block corrected(size_t first, size_t count) const {
        Block out{first, count, n_ - first, std::vector<double>(outputs_ * count), Floats(outputs_ * count),
                  {}};
        carry(out);
        for (size_t j = 0; j < count; ++j) {
            for (size_t k = 0; k < count; ++k)
                out.factors.push_back(k <= j ? factor(out.end - 1 - k, out.end - 1 - j) : 0);
        }
        for_rows([&](size_t o, size_t rows) {
            std::vector<Lanes> errors(count);
            for (size_t j = 0; j < count; ++j) {
                Lanes correction;
                correct(out, o, rows, j, errors, correction);
                errors[j] = -correction;
                for (size_t r = 0; r < rows; ++r)
                    out.targets[(o + r) * count + j] =
                        static_cast<float>(given(o + r, first + j) + correction[r]);
            }
        });
        return out;
    }

    void carry(Block& block) const {
        if (block.first == 0) return;
        const size_t begin = block.end - block.count;
        std::vector<double> panel, sums(outputs_ * block.count);
        for (size_t c = begin; c < block.end; ++c)
            panel.insert(panel.end(), &factor_[c * n_ + block.end], factor_.data() + (c + 1) * n_);
        blas::multiply(blas::Op::plain, blas::Op::plain,
                       {static_cast<int64_t>(outputs_), static_cast<int64_t>(block.count),
                        static_cast<int64_t>(block.first)},
                       errors_.data() + block.end * outputs_, panel.data(), sums.data());
        for (size_t o = 0; o < outputs_; ++o) {
            for (size_t j = 0; j < block.count; ++j)
                block.carried[o * block.count + j] = sums[(block.count - 1 - j) * outputs_ + o];
        }
    }

    // What makes up in column j of the block, in rows from o on, for the errors of the columns before.
    static void correct(const Block& block, size_t o, size_t rows, size_t j, const std::vector<Lanes>& errors,
                        Lanes& out) {
        const double* factors = block.factors.data() + j * block.count;
        out = Lanes{};
        for (size_t r = 0; r < rows; ++r) out[r] = block.carried[(o + r) * block.count + j];
        add_products(errors.data(), factors, j, out);
        out /= factors[j];
    }

    void round(Block block) {
        Floats importance;
        for (size_t j = 0; j < block.count; ++j) {
            const double own = block.factors[j * (block.count + 1)];
            importance.push_back(static_cast<float>(own * own));
        }
        auto blocks =
            quantize(type_, block.targets, static_cast<int64_t>(block.count), importance, default_threads());
        if (grid_ != nullptr) choose_codes(block, blocks);
        const size_t bytes = block_bytes(type_), per_row = packed_.size() / outputs_;
        for (size_t o = 0; o < outputs_; ++o)
            std::copy_n(&blocks[o * bytes], bytes, &packed_[o * per_row + block.first / block.count * bytes]);
        dequantize(type_, blocks, block.targets);
        store(block);
    }

    void choose_codes(const Block& block, std::vector<std::byte>& blocks) const {
        const size_t bytes = block_bytes(type_), count = block.count;
        for_rows([&](size_t o, size_t rows) {
            Floats scale(rows * count), offset(rows * count);
            std::vector<uint8_t> codes(rows * count);
            std::vector<Lanes> errors(count);
            for (size_t r = 0; r < rows; ++r)
                grid_->read_scales(&blocks[(o + r) * bytes], &scale[r * count], &offset[r * count]);
            for (size_t j = 0; j < count; ++j) {
                Lanes correction;
                correct(block, o, rows, j, errors, correction);
                for (size_t r = 0; r < rows; ++r) {
                    const size_t at = r * count + j;
                    const double before = given(o + r, block.first + j), wanted = before + correction[r];
                    codes[at] = grid_->nearest(static_cast<float>(wanted), scale[at], offset[at]);
                    errors[j][r] =
                        before - static_cast<double>(grid_->value(codes[at], scale[at], offset[at]));
                }
            }
            for (size_t r = 0; r < rows; ++r) grid_->write_codes(&blocks[(o + r) * bytes], &codes[r * count]);
        });
    }

    // The block's targets are final.
    void store(const Block& block) {
        for (size_t o = 0; o < outputs_; ++o) {
            for (size_t j = 0; j < block.count; ++j) {
                float& weight = weights_[o * n_ + block.first + j];
                const float value = block.targets[o * block.count + j];
                errors_[(block.end - 1 - j) * outputs_ + o] =
                    static_cast<double>(weight) - static_cast<double>(value);
                weight = value;
            }
        }
        kept_errors_.changed(std::span<const double>(errors_).subspan((block.end - block.count) * outputs_,
                                                                      block.count * outputs_));
    }

    double given(size_t output, size_t column) const {
        return static_cast<double>(weights_[output * n_ + column]);
    }

    // body(first, rows): at most kTogether rows at a time.
    template <typename Body>
    void for_rows(Body&& body) const {
        parallel_for(static_cast<int64_t>((outputs_ + kTogether - 1) / kTogether), default_threads(),
                     [&](int64_t part) {
                         const size_t first = static_cast<size_t>(part) * kTogether;
                         body(first, std::min(kTogether, outputs_ - first));
                     });
    }

    const RoundingInputs& in_;
    size_t n_, outputs_;
    DType type_;
    const BlockGrid* grid_;
    std::vector<double> factor_;  // column major, lower
    Floats weights_;              // given where not yet rounded
    std::vector<double> errors_;  // [n][outputs], by index: given - rounded
    blas::Kept kept_errors_;      // a product of each block reads all of the blocks before
    std::vector<std::byte> packed_;
};

// Rows that are folded, as one row each: the rounded columns of the first one, of the next one and so on,
// then the exact columns of all of them. Their inputs do not meet, so the Gram matrix has blocks on its
// diagonal and no error is corrected in another row; what they share are the scales of blocks.
class FoldedRows {
public:
    FoldedRows(const RoundingInputs& in, int64_t fold)
        : n_(static_cast<size_t>(in.inputs)),
          rounded_(static_cast<size_t>(in.rounded)),
          fold_(static_cast<size_t>(fold)),
          gram_(n_ * fold_ * n_ * fold_) {
        for (size_t row = 0; row < fold_; ++row)
            for (size_t i = 0; i < n_; ++i)
                for (size_t j = 0; j < n_; ++j)
                    gram_[at(row, i) * n_ * fold_ + at(row, j)] = in.gram[i * n_ + j];
    }

    RoundingInputs inputs() const {
        return {gram_, static_cast<int64_t>(n_ * fold_), static_cast<int64_t>(rounded_ * fold_)};
    }
    Floats folded(std::span<const float> rows) const {
        Floats out(rows.size());
        each(rows.size(), [&](size_t plain, size_t folded) { out[folded] = rows[plain]; });
        return out;
    }
    Floats unfolded(std::span<const float> rows) const {
        Floats out(rows.size());
        each(rows.size(), [&](size_t plain, size_t folded) { out[plain] = rows[folded]; });
        return out;
    }

private:
    size_t at(size_t row, size_t column) const {
        return column < rounded_ ? row * rounded_ + column
                                 : fold_ * rounded_ + row * (n_ - rounded_) + column - rounded_;
    }
    template <typename Body>
    void each(size_t values, Body&& body) const {
        for (size_t i = 0; i < values; ++i) {
            const size_t row = i / n_;
            body(i, row / fold_ * fold_ * n_ + at(row % fold_, i % n_));
        }
    }

    size_t n_, rounded_, fold_;
    std::vector<double> gram_;
};

}  // namespace

Rounded gptq_rounded(std::span<const float> weights, const RoundingInputs& inputs, DType type) {
    const int64_t together = fold(type, inputs.rounded);
    if (together == 1) return GptqRounding(weights, inputs, type).run();
    const FoldedRows rows(inputs, together);
    const RoundingInputs of_rows = rows.inputs();
    Rounded out = GptqRounding(rows.folded(weights), of_rows, type).run();
    out.values = rows.unfolded(out.values);
    return out;
}

Rounded nearest_rounded(std::span<const float> weights, const RoundingInputs& inputs, DType type) {
    const auto n = static_cast<size_t>(inputs.inputs), rounded = static_cast<size_t>(inputs.rounded);
    const size_t outputs = weights.size() / n;
    Floats columns, importance;
    for (size_t o = 0; o < outputs; ++o)
        columns.insert(columns.end(), &weights[o * n], weights.data() + o * n + rounded);
    for (size_t i = 0; i < rounded && !inputs.gram.empty(); ++i)
        importance.push_back(static_cast<float>(inputs.gram[i * (n + 1)]));
    Rounded out{{weights.begin(), weights.end()},
                quantize(type, columns, inputs.rounded, importance, default_threads())};
    dequantize(type, out.packed, columns);
    for (size_t o = 0; o < outputs; ++o) std::copy_n(&columns[o * rounded], rounded, &out.values[o * n]);
    return out;
}

}  // namespace refold
