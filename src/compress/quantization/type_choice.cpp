#include "compress/quantization/type_choice.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <sstream>

#include "compress/method/selection.h"
#include "core/error.h"
#include "core/text.h"
#include "model/quantized.h"

namespace refold {
namespace {

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

// "TYPE:ROWS,TYPE:ROWS,TYPE"
void parse_types(const std::string& word, const std::string& types, TypeException& out) {
    std::istringstream parts(types);
    for (std::string part; std::getline(parts, part, ',');) {
        const size_t colon = part.find(':');
        out.types.push_back(quantization_type(part.substr(0, colon)));
        if (colon == std::string::npos) break;
        int64_t rows = 0;
        const char* end = part.data() + part.size();
        const auto [stop, error] = std::from_chars(part.data() + colon + 1, end, rows);
        if (error != std::errc() || stop != end || rows <= 0 || rows > std::numeric_limits<int32_t>::max())
            fail(ErrorCode::usage, "quantize", "types: got '{}' in '{}', expected TYPE:ROWS", part, word);
        out.rows.push_back(rows);
    }
    const bool more = !parts.eof() || types.ends_with(',');
    if (out.types.size() != out.rows.size() + 1 || more)
        fail(ErrorCode::usage, "quantize",
             "types: got '{}', expected TYPE or TYPE:ROWS,TYPE:ROWS,TYPE, whose last one is that of all "
             "other rows",
             word);
    if (out.types.size() == 1) return;
    if (properties(out.slot).quantized != QuantizedAs::embedding)
        fail(ErrorCode::usage, "quantize",
             "types: '{}': only rows of embedding and output have types of their own", word);
    if (out.types.size() > kMostRowParts)
        fail(ErrorCode::usage, "quantize", "types: '{}': a table has at most {} types", word, kMostRowParts);
}

}  // namespace

std::vector<TypeException> parse_exceptions(const Model& model, const std::string& text) {
    std::vector<TypeException> out;
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        const size_t equals = word.find('='), at = word.find('@');
        if (equals == std::string::npos || equals == 0)
            fail(ErrorCode::usage, "quantize",
                 "types: got '{}', expected SLOT=TYPE or SLOT@LAYERS=TYPE, such as attn.v@0-3=q5_0", word);
        const bool some = at < equals;
        TypeException& exception = out.emplace_back();
        exception.slot = slot_of(model, word.substr(0, some ? at : equals));
        exception.layers =
            parse_layers(some ? word.substr(at + 1, equals - at - 1) : "all", model.topology.layers.size());
        parse_types(word, word.substr(equals + 1), exception);
    }
    return out;
}

const TypeException* exception_for(const std::vector<TypeException>& exceptions, Slot slot, size_t layer) {
    const auto found = std::find_if(exceptions.rbegin(), exceptions.rend(), [&](const TypeException& e) {
        return e.slot == slot &&
               (layer == kWholeModel || std::binary_search(e.layers.begin(), e.layers.end(), layer));
    });
    return found == exceptions.rend() ? nullptr : &*found;
}

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
        const TypeException* exception = exception_for(exceptions, slot, layer);
        const std::vector<std::string> tensors = tensors_of(expression);
        for (size_t t = 0; t < tensors.size(); ++t) {
            const std::string& tensor = tensors[t];
            const auto use = uses.find(tensor);
            if (use == uses.end() || !use->second.matrix || out.types.contains(tensor)) continue;
            std::optional<DType> chosen = use->second.embedding ? embedding : type;
            if (exception != nullptr) chosen = exception->types[std::min(t, exception->types.size() - 1)];
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
