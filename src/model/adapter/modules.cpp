#include "model/adapter/modules.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "model/hf/layout.h"

namespace refold {
namespace {

// Matrices that one product with the residual stream, or within a module, is made with.
bool is_adaptable(Slot slot) {
    if (slot == Slot::output) return true;
    return is_matrix(slot) && !belongs_to_experts(slot) &&
           (properties(slot).module == SlotModule::attention || properties(slot).module == SlotModule::ffn) &&
           !is_compensation(slot) && !is_prefix(slot);
}

// Calls visit(layer, description) for all matrices that the model has and that LoRA can be added to.
template <class Visit>
void for_matrices(const Model& model, Visit&& visit) {
    const auto visit_slots = [&](const std::vector<SlotDescription>& slots, const Slots& filled,
                                 size_t layer) {
        for (const SlotDescription& slot : slots)
            if (is_adaptable(slot.slot) && filled.contains(slot.slot)) visit(layer, slot);
    };
    for (size_t l = 0; l < model.topology.layers.size(); ++l)
        visit_slots(model.family->layer_slots, model.topology.layers[l], l);
    visit_slots(model.family->model_slots, model.topology.globals, kWholeModel);
}

std::vector<int64_t> rows_from(int64_t first, int64_t count) {
    std::vector<int64_t> rows(static_cast<size_t>(count));
    std::iota(rows.begin(), rows.end(), first);
    return rows;
}

}  // namespace

AdaptedModules hf_modules(const Model& model) {
    AdaptedModules out;
    for_matrices(model, [&](size_t layer, const SlotDescription& slot) {
        if (slot.hf == nullptr || is_by_block(slot.hf)) return;
        const SlotShape shape = slot_shape(slot.slot, model.config, layer);
        const bool joined = (slot.layout & (hf_stacked | hf_qkv_per_head)) != 0;
        AdaptedModule::Part part{layer, slot.slot, {}};
        for (int64_t row = 0; row < shape.out; ++row) part.rows.push_back(hf_row(slot, model.config, row));
        const std::vector<int64_t> whole = hf_shape(slot, model.config);
        const int64_t rows = !joined                              ? shape.out
                             : (slot.layout & hf_transposed) != 0 ? whole.back()
                                                                  : whole.front();
        for (std::string name : hf_names(slot.hf, model.family->hf_prefix, layer)) {
            constexpr std::string_view kWeight = ".weight";
            if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
            AdaptedModule& module = out[name];
            module.in = shape.in;
            module.out = rows;
            module.parts.push_back(part);
        }
    });
    return out;
}

AdaptedModules gguf_modules(const Model& model) {
    AdaptedModules out;
    for_matrices(model, [&](size_t layer, const SlotDescription& slot) {
        const SlotShape shape = slot_shape(slot.slot, model.config, layer);
        out[tensor_name(slot, layer)] = {shape.in, shape.out, {{layer, slot.slot, rows_from(0, shape.out)}}};
    });
    for (const FusedMaps& fused : model.family->fused) {
        for (size_t l = 0; l < model.topology.layers.size(); ++l) {
            AdaptedModule module;
            for (const Slot slot : product_group(fused.first)) {
                if (!model.topology.has(l, slot)) continue;
                const SlotShape shape = slot_shape(slot, model.config, l);
                module.in = shape.in;
                module.parts.push_back({l, slot, rows_from(module.out, shape.out)});
                module.out += shape.out;
            }
            if (!module.parts.empty()) out[numbered(fused.weight, l)] = std::move(module);
        }
    }
    return out;
}

void add_factors(Adapter& adapter, const Model& model, const AdaptedModules& modules,
                 const AdapterFactors& factors) {
    const auto found = modules.find(factors.module);
    if (found == modules.end())
        fail(ErrorCode::unsupported, "adapter",
             "{}: LoRA of '{}', which is none of the matrices that '{}' has for it (those of its attention, "
             "its FFNs and the output layer)",
             adapter.label, factors.module, model.family->name);
    const AdaptedModule& module = found->second;
    if (factors.in != module.in || factors.out != module.out)
        fail(
            ErrorCode::input, "adapter",
            "{}: '{}' is for a matrix of {} x {}, the model's has {} x {} - the adapter is for another model",
            adapter.label, factors.module, factors.out, factors.in, module.out, module.in);
    const auto rank = static_cast<size_t>(factors.term.rank);
    for (const AdaptedModule::Part& part : module.parts) {
        Adapter::Term& term = adapter.terms.emplace_back(factors.term);
        term.layer = part.layer;
        term.slot = part.slot;
        term.b.resize(part.rows.size() * rank);
        for (size_t row = 0; row < part.rows.size(); ++row)
            std::copy_n(factors.term.b.begin() + static_cast<ptrdiff_t>(part.rows[row] * factors.term.rank),
                        rank, term.b.begin() + static_cast<ptrdiff_t>(row * rank));
    }
}

}  // namespace refold
