#include "compress/method/selection.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/text.h"
#include "model/accounting.h"

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

std::vector<size_t> parse_layers(const std::string& text, size_t n_layer) {
    std::set<size_t> layers;
    if (text == "all") {
        for (size_t p = 0; p < n_layer; ++p) layers.insert(p);
        return {layers.begin(), layers.end()};
    }
    for (const std::string& part : split(text, ',')) {
        const auto ends = split(part, '-');
        const int64_t first = number(ends.front()), last = number(ends.back());
        if (ends.size() > 2 || first < 0 || last < first)
            fail(ErrorCode::usage, "layers", "'{}': expected layers such as 20-29,5 (from 0) or all", text);
        if (static_cast<size_t>(last) >= n_layer)
            fail(ErrorCode::usage, "layers", "'{}': the model has layers 0 to {}", text, n_layer - 1);
        for (int64_t p = first; p <= last; ++p) layers.insert(static_cast<size_t>(p));
    }
    return {layers.begin(), layers.end()};
}

size_t top_half(size_t n_layer) { return n_layer - n_layer / 2; }

std::vector<size_t> parse_layers_or_half(const std::string& text, size_t n_layer) {
    if (text != "top half") return parse_layers(text, n_layer);
    std::vector<size_t> layers;
    for (size_t p = top_half(n_layer); p < n_layer; ++p) layers.push_back(p);
    return layers;
}

std::vector<Slot> parse_slots(const std::string& text, const Family& family) {
    std::vector<Slot> known, slots;
    std::vector<std::string> names;
    for (const auto& description : family.layer_slots) {
        if (!is_matrix(description.slot)) continue;
        known.push_back(description.slot);
        names.emplace_back(slot_name(description.slot));
    }
    const bool has_experts = std::any_of(known.begin(), known.end(), belongs_to_experts);
    for (const std::string& part : split(text, ',')) {
        const size_t before = slots.size();
        for (const Slot slot : known) {
            const bool named = part == "all" || (part == "attn" && belongs_to_attention(slot)) ||
                               (part == "ffn" && belongs_to_ffn(slot));
            if (part == slot_name(slot) || (named && !belongs_to_experts(slot))) slots.push_back(slot);
        }
        // What methods ask for by default need not be there in families of mixtures of experts.
        if (slots.size() == before && !(has_experts && (part == "ffn" || part.starts_with("ffn."))))
            fail(ErrorCode::usage, "slots",
                 "'{}' is no weight matrix of a layer of family '{}': {}, attn, ffn or all", part,
                 family.name, fmt::join(names, ", "));
    }
    if (slots.empty())
        fail(ErrorCode::unsupported, "slots",
             "'{}': family '{}' has experts in place of an FFN - name their slots: {}", text, family.name,
             fmt::join(names, ", "));
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    return slots;
}

size_t part_of(double ratio, size_t units) {
    return static_cast<size_t>(std::floor(ratio * static_cast<double>(units) + 1e-9));
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

OptionSpec seed_option(const std::string& help) { return {"seed", OptionSpec::Kind::integer, "0", help, 0}; }

uint64_t seed_of(const Options& options) { return static_cast<uint64_t>(options.integer("seed")); }

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

std::string stem(std::string tensor) {
    constexpr std::string_view kEnding = ".weight";
    if (tensor.ends_with(kEnding)) tensor.resize(tensor.size() - kEnding.size());
    return tensor;
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

std::string saving_text(const Model& before, const Model& after) {
    const Cost a = account(before).model, b = account(after).model;
    const double kv = a.kv_bytes_per_token == 0 ? 0
                                                : 1 - static_cast<double>(b.kv_bytes_per_token) /
                                                          static_cast<double>(a.kv_bytes_per_token);
    return fmt::format("{} parameters and {:.2f} % of the KV cache",
                       format_count(a.parameters - b.parameters), 100 * kv);
}

std::vector<std::vector<size_t>> tied_layers(const Model& model, const std::vector<size_t>& layers,
                                             const std::vector<Slot>& slots) {
    const std::set<size_t> wanted(layers.begin(), layers.end());
    const auto tied = [&](size_t a, size_t b) {
        return std::all_of(slots.begin(), slots.end(), [&](Slot slot) {
            const Slots &first = model.topology.layers[a], &second = model.topology.layers[b];
            const auto one = first.find(slot), other = second.find(slot);
            return one == first.end() ? other == second.end()
                                      : other != second.end() && one->second == other->second;
        });
    };
    std::vector<std::vector<size_t>> groups;
    for (size_t p = 0; p < model.topology.layers.size(); ++p) {
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
