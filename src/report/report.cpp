#include "report/report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "report/measures.h"

namespace refold {

using nlohmann::json;

std::string to_table(const Comparison& comparison) {
    const auto& variants = comparison.variants;
    std::vector<std::string> header{comparison.model};
    for (const auto& variant : variants) header.push_back(variant.name);
    TextTable table(std::move(header));
    for (const auto& measure : measures()) {
        std::vector<std::string> row{measure.name};
        bool any = false;
        for (const auto& variant : variants) {
            const auto value = measure.value(variant);
            any = any || value.has_value();
            const std::string delta = change(measure, variant, variants.front());
            row.push_back((value ? measure.format(*value) : "-") +
                          (delta.empty() ? "" : fmt::format(" ({})", delta)));
        }
        if (any) table.add(std::move(row));
    }
    std::string out = table.str();
    for (const auto& note : comparison.notes) out += "\n" + note;
    if (!comparison.notes.empty()) out += "\n";
    return out;
}

namespace {

json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

template <typename T>
json optional_number(const std::optional<T>& value) {
    return value ? json(*value) : json(nullptr);
}

json speed_json(const std::optional<SpeedFigure>& speed) {
    if (!speed) return nullptr;
    return {{"tokens_per_s", number(speed->tokens_per_s)},
            {"baseline_tokens_per_s", number(speed->baseline_tokens_per_s)},
            {"ratio", number(speed->ratio)}};
}

json perplexity_json(const std::optional<PerplexityFigure>& perplexity) {
    if (!perplexity) return nullptr;
    return {{"perplexity", number(perplexity->value)},
            {"standard_error", number(perplexity->standard_error)},
            {"tokens_scored", perplexity->tokens_scored},
            {"protocol", perplexity->protocol}};
}

json topology_json(const std::optional<TopologyMap>& map) {
    if (!map) return nullptr;
    json borrowed = json::array();
    for (size_t p = 0; p < map->rows.size(); ++p) {
        for (size_t s = 0; s < map->slots.size(); ++s) {
            for (size_t c = 0; c < map->rows[p][s].size(); ++c) {
                if (!map->borrowed(p, s, c)) continue;
                const TopologyCell& from = map->rows[p][s][c];
                borrowed.push_back({{"position", p},
                                    {"slot", slot_name(map->slots[s])},
                                    {"head", c},
                                    {"from_position", from.position},
                                    {"from_head", from.head < 0 ? json(nullptr) : json(from.head)}});
            }
        }
    }
    return {{"positions", map->rows.size()}, {"summary", topology_summary(*map)}, {"borrowed", borrowed}};
}

json variant_json(const Variant& v) {
    return {{"name", v.name},
            {"recipe", v.recipe},
            {"file", v.file},
            {"sha256", v.sha256},
            {"parameters", v.parameters},
            {"file_bytes", v.file_bytes},
            {"kv_bytes_per_token", v.kv_bytes_per_token},
            {"resident_weight_bytes", optional_number(v.resident_weight_bytes)},
            {"resident_set_bytes", optional_number(v.resident_set_bytes)},
            {"perplexity", perplexity_json(v.perplexity)},
            {"prefill", speed_json(v.prefill)},
            {"decode", speed_json(v.decode)},
            {"sample", {{"prompt", v.prompt}, {"generated", v.generated}}},
            {"topology", topology_json(v.topology)}};
}

}  // namespace

std::string to_json(const Comparison& comparison) {
    json out = {{"title", comparison.title},
                {"model", comparison.model},
                {"source", {{"file", comparison.source}, {"sha256", comparison.sha256}}},
                {"refold_version", comparison.version},
                {"date", comparison.date},
                {"machine",
                 {{"cpu", comparison.machine.cpu},
                  {"threads", comparison.machine.threads},
                  {"memory_bytes", comparison.machine.memory_bytes}}},
                {"commands", comparison.commands},
                {"notes", comparison.notes},
                {"variants", json::array()}};
    for (const auto& variant : comparison.variants) out["variants"].push_back(variant_json(variant));
    // A generated text may end within a character.
    return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace refold
