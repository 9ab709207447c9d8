#include "report/frontier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/text.h"
#include "report/axis.h"
#include "report/markup.h"
#include "report/page.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kBytesPerMiB = 1024.0 * 1024.0;

TypeMap::Cell cell_of(const Model& model, const Expression& expression) {
    std::set<std::string> types;
    double bytes = 0, elements = 0;
    for (const std::string& name : tensors_of(expression)) {
        const Tensor& tensor = model.tensor(name);
        bytes += static_cast<double>(tensor.bytes());
        if (is_small_factor(expression, name)) continue;
        types.insert(refold::name(tensor.type));
        elements += static_cast<double>(tensor.elements());
    }
    return {bytes * 8 / elements, fmt::format("{}", fmt::join(types, ", "))};
}

bool is_quantized(Slot slot) { return properties(slot).quantized != QuantizedAs::unchanged; }

std::string mebibytes(double v) { return fmt::format("{:.1f} MiB", v); }

Figure against_size(const Frontier& frontier, const std::string& title, const std::string& caption,
                    const std::string& axis, bool with_original,
                    const std::function<std::pair<double, double>(const FrontierFigures&)>& value) {
    ScatterPlot plot{.label = title,
                     .x_axis = "file size (MiB)",
                     .y_axis = axis,
                     .points = {},
                     .format_x = mebibytes,
                     .format_y = [](double v) { return fmt::format("{:.4g}", v); },
                     .series = {"refold fit"}};
    std::vector<double> values;
    bool others = false;
    const auto add = [&](const std::string& name, uint64_t bytes, std::pair<double, double> y, bool made) {
        plot.points.push_back({name, static_cast<double>(bytes) / kBytesPerMiB, y.first, y.second,
                               made ? size_t{0} : size_t{1}});
        values.push_back(y.first);
        others |= !made;
    };
    for (const FrontierFile& file : frontier.files)
        add(file.name, file.file_bytes, value(file.figures), file.made);
    if (with_original)
        add(frontier.model, frontier.file_bytes, {frontier.perplexity, frontier.standard_error}, false);
    if (others) plot.series.emplace_back("other files");
    plot.logarithmic = spans_decades(values);
    return {title, caption, std::move(plot)};
}

std::string sizes_table(const Frontier& f) {
    std::string out = fmt::format("<caption>{}</caption><thead><tr>", escape(f.text));
    for (const char* head : {"File", "Size", "Bits per weight", "KL divergence", "Same likeliest token",
                             "Perplexity", "KL divergence that was predicted"})
        out += fmt::format("<th scope=\"col\">{}</th>", head);
    out += "</tr></thead><tbody>";
    const auto row = [&](const std::string& name, const std::vector<std::string>& cells) {
        out += fmt::format("<tr><th scope=\"row\">{}</th>", escape(name));
        for (const std::string& cell : cells) out += fmt::format("<td>{}</td>", cell);
        out += "</tr>";
    };
    const auto perplexity = [](double value, double error) {
        return fmt::format("{:.3f} ± {:.3f}", value, error);
    };
    row(f.model + " (original)",
        {format_bytes(f.file_bytes), "–", "0", "100 %", perplexity(f.perplexity, f.standard_error), "–"});
    for (const FrontierFile& file : f.files) {
        const FrontierFigures& x = file.figures;
        const std::string interval =
            x.kl_low && x.kl_high ? fmt::format("<small>{:.4g} to {:.4g}</small>", *x.kl_low, *x.kl_high)
                                  : "";
        row(file.name,
            {format_bytes(file.file_bytes), fmt::format("{:.2f}", file.bits_per_weight),
             fmt::format("{:.4g}{}", x.kl_divergence, interval),
             fmt::format("{:.1f} %", 100 * x.top1_agreement), perplexity(x.perplexity, x.standard_error),
             file.predicted_divergence ? fmt::format("{:.4g}", *file.predicted_divergence) : "–"});
    }
    return table_html("Sizes, table", out + "</tbody>");
}

std::string to_reproduce(const Frontier& f) {
    std::string out =
        fmt::format("<section><h2>To reproduce</h2><p>refold {}, {}</p>", escape(f.version), escape(f.date));
    out += fmt::format("<pre class=\"card\">{}</pre>", escape(join(f.commands, "\n")));
    for (const FrontierFile& file : f.files) {
        if (file.recipe.empty()) continue;
        out += fmt::format("<details><summary>Recipe of {}</summary><pre class=\"card\">{}</pre></details>",
                           escape(file.name), escape(file.recipe));
    }
    return out + "</section>";
}

Json types_json(const TypeMap& map) {
    Json layers = Json::array(), tables = Json::object();
    for (const auto& row : map.layers) {
        Json layer = Json::object();
        for (size_t s = 0; s < row.size(); ++s)
            if (!row[s].type.empty()) layer[slot_name(map.slots[s])] = row[s].type;
        layers.push_back(std::move(layer));
    }
    for (const auto& [slot, cell] : map.tables) tables[slot_name(slot)] = cell.type;
    return {{"layers", layers}, {"tables", tables}};
}

Json json_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

}  // namespace

TypeMap type_map(const Model& model) {
    std::set<Slot> slots;
    for (const Slots& layer : model.topology.layers)
        for (const auto& [slot, expression] : layer)
            if (is_quantized(slot)) slots.insert(slot);
    TypeMap out{{slots.begin(), slots.end()}, {}, {}};
    for (const Slots& layer : model.topology.layers) {
        auto& row = out.layers.emplace_back();
        for (const Slot slot : out.slots) {
            const auto found = layer.find(slot);
            row.push_back(found == layer.end() ? TypeMap::Cell{std::numeric_limits<double>::quiet_NaN(), ""}
                                               : cell_of(model, found->second));
        }
    }
    for (const auto& [slot, expression] : model.topology.globals)
        if (is_quantized(slot)) out.tables.emplace_back(slot, cell_of(model, expression));
    return out;
}

std::vector<Figure> frontier_figures(const Frontier& frontier) {
    std::vector<Figure> out;
    out.push_back(against_size(frontier, "KL divergence against size",
                               "Of the next token from the original model's; lower is better.",
                               "KL divergence (nats per token)", false, [](const FrontierFigures& x) {
                                   const double interval =
                                       x.kl_low && x.kl_high ? (*x.kl_high - *x.kl_low) / 2 : 0;
                                   return std::pair(x.kl_divergence, interval / 1.959964);
                               }));
    out.push_back(
        against_size(frontier, "Perplexity against size", "Lower is better.", "perplexity (no unit)", true,
                     [](const FrontierFigures& x) { return std::pair(x.perplexity, x.standard_error); }));
    return out;
}

std::vector<Figure> type_figures(const Frontier& frontier) {
    std::vector<double> all;
    for (const FrontierFile& file : frontier.files)
        for (const auto& row : file.types.layers)
            for (const TypeMap::Cell& cell : row)
                if (file.made) all.push_back(cell.bits);
    const auto range = range_of(all);
    std::vector<Figure> out;
    for (const FrontierFile& file : frontier.files) {
        if (!file.made || !range) continue;
        Heatmap map{.label = file.name,
                    .x_axis = "matrix",
                    .y_axis = "layer",
                    .columns = {},
                    .rows = {},
                    .values = {},
                    .unit = "bits per weight",
                    .format = [](double v) { return fmt::format("{:.2f}", v); },
                    .low = range->first,
                    .high = range->second};
        for (const Slot slot : file.types.slots) map.columns.emplace_back(slot_name(slot));
        for (size_t l = 0; l < file.types.layers.size(); ++l) {
            map.rows.push_back(fmt::format("{}", l));
            auto& values = map.values.emplace_back();
            auto& details = map.details.emplace_back();
            for (const TypeMap::Cell& cell : file.types.layers[l]) {
                values.push_back(cell.bits);
                details.push_back(cell.type);
            }
        }
        std::vector<std::string> tables;
        for (const auto& [slot, cell] : file.types.tables)
            tables.push_back(fmt::format("{} {} ({:.2f})", slot_name(slot), cell.type, cell.bits));
        out.push_back({file.name, join(tables, ", "), std::move(map)});
    }
    return out;
}

std::string frontier_html(const Frontier& f) {
    std::string body = "<section><h2>What a size loses</h2>" + sizes_table(f);
    for (const std::string& note : f.notes)
        body += fmt::format("<p class=\"notes\"><small>{}</small></p>", escape(note));
    body += "</section>\n" + gallery_html("Quality against size", f.text, frontier_figures(f));
    body += gallery_html("What was chosen where",
                         "Bits per weight of every matrix; the colors are the same in all figures.",
                         type_figures(f));
    return page_html("Sizes of " + f.model, f.date, body + to_reproduce(f));
}

Json frontier_json(const Frontier& f) {
    Json files = Json::array();
    for (const FrontierFile& file : f.files) {
        const FrontierFigures& x = file.figures;
        files.push_back(
            {{"name", file.name},
             {"path", file.path},
             {"made", file.made},
             {"file_bytes", file.file_bytes},
             {"bits_per_weight", file.bits_per_weight},
             {"kl_divergence", x.kl_divergence},
             {"kl_divergence_interval", x.kl_low && x.kl_high ? Json{*x.kl_low, *x.kl_high} : Json()},
             {"top1_agreement", x.top1_agreement},
             {"perplexity", x.perplexity},
             {"standard_error", x.standard_error},
             {"predicted_divergence", json_or_null(file.predicted_divergence)},
             {"divergence", json_or_null(file.calibration_divergence)},
             {"types", types_json(file.types)}});
    }
    return {{"model", f.model},
            {"file_bytes", f.file_bytes},
            {"perplexity", f.perplexity},
            {"standard_error", f.standard_error},
            {"text", f.text},
            {"files", files},
            {"notes", f.notes}};
}

}  // namespace refold
