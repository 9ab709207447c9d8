#include "compress/rewrite/experts.h"

#include <algorithm>

#include "compress/rewrite/cut.h"
#include "core/error.h"

namespace refold {
namespace {

constexpr auto kExpertSlots =
    slots_where([](const SlotProperties& s) { return s.module == SlotModule::experts; });

// How many layers use each tensor.
std::map<std::string, size_t> users_of_tensors(const Topology& topology) {
    std::map<std::string, size_t> out;
    for (const Slots& slots : topology.layers) {
        for (const auto& [slot, expression] : slots) {
            for (const std::string& name : tensors_of(expression)) ++out[name];
        }
    }
    return out;
}

// Elements (of a vector) or rows (of a matrix) that belong to one expert.
int64_t elements_of_expert(Slot slot, const ModelConfig& config, size_t layer) {
    const SlotShape shape = slot_shape(slot, config, layer);
    return (is_vector(slot) ? shape.in : shape.out) / config.n_expert_of(layer);
}

}  // namespace

void need_own_experts(const Model& model, const std::vector<size_t>& layers, const char* method) {
    const auto users = users_of_tensors(model.topology);
    for (const size_t p : layers) {
        for (const Slot slot : kExpertSlots) {
            if (!model.topology.has(p, slot)) continue;
            const auto* dense = std::get_if<Dense>(&model.topology.at(p, slot));
            if (dense == nullptr)
                fail(ErrorCode::unsupported, method,
                     "layer {}: {} is made of factors or comes from several tensors - do this step first, or "
                     "leave the layer out with 'layers'",
                     p, slot_name(slot));
            if (users.at(dense->tensor) > 1)
                fail(ErrorCode::unsupported, method,
                     "layer {}: another layer has the same {} - do this step first, or leave the layer out "
                     "with 'layers'",
                     p, slot_name(slot));
        }
    }
}

void keep_experts(Model& model, size_t layer, const std::vector<int64_t>& kept) {
    const int64_t before = model.config.n_expert_of(layer);
    if (static_cast<int64_t>(kept.size()) == before) return;
    for (const Slot slot : kExpertSlots) {
        if (!model.topology.has(layer, slot)) continue;
        const std::string name = std::get<Dense>(model.topology.at(layer, slot)).tensor;
        const int64_t width = elements_of_expert(slot, model.config, layer);
        if (is_vector(slot)) {
            std::vector<Columns> columns;
            for (const int64_t e : kept) columns.push_back({name, e * width, width});
            set_columns(model, slot, {{layer, columns}});
            continue;
        }
        const Tensor whole = model.tensor(name);
        Tensor rest = keep_parts(model, whole, {false, width, kept}, whole.type);
        // Matrices of experts have a dimension for the expert.
        if (whole.shape.size() == 3)
            rest.shape = {whole.shape[0], whole.shape[1], static_cast<int64_t>(kept.size())};
        model.tensors[name] = std::move(rest);
    }
    ModelConfig& c = model.config;
    if (c.experts.empty()) c.experts.assign(model.topology.layers.size(), c.n_expert);
    c.experts[layer] = static_cast<int64_t>(kept.size());
}

void set_most_experts(Model& model) {
    ModelConfig& c = model.config;
    if (c.experts.empty()) return;
    c.n_expert = *std::max_element(c.experts.begin(), c.experts.end());
    model.metadata.set(std::string(model.family->name) + ".expert_count",
                       GgufValue::u32(static_cast<uint32_t>(c.n_expert)));
    if (std::all_of(c.experts.begin(), c.experts.end(), [&](int64_t n) { return n == c.n_expert; }))
        c.experts.clear();
}

}  // namespace refold
