#include "model/without_sharing.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "model/families/common/gguf_keys.h"
#include "model/materialize.h"
#include "model/row_parts.h"
#include "model/stored_blocks.h"
#include "model/validate.h"

namespace refold {
namespace {

using Floats = std::vector<float>;

// The bytes of blocks of one type, laid side by side without requantizing.
std::vector<std::byte> gather(const std::vector<StoredBlock>& blocks, Slot slot, DType type,
                              SlotShape shape) {
    std::vector<std::byte> out(row_bytes(type, shape.in) * static_cast<size_t>(shape.out));
    const size_t out_stride = row_bytes(type, shape.in);
    size_t row_offset = 0, column_offset = 0;
    ReadTensors tensors;
    for (const auto& block : blocks) {
        const size_t stride = row_bytes(type, block.tensor->row_elements());
        const size_t width = row_bytes(type, block.columns);
        const std::byte* from = tensors.bytes(*block.tensor).data() +
                                static_cast<size_t>(block.row) * stride + row_bytes(type, block.column);
        for (int64_t r = 0; r < block.rows; ++r) {
            const size_t to = (row_offset + static_cast<size_t>(r)) * out_stride + column_offset;
            memcpy(out.data() + to, from + static_cast<size_t>(r) * stride, width);
        }
        if (heads_are_columns(slot)) {
            column_offset += width;
        } else {
            row_offset += static_cast<size_t>(block.rows);
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

Packed packed(std::shared_ptr<const Model> model, const Expression& expression, Slot slot, size_t layer) {
    const SlotShape shape = slot_shape(slot, model->config, layer);
    DType type = widest_type(*model, expression);
    if (shape.in % block_elements(type) != 0) type = DType::F16;
    const bool stored =
        std::holds_alternative<Dense>(expression) || std::holds_alternative<Heads>(expression);
    const auto names = tensors_of(expression);
    const bool one_type = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
        return model->tensor(name).type == type;
    });
    return {type, shape, [=, model = std::move(model)] {
                if (stored && one_type)
                    return gather(stored_blocks(*model, expression, slot), slot, type, shape);
                return quantize(type, materialize(*model, expression, slot, layer), shape.in);
            }};
}

// Where the units of a pruned layer's weight (heads with their ALiBi slopes) lie in its full size. Without
// numbers they are the first ones.
struct Places {
    std::vector<int64_t> numbers;  // of the units
    int64_t width = 1;             // rows or columns of a unit
    bool columns = false;

    // The row or column in full size of row or column `i`.
    int64_t of(int64_t i) const {
        return numbers.empty() ? i : numbers[static_cast<size_t>(i / width)] * width + i % width;
    }
};

Places places_of(const ModelConfig& config, Slot slot, size_t layer) {
    const auto units = properties(slot).units;
    if (layer == kWholeModel || !units || unit_extent(slot) == Extent::n_ff) return {};
    const int64_t heads = has_query_heads(slot) ? config.q_per_kv() : 1;
    return {config.alibi_heads_of(layer), heads * config.head_dim, units == UnitAxis::columns};
}

// The norm reads the rows of all heads at once, so that it changes when heads of zeros are added.
bool normalizes_all(Slot slot, const ModelConfig& config) {
    return properties(slot).kind == SlotKind::norm_gain && properties(slot).units && !config.norm_by_head;
}

// The gain of such a norm when zeros fill its input up to `full` elements: but for the epsilon, the root mean
// square then is sqrt(n / full) of what it was.
std::function<std::vector<std::byte>()> as_part_of(const Packed& own, int64_t full) {
    return [own, full] {
        std::vector<std::byte> bytes = own.produce();
        Floats gain(bytes.size() / sizeof(float));
        memcpy(gain.data(), bytes.data(), bytes.size());
        const double factor = std::sqrt(static_cast<double>(gain.size()) / static_cast<double>(full));
        for (float& g : gain) g = static_cast<float>(g * factor);
        memcpy(bytes.data(), gain.data(), bytes.size());
        return bytes;
    };
}

// A pruned layer's weight in the full size, filled up with zeros; ones for a norm.
Tensor padded(const Packed& own, Slot slot, SlotShape full, const Places& places) {
    const bool vector = is_vector(slot);
    Tensor tensor{own.type, vector ? std::vector{full.in} : std::vector{full.in, full.out}, {}, {}};
    if (full.in % block_elements(own.type) != 0 || own.shape.in % block_elements(own.type) != 0)
        fail(ErrorCode::unsupported, "model", "{}: {} of {} columns cannot be filled up in {}",
             slot_name(slot), own.shape.in, full.in, name(own.type));
    const int64_t piece = places.columns && !places.numbers.empty() ? places.width : own.shape.in;
    if (piece % block_elements(own.type) != 0)
        fail(ErrorCode::unsupported, "model", "{}: heads of {} columns cannot be put in their places in {}",
             slot_name(slot), piece, name(own.type));
    tensor.produce = [own, full, places, piece] {
        const size_t stride = row_bytes(own.type, full.in), width = row_bytes(own.type, piece);
        const auto zeros = quantize(own.type, Floats(static_cast<size_t>(full.in)), full.in);
        const std::vector<std::byte> rows = own.produce();
        std::vector<std::byte> out;
        out.reserve(stride * static_cast<size_t>(full.out));
        for (int64_t r = 0; r < full.out; ++r) out.insert(out.end(), zeros.begin(), zeros.end());
        const std::byte* from = rows.data();
        for (int64_t r = 0; r < own.shape.out; ++r) {
            const auto row = static_cast<size_t>(places.columns ? r : places.of(r));
            for (int64_t column = 0; column < own.shape.in; column += piece, from += width) {
                const int64_t to = places.columns ? places.of(column) : column;
                memcpy(out.data() + row * stride + row_bytes(own.type, to), from, width);
            }
        }
        return out;
    };
    return tensor;
}

Packed constant(Slot slot, DType type, SlotShape shape) {
    const float value = properties(slot).kind == SlotKind::norm_gain ? 1.0F : 0.0F;
    return {type, shape, [=] {
                return quantize(type, Floats(static_cast<size_t>(shape.in * shape.out), value), shape.in);
            }};
}

// Layers become as wide as the widest of them, not as wide as they once were.
void set_widest_ffn(const Model& model, Model& dense) {
    const auto& widths = model.config.ffs;
    const int64_t widest = widths.empty() ? 0 : *std::max_element(widths.begin(), widths.end());
    if (widest == 0) return;
    dense.config.n_ff = widest;
    dense.metadata.set(std::string(model.family->name) + ".feed_forward_length",
                       GgufValue::u32(static_cast<uint32_t>(widest)));
}

}  // namespace

Model without_exits(Model model) {
    for (Slots& slots : model.topology.layers)
        std::erase_if(slots, [](const auto& s) { return properties(s.first).module == SlotModule::exit; });
    model.drop_unreferenced();
    return model;
}

Model with_whole_columns(Model model) {
    // Producers share ownership of what they read.
    const auto given = std::make_shared<const Model>(model);
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        for (auto& [slot, expression] : model.topology.layers[l]) {
            if (!heads_are_columns(slot)) continue;
            auto* plus = std::get_if<Plus>(&expression);
            const Expression base = base_of(expression);
            const auto* heads = std::get_if<Heads>(&base);
            if (heads == nullptr || tensors_of(base).size() < 2) continue;
            const Packed weight = packed(given, base, slot, l);
            const auto same = [&](const std::string& name) {
                return given->tensor(name).type == weight.type;
            };
            if (!std::ranges::all_of(tensors_of(base), same)) continue;
            const std::string name = fmt::format("layer {} {}", l, slot_name(slot));
            model.tensors[name] = {weight.type, {weight.shape.in, weight.shape.out}, {}, weight.produce};
            if (plus != nullptr)
                plus->base = Dense{name};
            else
                expression = Dense{name};
        }
    }
    return model;
}

Model without_sharing(const Model& given) {
    const std::optional<Model> tables = with_whole_tables(given);
    const Model model = without_exits(tables ? *tables : given);
    if (model.config.n_prefix > 0)
        fail(ErrorCode::unsupported, "model",
             "{}: prefix keys and values cannot be written as weights - only refold's own format has them "
             "(--to native)",
             model.label);
    const auto by_birth = implied_sources(model.config, model.topology.layers.size());
    for (const auto& [layer, source] : model.topology.sources) {
        if (const auto found = by_birth.find(layer); found != by_birth.end() && found->second == source)
            continue;
        fail(ErrorCode::unsupported, "model",
             "{}: layer {} takes its {} from layer {}, which no weights of its own can do - only "
             "refold's own format can say it (--to native)",
             model.label, layer, source.kv ? "keys and values" : "attention probabilities",
             source.from(layer));
    }
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        for (const auto& [slot, expression] : model.topology.layers[l]) {
            if (is_compensation(slot))
                fail(ErrorCode::unsupported, "model",
                     "{}: layer {} has {}, which only refold's own format can say (--to native)", model.label,
                     l, slot_name(slot));
        }
    }
    for (size_t l = 0; l < model.config.experts.size(); ++l) {
        const int64_t experts = model.config.experts[l];
        if (experts != 0 && experts != model.config.n_expert)
            fail(ErrorCode::unsupported, "model",
                 "{}: layers have different numbers of experts (layer {}: {} of {}), which only refold's own "
                 "format can say (--to native)",
                 model.label, l, experts, model.config.n_expert);
    }
    // Producers share ownership of what they read: `model` may be gone when they run.
    const auto shared = std::make_shared<const Model>(model);
    Model dense = model;
    dense.tensors.clear();
    dense.config.heads_kv.clear();
    dense.config.ffs.clear();
    dense.config.alibi_heads.clear();
    set_widest_ffn(model, dense);
    const auto add = [&](const std::string& name, Slot slot, const Expression& expression, size_t layer) {
        const SlotShape full = slot_shape(slot, dense.config), own = slot_shape(slot, model.config, layer);
        const auto* whole = std::get_if<Dense>(&expression);
        if (own.in != full.in || own.out != full.out) {
            Packed weight = packed(shared, expression, slot, layer);
            if (normalizes_all(slot, model.config)) weight.produce = as_part_of(weight, full.in);
            dense.tensors[name] = padded(weight, slot, full, places_of(model.config, slot, layer));
        } else if (whole != nullptr) {
            dense.tensors[name] = model.tensor(whole->tensor);
        } else {
            Packed weight = packed(shared, expression, slot, layer);
            dense.tensors[name] =
                Tensor{weight.type, tensor_shape(slot, dense.config, layer), {}, weight.produce};
        }
    };
    std::map<Slot, DType> types;  // of every slot that some layer has
    for (const auto& slots : model.topology.layers) {
        for (const auto& [slot, expression] : slots) types.try_emplace(slot, widest_type(model, expression));
    }
    for (const auto& description : model.family->layer_slots) {  // ... or must have
        const DType type = is_vector(description.slot) ? DType::F32 : DType::F16;
        if (description.required) types.try_emplace(description.slot, type);
    }
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        const Slots& slots = model.topology.layers[l];
        for (const auto& [slot, expression] : slots)
            add(tensor_name(*model.family, slot, l), slot, expression, l);
        for (const auto& [slot, type] : types) {
            const bool left_out = (model.config.n_head_kv_of(l) == 0 && belongs_to_attention(slot)) ||
                                  (model.config.n_ff_of(l) == 0 && belongs_to_ffn(slot));
            if (!left_out || slots.contains(slot) || !is_of_layer(slot, model.config.n_expert_of(l) > 0))
                continue;
            const SlotShape full = slot_shape(slot, dense.config);
            Packed weight = constant(slot, full.in % block_elements(type) == 0 ? type : DType::F16, full);
            dense.tensors[tensor_name(*model.family, slot, l)] =
                Tensor{weight.type,
                       is_vector(slot) ? std::vector{full.in} : std::vector{full.in, full.out},
                       {},
                       weight.produce};
        }
    }
    for (const auto& [slot, expression] : model.topology.globals) {
        const bool tied = slot == Slot::output && expression == model.topology.globals.at(Slot::token_embd);
        if (!tied) add(tensor_name(*model.family, slot, 0), slot, expression, kWholeModel);
    }
    for (const auto& name : unread_tensors(model.family, model.config, model.topology.layers.size())) {
        if (const auto found = model.tensors.find(name); found != model.tensors.end())
            dense.tensors[name] = found->second;
    }
    const auto has_tensor = [&](const std::string& name) { return dense.tensors.contains(name); };
    dense.topology = implied_topology(*model.family, dense.config, model.topology.layers.size(), has_tensor);
    dense.metadata.erase(std::string(model.family->name) + "." + kExpertLayersKey);  // of the stored layers
    dense.metadata.set(std::string(model.family->name) + ".block_count",
                       GgufValue::u32(static_cast<uint32_t>(model.topology.layers.size())));
    validate(dense);
    return dense;
}

}  // namespace refold
