// Expressions as dense weights: floats for methods and tests, packed bytes for export.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "model/model.h"

namespace refold {
namespace {

// A rectangle of a stored tensor: rows [row, row + rows), columns [column, column + columns).
struct Part {
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

std::vector<Part> parts_of(const Model& model, const Expression& expression, Slot slot) {
    std::vector<Part> parts;
    if (const auto* dense = std::get_if<Dense>(&expression)) {
        const Tensor& tensor = model.tensor(dense->tensor);
        parts.push_back({&tensor, 0, tensor.rows(), 0, tensor.row_elements()});
        return parts;
    }
    const int64_t head_dim = model.config.head_dim;
    for (const auto& run : std::get<Heads>(expression).runs) {
        const Tensor& tensor = model.tensor(run.tensor);
        if (heads_are_columns(slot)) {
            parts.push_back({&tensor, 0, tensor.rows(), run.first * head_dim, run.count * head_dim});
        } else {
            parts.push_back({&tensor, run.first * head_dim, run.count * head_dim, 0, tensor.row_elements()});
        }
    }
    return parts;
}

// Packed bytes of parts that have one type, laid side by side without requantising.
std::vector<std::byte> gather(const std::vector<Part>& parts, Slot slot, DType type, SlotShape shape) {
    std::vector<std::byte> out(row_bytes(type, shape.in) * static_cast<size_t>(shape.out));
    const size_t out_stride = row_bytes(type, shape.in);
    size_t row_offset = 0, column_offset = 0;
    ReadTensors tensors;
    for (const auto& part : parts) {
        const size_t stride = row_bytes(type, part.tensor->row_elements());
        const size_t width = row_bytes(type, part.columns);
        const std::byte* from = tensors.bytes(*part.tensor).data() + static_cast<size_t>(part.row) * stride +
                                row_bytes(type, part.column);
        for (int64_t r = 0; r < part.rows; ++r) {
            const size_t to = (row_offset + static_cast<size_t>(r)) * out_stride + column_offset;
            memcpy(out.data() + to, from + static_cast<size_t>(r) * stride, width);
        }
        if (heads_are_columns(slot)) {
            column_offset += width;
        } else {
            row_offset += static_cast<size_t>(part.rows);
        }
    }
    return out;
}

}  // namespace

std::vector<float> materialise(const Model& model, const Expression& expression, Slot slot) {
    const SlotShape shape = slot_shape(slot, model.config);
    std::vector<float> out(static_cast<size_t>(shape.in * shape.out));
    int64_t row = 0, column = 0;
    ReadTensors tensors;
    for (const auto& part : parts_of(model, expression, slot)) {
        const auto bytes = tensors.bytes(*part.tensor);
        const size_t stride = row_bytes(part.tensor->type, part.tensor->row_elements());
        for (int64_t r = 0; r < part.rows; ++r) {
            const auto from = bytes.subspan(
                static_cast<size_t>(part.row + r) * stride + row_bytes(part.tensor->type, part.column),
                row_bytes(part.tensor->type, part.columns));
            const size_t to = static_cast<size_t>((row + r) * shape.in + column);
            dequantise(part.tensor->type, from,
                       std::span(out).subspan(to, static_cast<size_t>(part.columns)));
        }
        if (heads_are_columns(slot)) {
            column += part.columns;
        } else {
            row += part.rows;
        }
    }
    return out;
}

std::vector<float> inverse_row_norms(const Tensor& tensor) {
    const TensorBytes bytes(tensor);
    const size_t stride = row_bytes(tensor.type, tensor.row_elements());
    std::vector<float> row(static_cast<size_t>(tensor.row_elements())), inverse;
    for (size_t r = 0; r < static_cast<size_t>(tensor.rows()); ++r) {
        dequantise(tensor.type, bytes.bytes().subspan(r * stride, stride), row);
        double square = 0;
        for (const float x : row) square += static_cast<double>(x) * x;
        inverse.push_back(static_cast<float>(1.0 / std::max(std::sqrt(square), 1e-12)));
    }
    return inverse;
}

StockModel for_stock(const Model& model) {
    Model dense = without_sharing(model);
    return dense.family->to_stock != nullptr ? dense.family->to_stock(dense)
                                             : StockModel{std::move(dense), {}};
}

Model without_sharing(const Model& model) {
    // Producers share ownership of what they read: `model` may be gone when they run.
    const auto shared = std::make_shared<const Model>(model);
    Model dense = model;
    dense.tensors.clear();
    const auto add = [&](const std::string& name, Slot slot, const Expression& expression) {
        const auto parts = parts_of(model, expression, slot);
        if (const auto* whole = std::get_if<Dense>(&expression)) {
            dense.tensors[name] = model.tensor(whole->tensor);
            return;
        }
        const SlotShape shape = slot_shape(slot, model.config);
        const auto widest = std::max_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
            return row_bytes(a.tensor->type, 256) < row_bytes(b.tensor->type, 256);
        });
        const DType type = widest->tensor->type;
        const bool one_type =
            std::all_of(parts.begin(), parts.end(), [&](const Part& p) { return p.tensor->type == type; });
        Tensor tensor{type, {shape.in, shape.out}, {}, {}};
        tensor.produce = [shared, expression, slot, shape, type, one_type] {
            if (one_type) return gather(parts_of(*shared, expression, slot), slot, type, shape);
            return quantise(type, materialise(*shared, expression, slot), shape.in);
        };
        dense.tensors[name] = std::move(tensor);
    };
    for (size_t p = 0; p < model.topology.positions.size(); ++p) {
        for (const auto& [slot, expression] : model.topology.positions[p])
            add(tensor_name(*model.family, slot, p), slot, expression);
    }
    for (const auto& [slot, expression] : model.topology.globals) {
        const bool tied = slot == Slot::output && expression == model.topology.globals.at(Slot::token_embd);
        if (!tied) add(tensor_name(*model.family, slot, 0), slot, expression);
    }
    const auto has_tensor = [&](const std::string& name) { return dense.tensors.contains(name); };
    dense.topology = implied_topology(*model.family, model.topology.positions.size(), has_tensor);
    dense.metadata.set(std::string(model.family->name) + ".block_count",
                       GgufValue::u32(static_cast<uint32_t>(model.topology.positions.size())));
    validate(dense);
    return dense;
}

}  // namespace refold
