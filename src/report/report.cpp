#include "report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "core/text.h"
#include "report/measures.h"
#include "report/saved_report.h"

namespace refold {

using nlohmann::json;

static std::string on_one_line(std::string text) {
    for (char& c : text) {
        if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
    }
    return text;
}

std::string to_table(const Comparison& comparison) {
    const auto& variants = comparison.variants;
    std::vector<std::string> header{comparison.model};
    for (const auto& variant : variants) header.push_back(variant.name);
    TextTable table(std::move(header));
    for (const auto& measure : measures(comparison)) {
        std::vector<std::string> row{(measure.part ? "  " : "") + measure.name};
        for (const auto& variant : variants) {
            const std::string delta = change(measure, variant, variants.front());
            row.push_back(value_text(measure, variant, " +- ") +
                          (delta.empty() ? "" : fmt::format(" ({})", delta)));
        }
        table.add(std::move(row));
    }
    std::string out = table.str();
    for (const auto& note : comparison.notes) out += "\n" + note;
    if (!comparison.notes.empty()) out += "\n";
    for (const auto& variant : variants) {
        if (variant.prompt.empty() && variant.generated.empty()) continue;
        out += fmt::format("\n{}: \"{}\" ->\n    {}\n", variant.name, on_one_line(variant.prompt),
                           on_one_line(variant.generated));
    }
    return out;
}

namespace {

json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }
json number(const std::optional<double>& value) { return value ? number(*value) : json(nullptr); }
json number(const std::optional<uint64_t>& value) { return value ? json(*value) : json(nullptr); }

json speed_json(const std::optional<SpeedFigure>& speed) {
    if (!speed) return nullptr;
    return {{"tokens_per_s", number(speed->tokens_per_s)},
            {"baseline_tokens_per_s", number(speed->baseline_tokens_per_s)},
            {"ratio", number(speed->ratio)},
            {"baseline", speed->baseline}};
}

json perplexity_json(const PerplexityFigure& perplexity) {
    return {{"metric", perplexity.metric},
            {"perplexity", number(perplexity.value)},
            {"standard_error", number(perplexity.standard_error)},
            {"tokens_scored", perplexity.tokens_scored},
            {"protocol", perplexity.protocol}};
}

json task_json(const TaskFigure& task) {
    return {{"task", task.task},           {"metric", task.metric},
            {"value", number(task.value)}, {"standard_error", number(task.standard_error)},
            {"protocol", task.protocol},   {"higher_is_better", task.higher_is_better}};
}

json topology_json(const std::optional<TopologyMap>& map) {
    if (!map) return nullptr;
    json slots = json::array(), cells = json::array(), borrowed = json::array(), factors = json::array(),
         sources = json::array();
    for (const Slot slot : map->slots) slots.push_back(slot_name(slot));
    for (size_t p = 0; p < map->rows.size(); ++p) {
        json& counts = cells.emplace_back(json::array());
        for (size_t s = 0; s < map->slots.size(); ++s) {
            counts.push_back(map->rows[p][s].size());
            if (!map->factors.empty() && !map->factors[p][s].text.empty()) {
                const SlotFactors& f = map->factors[p][s];
                factors.push_back({{"layer", p},
                                   {"slot", slot_name(map->slots[s])},
                                   {"instead", f.instead},
                                   {"text", f.text}});
            }
            for (size_t c = 0; c < map->rows[p][s].size(); ++c) {
                if (!map->borrowed(p, s, c)) continue;
                const TopologyCell& from = map->rows[p][s][c];
                borrowed.push_back({{"layer", p},
                                    {"slot", slot_name(map->slots[s])},
                                    {"head", c},
                                    {"from_layer", from.layer},
                                    {"from_head", from.head < 0 ? json(nullptr) : json(from.head)}});
            }
        }
    }
    for (size_t p = 0; p < map->sources.size(); ++p) {
        const AttentionSource& source = map->sources[p];
        if (source.own()) continue;
        sources.push_back({{"layer", p},
                           {"probabilities", source.probabilities ? json(*source.probabilities) : json()},
                           {"keys_and_values", source.kv ? json(*source.kv) : json()}});
    }
    return {{"layers", map->rows.size()},
            {"summary", topology_summary(*map)},
            {"loops", map->loops},
            {"slots", slots},
            {"cells", cells},
            {"borrowed", borrowed},
            {"factors", factors},
            {"attention_sources", sources}};
}

json reconstruction_json(const std::optional<Reconstruction>& r) {
    if (!r) return nullptr;
    json slots = json::array(), errors = json::array();
    for (const Slot slot : r->slots) slots.push_back(slot_name(slot));
    for (const auto& row : r->errors) {
        json values = json::array();
        for (const double value : row) values.push_back(number(value));
        errors.push_back(std::move(values));
    }
    return {{"total", number(r->total)},    {"compared", r->compared}, {"different", r->different},
            {"not_comparable", r->missing}, {"slots", slots},          {"relative_errors", errors}};
}

json training_json(const std::vector<TrainingRun>& runs) {
    json out = json::array();
    for (const auto& run : runs) {
        json curves = json::object();
        for (const auto& curve : run.curves) {
            json steps = json::array(), values = json::array();
            for (const double step : curve.steps) steps.push_back(number(step));
            for (const double value : curve.values) values.push_back(number(value));
            curves[curve.name] = {{"steps", steps}, {"values", values}};
        }
        out.push_back({{"name", run.name}, {"curves", curves}});
    }
    return out;
}

// One hash, or hashes by name for several files or for a file within the folder `file`.
json hashes_json(const FileHashes& hashes, const std::string& file) {
    if (hashes.empty()) return "";
    const bool alone = hashes.size() == 1 && (hashes.begin()->first == file || hashes.begin()->first.empty());
    return alone ? json(hashes.begin()->second) : json(hashes);
}

json variant_json(const Variant& v) {
    json perplexities = json::array(), tasks = json::array();
    for (const auto& perplexity : v.perplexities) perplexities.push_back(perplexity_json(perplexity));
    for (const auto& task : v.tasks) tasks.push_back(task_json(task));
    json svd_errors = json::array();
    for (const SvdError& svd : v.svd_errors)
        svd_errors.push_back({{"layer", svd.layer},
                              {"slot", slot_name(svd.slot)},
                              {"rank", svd.rank},
                              {"relative_error", number(svd.error)}});
    json analyses = json::array();
    for (const auto& analysis : v.analyses)
        analyses.push_back(parse_json(analysis, "report", "an analysis", kLargeJson));
    return {{"name", v.name},
            {"recipe", v.recipe},
            {"file", v.file},
            {"sha256", hashes_json(v.hashes, v.file)},
            {"made_of", v.origins},
            {"parameters", number(v.parameters)},
            {"beyond_equal_size", number(v.beyond_equal_size)},
            {"file_bytes", number(v.file_bytes)},
            {"kv_bytes_per_token", number(v.kv_bytes_per_token)},
            {"resident_weight_bytes", number(v.resident_weight_bytes)},
            {"resident_set_bytes", number(v.resident_set_bytes)},
            {"perplexity", perplexities.empty() ? json(nullptr) : perplexities.front()},
            {"perplexities", perplexities},
            {"tasks", tasks},
            {"prefill", speed_json(v.prefill)},
            {"decode", speed_json(v.decode)},
            {"sample", {{"prompt", v.prompt}, {"generated", v.generated}}},
            {"steps", v.steps},
            {"training", training_json(v.training)},
            {"topology", topology_json(v.topology)},
            {"reconstruction", reconstruction_json(v.reconstruction)},
            {"svd_errors", svd_errors},
            {"analyses", analyses}};
}

}  // namespace

std::string to_json(const Comparison& comparison) {
    json out = {
        {kReportLayout, kLayout},
        {"title", comparison.title},
        {"model", comparison.model},
        {"source",
         {{"file", comparison.source}, {"sha256", hashes_json(comparison.hashes, comparison.source)}}},
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
    // A generated text may end in the middle of a UTF-8 character.
    return out.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

bool same_files(const FileHashes& a, const FileHashes& b) {
    const auto within = [](const FileHashes& part, const FileHashes& whole) {
        return std::all_of(part.begin(), part.end(), [&](const auto& wanted) {
            return std::any_of(whole.begin(), whole.end(),
                               [&](const auto& file) { return file.second == wanted.second; });
        });
    };
    return !a.empty() && !b.empty() && (within(a, b) || within(b, a));
}

}  // namespace refold
