#include "compress/rounding/gptq_rounding.h"

#include <algorithm>

#include "core/parallel.h"
#include "io/block_grid.h"
#include "linalg/blas.h"
#include "linalg/blas_threads.h"
#include "linalg/device.h"

namespace refold {
namespace {

using Floats = std::vector<float>;

// Threads share out parts of so many rows, which are the same for any number of threads.
constexpr size_t kRowsOfPart = 64;
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

// Rows that are folded are one row here: the rounded columns of the first one, of the next one and so on,
// then the exact columns of all of them. Their inputs do not meet, so no error is corrected in another row;
// what they share are the scales of blocks.
struct FoldedRows {
    size_t n, rounded, fold;  // columns of a row; those that are rounded; rows in one

    size_t width() const { return n * fold; }
    struct Column {
        size_t row, column;
    };
    Column at(size_t c) const {
        const size_t exact = n - rounded;
        if (c < rounded * fold) return {c / rounded, c % rounded};
        c -= rounded * fold;
        return {c / exact, rounded + c % exact};
    }
    // The first column that tells something about those of its row from `c` on.
    size_t first_of_row(size_t c) const { return c < rounded * fold ? c / rounded * rounded : 0; }
    // `rows` in this order, or back from it.
    Floats ordered(std::span<const float> rows, bool back) const {
        if (fold == 1) return {rows.begin(), rows.end()};
        Floats out(rows.size());
        for (size_t c = 0; c < width(); ++c) {
            const auto [row, column] = at(c);
            for (size_t first = 0; first < rows.size(); first += width()) {
                const size_t plain = first + row * n + column, folded = first + c;
                out[back ? plain : folded] = rows[back ? folded : plain];
            }
        }
        return out;
    }
};

// What the errors of columns change in the columns after them, the same for all rows. With gram = L L^T, the
// columns in reversed order, the squared error of the outputs is |E L|^2, whose element of a column depends
// only on the errors of that column and of the columns before.
class Feedback {
public:
    // Columns [first, first + count), which are rounded together.
    struct Block {
        size_t first, count;
        size_t reach;  // so many columns before them change them
        // [reach x count], column major, and [count x count] by column changed: elements of L.
        std::vector<double> before, within;
        Floats importance;  // the part of each column's error that later columns cannot correct
    };

    Feedback(const RoundingInputs& in, const FoldedRows& rows, size_t block)
        : rows_(rows), factor_(in.gram.rbegin(), in.gram.rend()) {
        if (!factorize()) return;
        const size_t rounded = rows.rounded * rows.fold;
        for (size_t first = 0; first < rounded; first += block) blocks_.push_back(of(first, block));
        if (rounded < rows.width()) blocks_.push_back(of(rounded, rows.width() - rounded));
        factor_ = {};
    }

    // Empty when the inputs tell nothing.
    const std::vector<Block>& blocks() const { return blocks_; }

private:
    bool factorize() {
        const size_t n = rows_.n;
        double mean = 0;
        for (size_t i = 0; i < n; ++i) mean += factor_[i * (n + 1)] / static_cast<double>(n);
        // As in GPTQ: weights of inputs that the text lacks must not change without limit.
        for (size_t i = 0; i < n; ++i) factor_[i * (n + 1)] += 0.01 * mean;
        return mean > 0 && blas::cholesky(static_cast<int64_t>(n), factor_.data());
    }

    // How the error of a column changes one that is not before it.
    double change(size_t error, size_t changed) const {
        const auto [row, from] = rows_.at(error);
        const auto [other_row, to] = rows_.at(changed);
        const size_t last = rows_.n - 1;
        return row == other_row ? factor_[(last - to) * rows_.n + (last - from)] : 0;
    }

    Block of(size_t first, size_t count) const {
        Block out{first, count, first - rows_.first_of_row(first), {}, {}, {}};
        for (size_t j = 0; j < count; ++j) {
            for (size_t k = first - out.reach; k < first; ++k) out.before.push_back(change(k, first + j));
            for (size_t k = 0; k < count; ++k)
                out.within.push_back(k <= j ? change(first + k, first + j) : 0);
            const double own = out.within[j * (count + 1)];
            out.importance.push_back(static_cast<float>(own * own));
        }
        return out;
    }

    const FoldedRows& rows_;
    std::vector<double> factor_;  // column major, lower, of the columns of one row in reversed order
    std::vector<Block> blocks_;
};

// Some rows of a matrix, rounded in place.
class RowsRounding {
public:
    RowsRounding(const std::vector<Feedback::Block>& blocks, DType type, std::span<float> weights,
                 size_t columns, std::span<std::byte> packed)
        : blocks_(blocks),
          type_(type),
          grid_(block_grid(type)),
          weights_(weights),
          n_(columns),
          outputs_(weights.size() / n_),
          packed_(packed),
          errors_(weights.size()),
          kept_errors_(std::span<const double>(errors_)) {}

    void run() {
        size_t rounded = packed_.size() / outputs_ / block_bytes(type_);
        for (const Feedback::Block& block : blocks_) {
            Values values = corrected(block);
            if (rounded > 0) {
                round(block, values);
                --rounded;
            }
            store(block, values.targets);
        }
    }

private:
    // [outputs x count]: what the errors of earlier blocks add to E L, and the best values where the whole
    // block can still correct them.
    struct Values {
        std::vector<double> carried;
        Floats targets;
    };

    Values corrected(const Feedback::Block& block) const {
        const size_t count = block.count;
        Values out{carried(block), Floats(outputs_ * count)};
        for_rows([&](size_t o, size_t rows) {
            std::vector<Lanes> errors(count);
            for (size_t j = 0; j < count; ++j) {
                Lanes correction;
                correct(block, out, o, rows, j, errors, correction);
                errors[j] = -correction;
                for (size_t r = 0; r < rows; ++r)
                    out.targets[(o + r) * count + j] =
                        static_cast<float>(given(o + r, block.first + j) + correction[r]);
            }
        });
        return out;
    }

    std::vector<double> carried(const Feedback::Block& block) const {
        std::vector<double> out(outputs_ * block.count);
        if (block.reach == 0) return out;
        std::vector<double> sums(out.size());
        blas::multiply(blas::Op::plain, blas::Op::plain,
                       {static_cast<int64_t>(outputs_), static_cast<int64_t>(block.count),
                        static_cast<int64_t>(block.reach)},
                       errors_.data() + (block.first - block.reach) * outputs_, block.before.data(),
                       sums.data());
        for (size_t o = 0; o < outputs_; ++o) {
            for (size_t j = 0; j < block.count; ++j) out[o * block.count + j] = sums[j * outputs_ + o];
        }
        return out;
    }

    // What makes up in column j of the block, in rows from o on, for the errors of the columns before.
    static void correct(const Feedback::Block& block, const Values& values, size_t o, size_t rows, size_t j,
                        const std::vector<Lanes>& errors, Lanes& out) {
        const double* factors = block.within.data() + j * block.count;
        out = Lanes{};
        for (size_t r = 0; r < rows; ++r) out[r] = values.carried[(o + r) * block.count + j];
        add_products(errors.data(), factors, j, out);
        out /= factors[j];
    }

    // The targets become what the type has for them.
    void round(const Feedback::Block& block, Values& values) const {
        auto blocks = quantize(type_, values.targets, static_cast<int64_t>(block.count), block.importance, 1);
        if (grid_ != nullptr) choose_codes(block, values, blocks);
        const size_t bytes = block_bytes(type_), per_row = packed_.size() / outputs_;
        for (size_t o = 0; o < outputs_; ++o)
            std::copy_n(&blocks[o * bytes], bytes, &packed_[o * per_row + block.first / block.count * bytes]);
        dequantize(type_, blocks, values.targets);
    }

    void choose_codes(const Feedback::Block& block, const Values& values,
                      std::vector<std::byte>& blocks) const {
        const size_t bytes = block_bytes(type_), count = block.count;
        for_rows([&](size_t o, size_t rows) {
            Floats scale(rows * count), offset(rows * count);
            std::vector<uint8_t> codes(rows * count);
            std::vector<Lanes> errors(count);
            for (size_t r = 0; r < rows; ++r)
                grid_->read_scales(&blocks[(o + r) * bytes], &scale[r * count], &offset[r * count]);
            for (size_t j = 0; j < count; ++j) {
                Lanes correction;
                correct(block, values, o, rows, j, errors, correction);
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

    void store(const Feedback::Block& block, const Floats& values) {
        for (size_t o = 0; o < outputs_; ++o) {
            for (size_t j = 0; j < block.count; ++j) {
                float& weight = weights_[o * n_ + block.first + j];
                const float value = values[o * block.count + j];
                errors_[(block.first + j) * outputs_ + o] =
                    static_cast<double>(weight) - static_cast<double>(value);
                weight = value;
            }
        }
        kept_errors_.changed(
            std::span<const double>(errors_).subspan(block.first * outputs_, block.count * outputs_));
    }

    double given(size_t output, size_t column) const {
        return static_cast<double>(weights_[output * n_ + column]);
    }

    // body(first, rows): at most kTogether rows at a time.
    template <typename Body>
    void for_rows(Body&& body) const {
        for (size_t first = 0; first < outputs_; first += kTogether)
            body(first, std::min(kTogether, outputs_ - first));
    }

    const std::vector<Feedback::Block>& blocks_;
    DType type_;
    const BlockGrid* grid_;
    std::span<float> weights_;  // given where not yet rounded
    size_t n_, outputs_;
    std::span<std::byte> packed_;
    std::vector<double> errors_;  // [columns][outputs]: given - rounded
    blas::Kept kept_errors_;      // a product of each block reads all of the blocks before
};

}  // namespace

Rounded gptq_rounded(std::span<const float> weights, const RoundingInputs& inputs, DType type) {
    const FoldedRows order{static_cast<size_t>(inputs.inputs), static_cast<size_t>(inputs.rounded),
                           static_cast<size_t>(fold(type, inputs.rounded))};
    const Feedback feedback(inputs, order, static_cast<size_t>(block_elements(type)));
    if (feedback.blocks().empty())
        return nearest_rounded(weights, {{}, inputs.inputs, inputs.rounded}, type, default_threads());
    const size_t width = order.width(), outputs = weights.size() / width;
    const size_t row = row_bytes(type, static_cast<int64_t>(order.rounded * order.fold));
    Rounded out{order.ordered(weights, false), std::vector<std::byte>(row * outputs)};
    const size_t together = blas::device() == nullptr ? kRowsOfPart : outputs;
    const size_t parts = (outputs + together - 1) / together;
    blas::share_out(static_cast<int64_t>(parts), [&](int64_t part) {
        const size_t first = static_cast<size_t>(part) * together, rows = std::min(together, outputs - first);
        RowsRounding(feedback.blocks(), type, std::span(out.values).subspan(first * width, rows * width),
                     width, std::span(out.packed).subspan(first * row, rows * row))
            .run();
    });
    out.values = order.ordered(out.values, true);
    return out;
}

Rounded nearest_rounded(std::span<const float> weights, const RoundingInputs& inputs, DType type,
                        int threads) {
    const auto n = static_cast<size_t>(inputs.inputs), rounded = static_cast<size_t>(inputs.rounded);
    const size_t outputs = weights.size() / n;
    Floats columns, importance;
    for (size_t o = 0; o < outputs; ++o)
        columns.insert(columns.end(), &weights[o * n], weights.data() + o * n + rounded);
    for (size_t i = 0; i < rounded && !inputs.gram.empty(); ++i)
        importance.push_back(static_cast<float>(inputs.gram[i * (n + 1)]));
    Rounded out{{weights.begin(), weights.end()},
                quantize(type, columns, inputs.rounded, importance, threads)};
    dequantize(type, out.packed, columns);
    for (size_t o = 0; o < outputs; ++o) std::copy_n(&columns[o * rounded], rounded, &out.values[o * n]);
    return out;
}

}  // namespace refold
