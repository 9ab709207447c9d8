#include "compress/head_sharing/similarity.h"

#include <cblas.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "core/interrupt.h"
#include "core/parallel.h"
#include "core/progress.h"

namespace refold {
namespace {

int64_t rows_of(const MatrixOfEach& matrix) {
    int64_t rows = 0;
    for (const RowBlock& block : matrix.front()) rows += block.count;
    return rows;
}

// Packed rows [first, first + count) of one matrix of each vector: views of mapped tensors, copies of
// computed ones.
class StackedRows {
public:
    StackedRows(const Model& model, const MatrixOfEach& matrix, int64_t first, int64_t count)
        : rows_(matrix.size()), source_(model.source) {
        struct Use {
            size_t vector;
            int64_t offset;  // first row of the block within the vector's matrix
            RowBlock block;
        };
        std::map<std::string, std::vector<Use>> by_tensor;
        for (size_t v = 0; v < matrix.size(); ++v) {
            int64_t offset = 0;
            for (const RowBlock& block : matrix[v]) {
                by_tensor[block.tensor].push_back({v, offset, block});
                offset += block.count;
            }
        }
        for (const auto& [name, uses] : by_tensor) {
            const Tensor& tensor = model.tensor(name);
            const size_t stride = row_bytes(tensor.type, tensor.row_elements());
            const TensorBytes bytes(tensor);
            for (const auto& [vector, offset, block] : uses) {
                const int64_t begin = std::max(first, offset),
                              end = std::min(first + count, offset + block.count);
                if (begin >= end) continue;
                auto view = bytes.bytes().subspan(static_cast<size_t>(block.first + begin - offset) * stride,
                                                  static_cast<size_t>(end - begin) * stride);
                if (tensor.produce) {
                    owned_.emplace_back(view.begin(), view.end());
                    view = owned_.back();
                }
                rows_[vector].push_back({tensor.type, stride, begin, end, view});
            }
            check_interrupt();
        }
    }

    // Mapped pages are read once and need not stay resident.
    ~StackedRows() {
        if (source_ == nullptr) return;
        for (const auto& blocks : rows_) {
            for (const PackedRows& block : blocks) source_->release(block.view);
        }
    }
    StackedRows(const StackedRows&) = delete;
    StackedRows& operator=(const StackedRows&) = delete;

    void read(size_t vector, int64_t row, std::span<float> out) const {
        const auto block =
            std::find_if(rows_[vector].begin(), rows_[vector].end(),
                         [&](const PackedRows& rows) { return rows.begin <= row && row < rows.end; });
        const auto offset = static_cast<size_t>(row - block->begin) * block->stride;
        dequantize(block->type, block->view.subspan(offset, block->stride), out);
    }

private:
    struct PackedRows {
        DType type;
        size_t stride;       // bytes of a row
        int64_t begin, end;  // rows of the vector's matrix
        std::span<const std::byte> view;
    };
    std::vector<std::vector<PackedRows>> rows_;  // [vector]
    std::vector<std::vector<std::byte>> owned_;
    std::shared_ptr<const SourceFiles> source_;
};

// Bytes of the tensors of a matrix that are computed, not mapped.
size_t produced_bytes(const Model& model, const MatrixOfEach& matrix) {
    std::set<std::string> names;
    for (const auto& blocks : matrix) {
        for (const RowBlock& block : blocks) names.insert(block.tensor);
    }
    size_t bytes = 0;
    for (const auto& name : names) {
        if (model.tensor(name).produce) bytes += model.tensor(name).bytes();
    }
    return bytes;
}

class Gram {
public:
    Gram(size_t vectors, size_t panel_bytes)
        : n_(vectors), panel_bytes_(panel_bytes), gram_(vectors * vectors, 0.0) {}

    // Adds the products of rows [begin, end), panel by panel with dsyrk.
    void add(const StackedRows& source, size_t width, int64_t begin, int64_t end,
             std::optional<Progress>& progress) {
        const auto panel_rows =
            static_cast<int64_t>(std::max<size_t>(1, panel_bytes_ / (n_ * width * sizeof(double))));
        for (int64_t row = begin; row < end; row += panel_rows) {
            const int64_t count = std::min(panel_rows, end - row);
            const size_t columns = static_cast<size_t>(count) * width;
            panel_.resize(n_ * columns);
            parallel_for(static_cast<int64_t>(n_), default_threads(), [&](int64_t vector) {
                std::vector<float> values(width);
                double* out = panel_.data() + static_cast<size_t>(vector) * columns;
                for (int64_t r = 0; r < count; ++r, out += width) {
                    source.read(static_cast<size_t>(vector), row + r, values);
                    std::copy(values.begin(), values.end(), out);
                }
            });
            const auto n = static_cast<int>(n_), k = static_cast<int>(columns);
            cblas_dsyrk(CblasRowMajor, CblasLower, CblasNoTrans, n, k, 1.0, panel_.data(), k, 1.0,
                        gram_.data(), n);
            if (progress) progress->advance(static_cast<uint64_t>(count));
        }
    }

    std::vector<double> take() { return std::move(gram_); }

private:
    size_t n_, panel_bytes_;
    std::vector<double> gram_, panel_;
};

}  // namespace

std::vector<double> gram_matrix(const Model& model, const std::vector<MatrixOfEach>& matrices,
                                const std::string& title, const MatchMemory& memory) {
    if (matrices.front().empty()) return {};
    int64_t total = 0;
    for (const auto& matrix : matrices) total += rows_of(matrix);
    std::optional<Progress> progress;
    if (!title.empty()) progress.emplace(title, static_cast<uint64_t>(total), "rows");
    Gram gram(matrices.front().size(), memory.panel);
    for (const auto& matrix : matrices) {
        const int64_t rows = rows_of(matrix);
        const auto width = static_cast<size_t>(model.tensor(matrix.front().front().tensor).row_elements());
        const auto stripes =
            static_cast<int64_t>((produced_bytes(model, matrix) + memory.produced - 1) / memory.produced);
        const int64_t stripe = stripes > 1 ? (rows + stripes - 1) / stripes : rows;
        for (int64_t begin = 0; begin < rows; begin += stripe) {
            const int64_t end = std::min(rows, begin + stripe);
            gram.add(StackedRows(model, matrix, begin, end - begin), width, begin, end, progress);
        }
    }
    if (progress) progress->finish();
    return gram.take();
}

}  // namespace refold
