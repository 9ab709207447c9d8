// Expressions as dense weights: floats for methods and tests, packed bytes for export.
#include <cblas.h>

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

// Only of dense and shared weights.
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

Floats stored_parts(const Model& model, const Expression& expression, Slot slot, SlotShape shape) {
    Floats out(static_cast<size_t>(shape.in * shape.out));
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

// The widest of the types that an expression's numbers have; small float32 factors do not count.
DType widest_type(const Model& model, const Expression& expression) {
    std::vector<std::string> names;
    if (const auto* plus = std::get_if<Plus>(&expression)) {
        names = {plus->term.u, plus->term.v};
        for (const auto& name : tensors_of(base_of(expression))) names.push_back(name);
    } else if (const auto* e = std::get_if<LowRank>(&expression)) {
        names = {e->u, e->v};
    } else if (const auto* t = std::get_if<Tucker>(&expression)) {
        names = {t->core, t->model};
    } else {
        names = tensors_of(expression);
    }
    DType widest = model.tensor(names.front()).type;
    for (const auto& name : names) {
        const DType type = model.tensor(name).type;
        if (row_bytes(type, 256) > row_bytes(widest, 256)) widest = type;
    }
    return widest;
}

// A slot's weight as packed bytes; blocks that do not divide its rows are unpacked to F16.
struct Packed {
    DType type;
    SlotShape shape;
    std::function<std::vector<std::byte>()> produce;
};

Packed packed(std::shared_ptr<const Model> model, const Expression& expression, Slot slot, size_t position) {
    const SlotShape shape = slot_shape(slot, model->config, position);
    DType type = widest_type(*model, expression);
    if (shape.in % block_elements(type) != 0) type = DType::F16;
    const bool stored =
        std::holds_alternative<Dense>(expression) || std::holds_alternative<Heads>(expression);
    const auto names = tensors_of(expression);
    const bool one_type = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
        return model->tensor(name).type == type;
    });
    return {type, shape, [=, model = std::move(model)] {
                if (stored && one_type) return gather(parts_of(*model, expression, slot), slot, type, shape);
                return quantise(type, materialise(*model, expression, slot, position), shape.in);
            }};
}

// What a pruned position lacks, as a tensor of the full size: zeros behind what it has; ones for a norm.
Tensor padded(const Packed& own, Slot slot, SlotShape full) {
    const bool vector = is_vector(slot);
    Tensor tensor{own.type, vector ? std::vector{full.in} : std::vector{full.in, full.out}, {}, {}};
    if (full.in % block_elements(own.type) != 0 || own.shape.in % block_elements(own.type) != 0)
        fail(ErrorCode::unsupported, "model", "{}: {} of {} columns cannot be filled up in {}",
             slot_name(slot), own.shape.in, full.in, name(own.type));
    tensor.produce = [own, full] {
        const size_t stride = row_bytes(own.type, full.in), width = row_bytes(own.type, own.shape.in);
        const auto zeros = quantise(own.type, Floats(static_cast<size_t>(full.in)), full.in);
        const std::vector<std::byte> rows = own.produce();
        std::vector<std::byte> out;
        out.reserve(stride * static_cast<size_t>(full.out));
        for (int64_t r = 0; r < full.out; ++r) {
            const bool given = r < own.shape.out && width > 0;
            const std::byte* from = given ? rows.data() + static_cast<size_t>(r) * width : zeros.data();
            out.insert(out.end(), from, from + (given ? width : stride));
            if (given)
                out.insert(out.end(), zeros.begin(), zeros.begin() + static_cast<ptrdiff_t>(stride - width));
        }
        return out;
    };
    return tensor;
}

Packed constant(Slot slot, DType type, SlotShape shape) {
    const bool norm = is_vector(slot) && bias_of(slot) != std::nullopt;
    const bool head_norm = slot == Slot::attn_q_norm || slot == Slot::attn_k_norm ||
                           slot == Slot::attn_post_norm || slot == Slot::ffn_post_norm;
    const float value = norm || head_norm ? 1.0F : 0.0F;
    return {type, shape, [=] {
                return quantise(type, Floats(static_cast<size_t>(shape.in * shape.out), value), shape.in);
            }};
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
    dequantise(tensor.type, bytes.bytes(), out);
    return out;
}

std::vector<float> materialise(const Model& model, const Expression& expression, Slot slot, size_t position) {
    const SlotShape shape = slot_shape(slot, model.config, position);
    if (const auto* factors = std::get_if<LowRank>(&expression)) return low_rank(model, *factors, shape);
    if (const auto* factors = std::get_if<Tucker>(&expression)) return tucker(model, *factors, shape);
    if (const auto* plus = std::get_if<Plus>(&expression)) {
        Floats out = materialise(model, base_of(expression), slot, position);
        const Floats term = low_rank(model, plus->term, shape);
        for (size_t i = 0; i < out.size(); ++i) out[i] += term[i];
        return out;
    }
    return stored_parts(model, expression, slot, shape);
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

Model without_exit_maps(Model model) {
    for (Slots& slots : model.topology.positions) slots.erase(Slot::exit_map);
    model.drop_unreferenced();
    return model;
}

Model without_sharing(const Model& given) {
    const Model model = without_exit_maps(given);
    if (model.config.n_prefix > 0)
        fail(ErrorCode::unsupported, "model",
             "{}: prefix keys and values cannot be written as weights - only refold's own format has them",
             model.label);
    for (const auto& [position, source] : model.topology.sources) {
        fail(ErrorCode::unsupported, "model",
             "{}: position {} takes its {} from position {}, which no weights of its own can do - only "
             "refold's own format can say it",
             model.label, position, source.kv ? "keys and values" : "attention probabilities",
             source.from(position));
    }
    for (size_t p = 0; p < model.topology.positions.size(); ++p) {
        for (const auto& [slot, expression] : model.topology.positions[p]) {
            if (is_compensation(slot))
                fail(ErrorCode::unsupported, "model",
                     "{}: position {} has {}, which only refold's own format can say", model.label, p,
                     slot_name(slot));
        }
    }
    // Producers share ownership of what they read: `model` may be gone when they run.
    const auto shared = std::make_shared<const Model>(model);
    Model dense = model;
    dense.tensors.clear();
    dense.config.heads_kv.clear();
    dense.config.ffs.clear();
    const auto add = [&](const std::string& name, Slot slot, const Expression& expression, size_t position) {
        const SlotShape full = slot_shape(slot, dense.config), own = slot_shape(slot, model.config, position);
        const auto* whole = std::get_if<Dense>(&expression);
        if (own.in != full.in || own.out != full.out) {
            dense.tensors[name] = padded(packed(shared, expression, slot, position), slot, full);
        } else if (whole != nullptr) {
            dense.tensors[name] = model.tensor(whole->tensor);
        } else {
            Packed weight = packed(shared, expression, slot, position);
            dense.tensors[name] = Tensor{weight.type, {full.in, full.out}, {}, std::move(weight.produce)};
        }
    };
    std::map<Slot, DType> types;  // of every slot that some position has
    for (const auto& slots : model.topology.positions) {
        for (const auto& [slot, expression] : slots) types.try_emplace(slot, widest_type(model, expression));
    }
    for (const auto& description : model.family->position_slots) {  // ... or must have
        const DType type = is_vector(description.slot) ? DType::F32 : DType::F16;
        if (description.required) types.try_emplace(description.slot, type);
    }
    for (size_t p = 0; p < model.topology.positions.size(); ++p) {
        const Slots& slots = model.topology.positions[p];
        for (const auto& [slot, expression] : slots)
            add(tensor_name(*model.family, slot, p), slot, expression, p);
        for (const auto& [slot, type] : types) {
            const bool left_out = (model.config.n_head_kv_of(p) == 0 && belongs_to_attention(slot)) ||
                                  (model.config.n_ff_of(p) == 0 && belongs_to_ffn(slot));
            if (!left_out || slots.contains(slot)) continue;
            const SlotShape full = slot_shape(slot, dense.config);
            Packed weight = constant(slot, full.in % block_elements(type) == 0 ? type : DType::F16, full);
            dense.tensors[tensor_name(*model.family, slot, p)] =
                Tensor{weight.type,
                       is_vector(slot) ? std::vector{full.in} : std::vector{full.in, full.out},
                       {},
                       std::move(weight.produce)};
        }
    }
    for (const auto& [slot, expression] : model.topology.globals) {
        const bool tied = slot == Slot::output && expression == model.topology.globals.at(Slot::token_embd);
        if (!tied) add(tensor_name(*model.family, slot, 0), slot, expression, kModelPosition);
    }
    const auto has_tensor = [&](const std::string& name) { return dense.tensors.contains(name); };
    dense.topology = implied_topology(*model.family, model.topology.positions.size(), has_tensor);
    dense.metadata.set(std::string(model.family->name) + ".block_count",
                       GgufValue::u32(static_cast<uint32_t>(model.topology.positions.size())));
    validate(dense);
    return dense;
}

}  // namespace refold
