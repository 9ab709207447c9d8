// Weights that are stored, whole or head by head, as rectangles of tensors.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "model/model.h"

namespace refold {

// A rectangle of a stored tensor: rows [row, row + rows), columns [column, column + columns).
struct StoredBlock {
    const Tensor* tensor;
    int64_t row, rows, column, columns;
};

// Tensors read so far: one that is produced is computed once for all its parts.
class ReadTensors {
public:
    std::span<const std::byte> bytes(const Tensor& tensor) {
        auto& entry = read_[&tensor];
        if (!entry) entry = std::make_unique<TensorBytes>(tensor);
        return entry->bytes();
    }

private:
    std::map<const Tensor*, std::unique_ptr<TensorBytes>> read_;
};

// In the order of the slot's own rows, or of its columns where heads_are_columns(). Only of Dense and Heads.
std::vector<StoredBlock> stored_blocks(const Model& model, const Expression& expression, Slot slot);

}  // namespace refold
