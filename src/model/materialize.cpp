#include "model/materialize.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>

#include "model/row_parts.h"
#include "model/stored_blocks.h"

namespace refold {
namespace {

using Floats = std::vector<float>;

// c = a (m x k) b (k x n), row major; a or b may be given transposed.
Floats product(const Floats& a, bool a_transposed, const Floats& b, bool b_transposed, int64_t m, int64_t n,
               int64_t k) {
    Floats c(static_cast<size_t>(m * n));
    cblas_sgemm(CblasRowMajor, a_transposed ? CblasTrans : CblasNoTrans,
                b_transposed ? CblasTrans : CblasNoTrans, static_cast<int>(m), static_cast<int>(n),
                static_cast<int>(k), 1.0F, a.data(), static_cast<int>(a_transposed ? m : k), b.data(),
                static_cast<int>(b_transposed ? k : n), 0.0F, c.data(), static_cast<int>(n));
    return c;
}

Floats stored_floats(const Model& model, const Expression& expression, Slot slot, SlotShape shape) {
    Floats out(static_cast<size_t>(shape.in * shape.out));
    int64_t row = 0, column = 0;
    ReadTensors tensors;
    for (const auto& block : stored_blocks(model, expression, slot)) {
        const auto bytes = tensors.bytes(*block.tensor);
        if (block.tensor->fold() > 1) {  // always whole: see validate()
            dequantize(block.tensor->type, bytes, out);
            continue;
        }
        const size_t stride = row_bytes(block.tensor->type, block.tensor->row_elements());
        for (int64_t r = 0; r < block.rows; ++r) {
            const auto from = bytes.subspan(
                static_cast<size_t>(block.row + r) * stride + row_bytes(block.tensor->type, block.column),
                row_bytes(block.tensor->type, block.columns));
            const size_t to = static_cast<size_t>((row + r) * shape.in + column);
            dequantize(block.tensor->type, from,
                       std::span(out).subspan(to, static_cast<size_t>(block.columns)));
        }
        if (heads_are_columns(slot)) {
            column += block.columns;
        } else {
            row += block.rows;
        }
    }
    return out;
}

Floats low_rank(const Model& model, const LowRank& e, SlotShape shape) {
    Floats u = floats_of(model, e.u), v = floats_of(model, e.v);
    const int64_t rank = model.tensor(e.u).row_elements();
    if (!e.scale.empty()) {
        const Floats scale = floats_of(model, e.scale);
        for (size_t i = 0; i < u.size(); ++i)
            u[i] *= scale[static_cast<size_t>(e.row * rank) + i % static_cast<size_t>(rank)];
    }
    return e.transposed ? product(v, true, u, true, shape.out, shape.in, rank)
                        : product(u, false, v, false, shape.out, shape.in, rank);
}

Floats tucker(const Model& model, const Tucker& e, SlotShape shape) {
    const Tensor& tensor = model.tensor(e.core);
    const int64_t r1 = tensor.shape[0], r2 = tensor.shape[1], r3 = tensor.shape[2],
                  core_heads = tensor.rows() / (r2 * r3);
    const Floats core = floats_of(model, e.core), u1 = floats_of(model, e.model),
                 roles = floats_of(model, e.roles);
    Floats u2 = floats_of(model, e.head);
    const int64_t width = model.tensor(e.head).row_elements();
    const int64_t heads = (e.transposed ? shape.in : shape.out) / width, group = core_heads / heads;
    if (e.halves) {
        const Floats given = u2;
        for (int64_t i = 0; i < r2 * width; ++i)
            u2[static_cast<size_t>(i)] = given[static_cast<size_t>(rotary_row(i, width))];
    }
    const int64_t n_roles = model.tensor(e.roles).row_elements(),
                  features = e.transposed ? shape.out : shape.in;
    Floats out(static_cast<size_t>(shape.in * shape.out));
    for (int64_t h = 0; h < heads; ++h) {
        Floats slice(static_cast<size_t>(r1 * r2));  // [R2][R1], of this role, mean over the group
        for (int64_t part = h * group * r3; part < (h + 1) * group * r3; ++part) {
            const float weight =
                roles[static_cast<size_t>(part % r3 * n_roles + e.role)] / static_cast<float>(group);
            const float* from = core.data() + part * r1 * r2;
            for (size_t i = 0; i < slice.size(); ++i) slice[i] += weight * from[i];
        }
        const Floats rows =
            product(u2, true, product(slice, false, u1, false, r2, features, r1), false, width, features, r2);
        for (int64_t r = 0; r < width; ++r) {
            for (int64_t c = 0; c < features; ++c) {
                const int64_t to =
                    e.transposed ? c * shape.in + h * width + r : (h * width + r) * features + c;
                out[static_cast<size_t>(to)] = rows[static_cast<size_t>(r * features + c)];
            }
        }
    }
    return out;
}

Floats row_parts(const Model& model, const RowParts& e) {
    const std::vector<int32_t> ids = ids_in_order(model, e);
    const auto width = static_cast<size_t>(model.tensor(e.parts.front()).row_elements());
    Floats out(ids.size() * width);
    size_t at = 0;
    for (const std::string& part : e.parts) {
        const Floats rows = floats_of(model, part);
        for (size_t i = 0; i < rows.size(); i += width, ++at)
            std::copy_n(&rows[i], width, &out[static_cast<size_t>(ids[at]) * width]);
    }
    return out;
}

}  // namespace

std::vector<float> transposed(std::span<const float> matrix, int64_t rows, int64_t columns) {
    std::vector<float> out(matrix.size());
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c)
            out[static_cast<size_t>(c * rows + r)] = matrix[static_cast<size_t>(r * columns + c)];
    }
    return out;
}

std::vector<float> floats_of(const Model& model, const std::string& name) {
    const Tensor& tensor = model.tensor(name);
    const TensorBytes bytes(tensor);
    std::vector<float> out(static_cast<size_t>(tensor.elements()));
    dequantize(tensor.type, bytes.bytes(), out);
    return out;
}

std::vector<float> materialize(const Model& model, const Expression& expression, Slot slot, size_t layer) {
    const SlotShape shape = slot_shape(slot, model.config, layer);
    if (const auto* factors = std::get_if<LowRank>(&expression)) return low_rank(model, *factors, shape);
    if (const auto* factors = std::get_if<Tucker>(&expression)) return tucker(model, *factors, shape);
    if (const auto* plus = std::get_if<Plus>(&expression)) {
        Floats out = materialize(model, base_of(expression), slot, layer);
        const Floats term = low_rank(model, plus->term, shape);
        for (size_t i = 0; i < out.size(); ++i) out[i] += term[i];
        return out;
    }
    if (const auto* rows = std::get_if<RowParts>(&expression)) return row_parts(model, *rows);
    return stored_floats(model, expression, slot, shape);
}

std::vector<float> inverse_row_norms(const Tensor& tensor) {
    const TensorBytes bytes(tensor);
    const auto width = static_cast<size_t>(tensor.row_elements()),
               together = static_cast<size_t>(tensor.fold());
    const size_t stride = row_bytes(tensor.type, tensor.row_elements() * tensor.fold());
    std::vector<float> rows(width * together), inverse;
    for (size_t at = 0; at < bytes.bytes().size(); at += stride) {
        dequantize(tensor.type, bytes.bytes().subspan(at, stride), rows);
        for (size_t r = 0; r < together; ++r) {
            double square = 0;
            for (const float x : std::span(rows).subspan(r * width, width))
                square += static_cast<double>(x) * x;
            inverse.push_back(static_cast<float>(1.0 / std::max(std::sqrt(square), 1e-12)));
        }
    }
    return inverse;
}

}  // namespace refold
