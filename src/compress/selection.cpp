#include "compress/selection.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace refold {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t end = 0; end != std::string::npos; begin = end + 1) {
        end = text.find(separator, begin);
        std::string part = text.substr(begin, end == std::string::npos ? end : end - begin);
        const size_t first = part.find_first_not_of(' '), last = part.find_last_not_of(' ');
        parts.push_back(first == std::string::npos ? "" : part.substr(first, last - first + 1));
    }
    return parts;
}

// -1 when it is no whole number.
int64_t number(const std::string& text) {
    int64_t value = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

}  // namespace

std::vector<size_t> parse_layers(const std::string& text, size_t positions) {
    std::set<size_t> layers;
    if (text == "all") {
        for (size_t p = 0; p < positions; ++p) layers.insert(p);
        return {layers.begin(), layers.end()};
    }
    for (const std::string& part : split(text, ',')) {
        const auto ends = split(part, '-');
        const int64_t first = number(ends.front()), last = number(ends.back());
        if (ends.size() > 2 || first < 0 || last < first)
            fail(ErrorCode::usage, "layers", "'{}': expected layers such as 20-29,5 (from 0) or all", text);
        if (static_cast<size_t>(last) >= positions)
            fail(ErrorCode::usage, "layers", "'{}': the model has layers 0 to {}", text, positions - 1);
        for (int64_t p = first; p <= last; ++p) layers.insert(static_cast<size_t>(p));
    }
    return {layers.begin(), layers.end()};
}

std::vector<Slot> parse_slots(const std::string& text, const Family& family) {
    std::vector<Slot> known, slots;
    std::vector<std::string> names;
    for (const auto& description : family.position_slots) {
        if (!is_matrix(description.slot)) continue;
        known.push_back(description.slot);
        names.emplace_back(slot_name(description.slot));
    }
    for (const std::string& part : split(text, ',')) {
        const size_t before = slots.size();
        for (const Slot slot : known) {
            if (part == slot_name(slot) || part == "all" || (part == "attn" && belongs_to_attention(slot)) ||
                (part == "ffn" && belongs_to_ffn(slot)))
                slots.push_back(slot);
        }
        if (slots.size() == before)
            fail(ErrorCode::usage, "slots",
                 "'{}' is no weight matrix of a layer of family '{}': {}, attn, ffn or all", part,
                 family.name, fmt::join(names, ", "));
    }
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    return slots;
}

std::vector<int64_t> parse_ranks(const std::string& text, size_t count) {
    std::vector<int64_t> ranks;
    for (const std::string& part : split(text, ',')) ranks.push_back(number(part));
    if (ranks.size() != count || *std::min_element(ranks.begin(), ranks.end()) < 1)
        fail(ErrorCode::usage, "ranks", "'{}': expected {} whole numbers from 1 on, separated by commas",
             text, count);
    return ranks;
}

OptionSpec layers_option(const std::string& fallback) {
    return {.name = "layers", .fallback = fallback, .help = "layers to work on, from 0: 20-29,5, or all"};
}

OptionSpec slots_option(const std::string& fallback, const std::string& help) {
    return {.name = "slots", .fallback = fallback, .help = help};
}

OptionSpec type_option() {
    return {.name = "type",
            .kind = OptionSpec::Kind::choice,
            .fallback = "auto",
            .help = "type of computed tensors; auto: float32 where the source is, else 16 bits",
            .choices = {"auto", "f32", "f16", "bf16"}};
}

DType computed_type(const std::string& given, const Model& model, const std::vector<std::string>& sources) {
    if (given == "f32") return DType::F32;
    if (given == "f16") return DType::F16;
    if (given == "bf16") return DType::BF16;
    bool any_f32 = false, all_bf16 = true;
    for (const auto& name : sources) {
        const DType type = model.tensor(name).type;
        any_f32 |= type == DType::F32;
        all_bf16 &= type == DType::BF16;
    }
    return any_f32 ? DType::F32 : all_bf16 ? DType::BF16 : DType::F16;
}

std::string layers_text(const std::vector<size_t>& layers) {
    std::string text;
    for (size_t i = 0; i < layers.size();) {
        size_t end = i + 1;
        while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
        text += text.empty() ? "" : ", ";
        text +=
            end - i == 1 ? fmt::format("{}", layers[i]) : fmt::format("{}-{}", layers[i], layers[end - 1]);
        i = end;
    }
    return text;
}

std::vector<std::vector<size_t>> tied_positions(const Model& model, const std::vector<size_t>& layers,
                                                const std::vector<Slot>& slots) {
    const std::set<size_t> wanted(layers.begin(), layers.end());
    const auto tied = [&](size_t a, size_t b) {
        return std::all_of(slots.begin(), slots.end(), [&](Slot slot) {
            const Slots &first = model.topology.positions[a], &second = model.topology.positions[b];
            const auto one = first.find(slot), other = second.find(slot);
            return one == first.end() ? other == second.end()
                                      : other != second.end() && one->second == other->second;
        });
    };
    std::vector<std::vector<size_t>> groups;
    for (size_t p = 0; p < model.topology.positions.size(); ++p) {
        const bool has_slots =
            std::any_of(slots.begin(), slots.end(), [&](Slot slot) { return model.topology.has(p, slot); });
        if (!has_slots) continue;
        const auto group = std::find_if(groups.begin(), groups.end(),
                                        [&](const auto& members) { return tied(members.front(), p); });
        if (group != groups.end()) {
            group->push_back(p);
        } else {
            groups.push_back({p});
        }
    }
    std::erase_if(groups, [&](const auto& members) {
        return std::none_of(members.begin(), members.end(), [&](size_t p) { return wanted.contains(p); });
    });
    for (const auto& members : groups) {
        for (const size_t p : members) {
            if (!wanted.contains(p))
                fail(ErrorCode::unsupported, "layers",
                     "layer {} has the same weights as layer {}: choose both or neither", p,
                     *std::find_if(members.begin(), members.end(),
                                   [&](size_t m) { return wanted.contains(m); }));
        }
    }
    return groups;
}

}  // namespace refold
