#include "compress/quantization/type_choice.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "compress/method/selection.h"
#include "core/error.h"
#include "core/text.h"
#include "model/quantized.h"

namespace refold {
namespace {

struct Exception {
    Slot slot;
    std::vector<size_t> layers;
    DType type;
};

Slot slot_of(const Model& model, const std::string& name) {
    std::map<std::string, Slot> known;
    const auto see = [&](const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            if (properties(slot).quantized != QuantizedAs::unchanged) known[slot_name(slot)] = slot;
        }
    };
    for (const Slots& slots : model.topology.layers) see(slots);
    see(model.topology.globals);
    if (const auto found = known.find(name); found != known.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [known_name, slot] : known) names.push_back(known_name);
    fail(ErrorCode::usage, "quantize", "types: unknown slot '{}'; {}", name, suggestion(name, names));
}

std::vector<Exception> parse_exceptions(const Model& model, const std::string& text) {
    std::vector<Exception> out;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        const size_t equals = word.find('='), at = word.find('@');
        if (equals == std::string::npos || equals == 0)
            fail(ErrorCode::usage, "quantize",
                 "types: got '{}', expected SLOT=TYPE or SLOT@LAYERS=TYPE, such as attn.v@0-3=q5_0", word);
        const bool some = at < equals;
        out.push_back(
            {slot_of(model, word.substr(0, some ? at : equals)),
             parse_layers(some ? word.substr(at + 1, equals - at - 1) : "all", model.topology.layers.size()),
             quantization_type(word.substr(equals + 1))});
    }
    return out;
}

}  // namespace

TypeChoice choose_types(const Model& model, const WantedTypes& wanted) {
    const auto given = [](const std::string& type) {
        return type == "keep" ? std::nullopt : std::optional(quantization_type(type));
    };
    const std::optional<DType> type = given(wanted.type);
    std::optional<DType> embedding = type ? std::optional(default_embedding_type(*type)) : std::nullopt;
    if (wanted.embedding != "auto") embedding = given(wanted.embedding);
    const auto exceptions = parse_exceptions(model, wanted.exceptions);
    const auto uses = quantized_uses(model);
    TypeChoice out;
    const auto see = [&](Slot slot, const Expression& expression, size_t layer) {
        const auto at = std::find_if(exceptions.rbegin(), exceptions.rend(), [&](const Exception& e) {
            return e.slot == slot &&
                   (layer == kWholeModel || std::binary_search(e.layers.begin(), e.layers.end(), layer));
        });
        for (const std::string& tensor : tensors_of(expression)) {
            const auto use = uses.find(tensor);
            if (use == uses.end() || !use->second.matrix || out.types.contains(tensor)) continue;
            std::optional<DType> chosen = use->second.embedding ? embedding : type;
            if (at != exceptions.rend()) chosen = at->type;
            if (!chosen) continue;
            const bool fit = fits(*chosen, use->second, RowLayout::or_folded);
            const DType got = fit ? *chosen : fitting_type(*chosen, use->second.unit);
            if (!fit) out.fallbacks.push_back(fmt::format("{}: {} for {}", tensor, name(got), name(*chosen)));
            out.types[tensor] = got;
        }
    };
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
        for (const auto& [slot, expression] : model.topology.layers[p]) see(slot, expression, p);
    }
    for (const auto& [slot, expression] : model.topology.globals) see(slot, expression, kWholeModel);
    return out;
}

}  // namespace refold
