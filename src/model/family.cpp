#include "model/family.h"

#include <array>

#include "core/error.h"
#include "core/text.h"
#include "model/families/families.h"

namespace refold {

static const std::array kFamilies = {
    &kLlamaFamily, &kQwen2Family, &kGemmaFamily,    &kGemma2Family,    &kGemma3Family, &kGptNeoxFamily,
    &kGptjFamily,  &kGpt2Family,  &kBaichuanFamily, &kBaichuan2Family, &kBertFamily,   &kRobertaFamily,
};

std::span<const Family* const> families() { return kFamilies; }

const Family& find_family(const std::string& name) {
    std::vector<std::string> known;
    for (const Family* family : kFamilies) {
        if (name == family->name) return *family;
        known.emplace_back(family->name);
    }
    fail(ErrorCode::unsupported, "model",
         "architecture '{}' (key 'general.architecture') is not supported; {}", name,
         suggestion(name, known));
}

std::string numbered(const char* pattern, size_t position) {
    std::string text = pattern;
    if (const size_t at = text.find("{}"); at != std::string::npos)
        text.replace(at, 2, std::to_string(position));
    return text;
}

std::string tensor_name(const SlotDescription& slot, size_t position) {
    return numbered(slot.tensor, position);
}

std::string tensor_name(const Family& family, Slot slot, size_t position) {
    for (const auto* slots : {&family.position_slots, &family.model_slots}) {
        for (const auto& description : *slots) {
            if (description.slot == slot) return tensor_name(description, position);
        }
    }
    fail(ErrorCode::internal, "model", "family '{}' has no slot {}", family.name, slot_name(slot));
}

static Slots implied_slots(std::span<const SlotDescription> descriptions, size_t position,
                           const std::function<bool(const std::string&)>& has_tensor) {
    Slots slots;
    for (const auto& description : descriptions) {
        const std::string name = tensor_name(description, position);
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

Topology implied_topology(const Family& family, size_t positions,
                          const std::function<bool(const std::string&)>& has_tensor) {
    Topology topology;
    for (size_t p = 0; p < positions; ++p)
        topology.positions.push_back(implied_slots(family.position_slots, p, has_tensor));
    topology.globals = implied_slots(family.model_slots, 0, has_tensor);
    return topology;
}

}  // namespace refold
