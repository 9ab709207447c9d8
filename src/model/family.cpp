#include "model/family.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"

namespace refold {

const Family& find_family(const std::string& name) {
    std::vector<std::string> known;
    for (const Family* family : families()) {
        if (name == family->name) return *family;
        known.emplace_back(family->name);
    }
    fail(ErrorCode::unsupported, "model",
         "architecture '{}' (key 'general.architecture') is not supported; {}", name,
         suggestion(name, known));
}

std::string numbered(const char* pattern, size_t layer) {
    std::string text = pattern;
    if (const size_t at = text.find("{}"); at != std::string::npos)
        text.replace(at, 2, std::to_string(layer));
    return text;
}

std::string tensor_name(const SlotDescription& slot, size_t layer) { return numbered(slot.tensor, layer); }

std::string tensor_name(const Family& family, Slot slot, size_t layer) {
    for (const auto* slots : {&family.layer_slots, &family.model_slots}) {
        for (const auto& description : *slots) {
            if (description.slot == slot) return tensor_name(description, layer);
        }
    }
    fail(ErrorCode::internal, "model", "family '{}' has no slot {}", family.name, slot_name(slot));
}

bool is_of_layer(Slot slot, bool mixture) {
    if (belongs_to_experts(slot)) return mixture;
    const SlotProperties& s = properties(slot);
    return !mixture || s.module != SlotModule::ffn || s.kind == SlotKind::norm_gain ||
           s.kind == SlotKind::norm_bias;
}

static Slots implied_slots(std::span<const SlotDescription> descriptions, size_t layer,
                           const std::function<bool(const std::string&)>& has_tensor) {
    Slots slots;
    const auto router = std::find_if(descriptions.begin(), descriptions.end(),
                                     [](const auto& d) { return d.slot == Slot::ffn_router; });
    const bool mixture = router != descriptions.end() && has_tensor(tensor_name(*router, layer));
    for (const auto& description : descriptions) {
        if (!is_of_layer(description.slot, mixture)) continue;
        const std::string name = tensor_name(description, layer);
        const bool falls_back =
            description.fallback != nullptr && (!description.with || slots.contains(*description.with));
        if (has_tensor(name)) {
            slots[description.slot] = Dense{name};
        } else if (falls_back) {
            slots[description.slot] = Dense{description.fallback};
        } else if (description.required) {
            slots[description.slot] = Dense{name};
        }
    }
    return slots;
}

std::map<size_t, AttentionSource> implied_sources(const ModelConfig& config, size_t layers) {
    std::map<size_t, AttentionSource> sources;
    const size_t own = config.first_kv_shared;
    for (size_t l = own; own > 0 && l < layers; ++l) {
        size_t from = own;
        while (from > 0 && (config.window(from - 1) > 0) != (config.window(l) > 0)) --from;
        if (from == 0)
            fail(ErrorCode::input, "model",
                 "layer {} uses the keys and values of an earlier one {} a window, and none of layers 0 to "
                 "{} is",
                 l, config.window(l) > 0 ? "with" : "without", own - 1);
        sources[l].kv = from - 1;
    }
    return sources;
}

std::set<std::string> unread_tensors(const Family* family, const ModelConfig& config, size_t layers) {
    std::set<std::string> names;
    if (family == nullptr) return names;
    for (const auto& [layer, source] : implied_sources(config, layers)) {
        for (const SlotDescription& slot : family->layer_slots) {
            const auto projection = properties(slot.slot).projection;
            if (projection == Projection::key || projection == Projection::value)
                names.insert(tensor_name(slot, layer));
        }
    }
    return names;
}

Topology implied_topology(const Family& family, const ModelConfig& config, size_t layers,
                          const std::function<bool(const std::string&)>& has_tensor) {
    Topology topology;
    topology.sources = implied_sources(config, layers);
    for (size_t l = 0; l < layers; ++l) {
        topology.layers.push_back(implied_slots(family.layer_slots, l, has_tensor));
        std::erase_if(topology.layers[l],
                      [&](const auto& entry) { return topology.is_replaced(l, entry.first); });
    }
    topology.globals = implied_slots(family.model_slots, 0, has_tensor);
    return topology;
}

}  // namespace refold
