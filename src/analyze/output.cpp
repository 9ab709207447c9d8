#include "analyze/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "analyze/statistics.h"
#include "core/files.h"
#include "core/text.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kTop = 10;

std::string figure(const Json& value, int digits = 4) {
    return value.is_number() ? fmt::format("{:.{}f}", value.get<double>(), digits) : "-";
}

std::string head_name(const Json& layer, const Json& head) {
    return fmt::format("{}.{}", layer.get<int64_t>(), head.get<int64_t>());
}

// ---- text ----

std::string top_matches(const Json& matches, const std::string& title) {
    std::vector<const Json*> known;
    for (const Json& match : matches) {
        if (match["cosine"].is_number()) known.push_back(&match);
    }
    std::stable_sort(known.begin(), known.end(), [](const Json* a, const Json* b) {
        return (*a)["cosine"].get<double>() > (*b)["cosine"].get<double>();
    });
    known.resize(std::min(known.size(), kTop));
    TextTable table({title, "most similar earlier", "cosine"});
    for (const Json* match : known) {
        table.add({head_name((*match)["layer"], (*match)["head"]),
                   head_name((*match)["former_layer"], (*match)["former_head"]), figure((*match)["cosine"])});
    }
    return known.empty() ? "" : table.str() + "\n";
}

// Mean and largest value over all pairs of a matrix of layers.
std::string pairs_text(const Json& rows, const char* what) {
    RunningMean mean;
    double largest = -2;
    size_t at = 0, other = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
            if (!rows[i][j].is_number()) continue;
            const double value = rows[i][j].get<double>();
            mean.add(value);
            if (value > largest) {
                largest = value;
                at = i;
                other = j;
            }
        }
    }
    if (mean.count() == 0) return "";
    return fmt::format(
        "{}: cosine {:.4f} on average over pairs of layers, {:.4f} at most (layers {} and {})\n", what,
        mean.mean(), largest, other, at);
}

std::string weights_text(const Json& part) {
    return top_matches(part["best_matches"], "heads by weights (layer.head)") +
           pairs_text(part["attention_module_cosine"], "weights of attention") +
           pairs_text(part["ffn_module_cosine"], "weights of FFNs") + "\n";
}

std::string spectra_text(const Json& part) {
    struct Sums {
        RunningMean half, ninety, all, stable;
    };
    std::vector<std::pair<std::string, Sums>> slots;
    for (const Json& matrix : part["matrices"]) {
        const auto name = fmt::format("{} {} x {}", matrix["slot"].get<std::string>(),
                                      matrix["rows"].get<int64_t>(), matrix["columns"].get<int64_t>());
        auto found = std::find_if(slots.begin(), slots.end(), [&](const auto& s) { return s.first == name; });
        if (found == slots.end()) found = slots.insert(slots.end(), std::pair(name, Sums{}));
        Sums& sums = found->second;
        sums.half.add(matrix["rank_for_50_percent"].get<double>());
        sums.ninety.add(matrix["rank_for_90_percent"].get<double>());
        sums.all.add(matrix["rank_for_99_percent"].get<double>());
        if (matrix["stable_rank"].is_number()) sums.stable.add(matrix["stable_rank"].get<double>());
    }
    TextTable table({"singular values, mean over layers", "rank for 50 %", "90 %", "99 %", "stable rank"});
    for (const auto& [name, sums] : slots) {
        table.add({name, fmt::format("{:.1f}", sums.half.mean()), fmt::format("{:.1f}", sums.ninety.mean()),
                   fmt::format("{:.1f}", sums.all.mean()), fmt::format("{:.1f}", sums.stable.mean())});
    }
    return table.str() + "\n";
}

std::string softmax_text(const Json& part) {
    TextTable table({"softmax similarity of layers", "cosine"});
    table.add({"average over pairs", figure(part["average"])});
    table.add({"largest", figure(part["maximum"])});
    table.add({"smallest", figure(part["minimum"])});
    table.add({"standard deviation over pairs", figure(part["standard_deviation_over_pairs"])});
    table.add({fmt::format("standard deviation over {} texts", part["sequences"].get<int64_t>()),
               figure(part["standard_deviation_over_texts"])});
    table.add({"top half", figure(part["top_half_average"])});
    table.add({"bottom half", figure(part["bottom_half_average"])});
    return table.str() + "\n";
}

std::string heads_text(const Json& part) {
    const Json& degree = part["degree"];
    const auto percent = [](const Json& spread) {
        if (!spread["mean"].is_number()) return std::string("-");
        std::string text = fmt::format("{:.1f} %", 100 * spread["mean"].get<double>());
        if (spread["standard_deviation"].is_number())
            text += fmt::format(" +- {:.1f}", 100 * spread["standard_deviation"].get<double>());
        return text;
    };
    std::string text = top_matches(part["best_matches"], "heads by attention maps (layer.head)");
    text += fmt::format(
        "Degree: of the {} {} that resemble an earlier one most by weights, {} are also those "
        "that do by attention maps",
        degree["selected_pairs"].get<int64_t>(), degree["unit"] == "kv_group" ? "KV groups" : "heads",
        percent(degree["of_heads"]));
    if (degree["of_heads_by_chance"].is_number())
        text += fmt::format(" ({:.1f} % by chance)", 100 * degree["of_heads_by_chance"].get<double>());
    return text + fmt::format(", {} with the same partner\n\n", percent(degree["of_pairs"]));
}

std::string modules_text(const Json& part) {
    TextTable table({"cosine of input and output, layer", "attention", "FFN", "whole layer"});
    for (const Json& layer : part["layers"]) {
        table.add({std::to_string(layer["layer"].get<int64_t>()), figure(layer["attention"]),
                   figure(layer["ffn"]), figure(layer["whole_layer"])});
    }
    return table.str() + "\n";
}

std::string sharing_text(const Json& part) {
    TextTable table({"layer (its source)", "error without W_c", "with", "left", "per token without", "with",
                     "left", "depth factor", "its effect"});
    const auto add = [&](const std::string& name, const Json& of) {
        table.add({name, figure(of["error_without"]), figure(of["error_with"]), figure(of["error_left"]),
                   figure(of["token_error_without"]), figure(of["token_error_with"]),
                   figure(of["token_error_left"]), figure(of["depth_factor"]), figure(of["depth_effect"])});
    };
    for (const Json& layer : part["layers"])
        add(layer["layer"].dump() + (layer["source"].is_null() ? "" : " (" + layer["source"].dump() + ")"),
            layer);
    add("mean", part);
    return table.str() + "\n";
}

// ---- CSV ----

std::string cell(const Json& value) {
    if (value.is_null()) return "";
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array()) return value.dump();
    std::string text;
    for (const Json& element : value) text += (text.empty() ? "" : " ") + element.dump();
    return text;
}

std::string line(const std::vector<std::string>& cells) { return join(cells, ",") + "\n"; }

bool is_matrix_of(const Json& value) { return value.is_array() && !value.empty() && value[0].is_array(); }
bool is_table_of(const Json& value) { return value.is_array() && !value.empty() && value[0].is_object(); }

// Names of heads, numbers of layers.
std::vector<std::string> row_names(const Json& part, const std::string& key, size_t size) {
    std::vector<std::string> names;
    const bool heads = key.starts_with("head_");
    for (size_t i = 0; i < size; ++i)
        names.push_back(heads ? part["heads"][i].get<std::string>() : std::to_string(i));
    return names;
}

std::string matrix_csv(const Json& rows, const std::vector<std::string>& names, const char* corner) {
    std::vector<std::string> header = names;
    header.insert(header.begin(), corner);
    std::string text = line(header);
    for (size_t i = 0; i < rows.size(); ++i) {
        std::vector<std::string> cells = {names[i]};
        for (const Json& value : rows[i]) cells.push_back(cell(value));
        text += line(cells);
    }
    return text;
}

constexpr const char* kSingularValues = "singular_values";

std::string table_csv(const Json& records) {
    std::vector<std::string> columns;
    for (const auto& [key, value] : records[0].items()) {
        if (key != kSingularValues) columns.push_back(key);
    }
    std::string text = line(columns);
    for (const Json& record : records) {
        std::vector<std::string> cells;
        for (const auto& column : columns) cells.push_back(cell(record[column]));
        text += line(cells);
    }
    return text;
}

std::string singular_values_csv(const Json& matrices) {
    std::string text = line({"layers", "slot", "index", "singular_value"});
    for (const Json& matrix : matrices) {
        size_t index = 0;
        for (const Json& value : matrix[kSingularValues])
            text +=
                line({cell(matrix["layers"]), cell(matrix["slot"]), std::to_string(index++), cell(value)});
    }
    return text;
}

}  // namespace

std::string summary_text(const Analysis& analysis) {
    std::string text;
    for (const auto& [part, json] : analysis) {
        switch (part) {
            case AnalysisPart::weights: text += weights_text(json); break;
            case AnalysisPart::spectra: text += spectra_text(json); break;
            case AnalysisPart::softmax: text += softmax_text(json); break;
            case AnalysisPart::heads: text += heads_text(json); break;
            case AnalysisPart::modules: text += modules_text(json); break;
            case AnalysisPart::sharing: text += sharing_text(json); break;
        }
    }
    if (text.ends_with("\n\n")) text.pop_back();
    return text;
}

void write_csv(const Analysis& analysis, const std::string& folder) {
    const auto write = [&](AnalysisPart part, const std::string& key, const std::string& text) {
        const std::string name = fmt::format("{}_{}.csv", part_name(part), key);
        write_file((std::filesystem::path(folder) / name).string(), text);
    };
    for (const auto& [part, json] : analysis) {
        for (const auto& [key, value] : json.items()) {
            if (is_matrix_of(value)) {
                const bool heads = key.starts_with("head_");
                write(part, key,
                      matrix_csv(value, row_names(json, key, value.size()), heads ? "head" : "layer"));
            } else if (is_table_of(value)) {
                write(part, key, table_csv(value));
            }
        }
        if (part == AnalysisPart::spectra)
            write(part, kSingularValues, singular_values_csv(json["matrices"]));
    }
}

}  // namespace refold
