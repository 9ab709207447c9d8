#include "model/ownership.h"

namespace refold {

std::vector<HeadRef> stored_heads_of(const ModelConfig& config, Slot slot, const Expression& expression,
                                     size_t layer) {
    const Expression base = base_of(expression);
    if (const auto* heads = std::get_if<Heads>(&base)) return expand(*heads);
    const int64_t count = slot_blocks(slot, config, layer);
    if (count == 0) return {};
    return expand(Heads{{{tensors_of(base).front(), 0, count}}});
}

Ownership::Ownership(const Model& model) {
    const auto& layers = model.topology.layers;
    std::map<std::string, size_t> named;
    for (size_t l = 0; l < layers.size() && model.family != nullptr; ++l) {
        for (const SlotDescription& slot : model.family->layer_slots) named[tensor_name(slot, l)] = l;
    }
    const auto has_name_of = [&](const std::string& tensor, size_t layer) {
        const auto found = named.find(tensor);
        return found != named.end() && found->second == layer;
    };
    std::vector<bool> uses_own(layers.size(), false);
    for (size_t l = 0; l < layers.size(); ++l) {
        for (const auto& [slot, expression] : layers[l]) {
            for (const auto& tensor : tensors_of(expression)) {
                layers_.try_emplace(tensor, l);
                if (has_name_of(tensor, l)) uses_own[l] = true;
            }
        }
    }
    for (auto& [tensor, layer] : layers_) {
        if (const auto found = named.find(tensor); found != named.end() && uses_own[found->second])
            layer = found->second;
    }
    for (size_t l = 0; l < layers.size(); ++l) {
        for (const auto& [slot, expression] : layers[l]) number_heads(model.config, slot, expression, l);
    }
}

void Ownership::number_heads(const ModelConfig& config, Slot slot, const Expression& expression,
                             size_t layer) {
    const std::vector<HeadRef> heads = stored_heads_of(config, slot, expression, layer);
    for (size_t h = 0; h < heads.size(); ++h) {
        if (layer_of(heads[h].tensor) == layer)
            numbers_.try_emplace({heads[h].tensor, heads[h].head}, static_cast<int64_t>(h));
    }
}

std::optional<int64_t> Ownership::head_of(const std::string& tensor, int64_t head) const {
    const auto found = numbers_.find({tensor, head});
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace refold
