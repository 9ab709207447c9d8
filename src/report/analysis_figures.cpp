#include "report/analysis_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "report/json_access.h"

namespace refold {
namespace {

using nlohmann::json;

// More than any model has; protects against files whose sizes would exhaust memory.
constexpr size_t kMostHeads = 16384, kMostLayers = 1024, kMostHeadsOfLayer = 512, kMostSlots = 32;

std::string cosine_text(double value) {
    const std::string text = fmt::format("{:.3f}", value);
    return text == "-0.000" ? "0.000" : text;
}
std::string small_text(double value) { return fmt::format("{:.3g}", value); }

std::vector<std::string> counted(size_t n) {
    std::vector<std::string> names;
    for (size_t i = 0; i < n; ++i) names.push_back(std::to_string(i));
    return names;
}

// A square matrix of cosines without its diagonal; empty when `rows` is not one.
std::vector<std::vector<double>> cosines(const json& rows) {
    std::vector<std::vector<double>> out;
    if (!rows.is_array() || rows.size() > kMostHeads) return {};
    for (const json& row : rows) {
        if (!row.is_array() || row.size() != rows.size()) return {};
        std::vector<double>& values = out.emplace_back();
        for (const json& value : row) values.push_back(number_or_nan(value));
        values[out.size() - 1] = std::nan("");
    }
    return out;
}

bool any_finite(const std::vector<std::vector<double>>& values) {
    return std::any_of(values.begin(), values.end(), [](const auto& row) {
        return std::any_of(row.begin(), row.end(), [](double v) { return std::isfinite(v); });
    });
}

class Figures {
public:
    explicit Figures(const json& analysis) : analysis_(analysis) {}

    std::vector<Figure> all() {
        softmax(member(analysis_, "softmax"));
        heads(member(analysis_, "heads"), "attention maps", Scale::sequential);
        modules(member(analysis_, "modules"));
        const json& weights = member(analysis_, "weights");
        heads(weights, "weights", Scale::diverging);
        layers(weights, "attention_module_cosine", "Attention modules by weights",
               "Cosine of Q, K, V and O of two layers, all their numbers as one vector.", Scale::diverging);
        layers(weights, "ffn_module_cosine", "FFNs by weights",
               "Cosine of all matrices of two layers' FFNs, as one vector.", Scale::diverging);
        spectra(member(analysis_, "spectra"));
        return std::move(out_);
    }

private:
    // The source of the activations: "smollm2, text.txt, 16384 tokens".
    std::string text_note() const {
        const json& text = member(analysis_, "text");
        const std::string name = text_of(member(text, "name"));
        const auto tokens = count_of(member(text, "tokens"));
        if (name.empty()) return "";
        return tokens ? fmt::format(" Text: {}, {} tokens.", name, *tokens) : fmt::format(" Text: {}.", name);
    }

    void layers(const json& part, const char* key, const std::string& title, const std::string& caption,
                Scale scale) {
        auto values = cosines(member(part, key));
        const auto names = counted(values.size());
        every_pair({title, caption, {}}, "layer", names, std::move(values), scale);
    }

    // A heatmap of all pairs; none when no cosine is a number.
    void every_pair(Figure figure, const std::string& axis, const std::vector<std::string>& names,
                    std::vector<std::vector<double>> values, Scale scale) {
        if (!any_finite(values)) return;
        figure.chart = Heatmap{.label = "",
                               .x_axis = axis,
                               .y_axis = axis,
                               .columns = names,
                               .rows = names,
                               .values = std::move(values),
                               .unit = "cosine (no unit)",
                               .format = cosine_text,
                               .scale = scale};
        out_.push_back(std::move(figure));
    }

    void softmax(const json& part) {
        std::string caption = "Cosine of the attention probabilities of two layers, all heads and tokens.";
        const auto average = number_of(member(part, "average")), most = number_of(member(part, "maximum"));
        if (average && most)
            caption += fmt::format(" Average over pairs {:.4f}, largest {:.4f}.", *average, *most);
        layers(part, "layer_cosine", "Softmax similarity of layers", caption + text_note(),
               Scale::sequential);
    }

    void heads(const json& part, const std::string& by, Scale scale) {
        best_matches(member(part, "best_matches"), by);
        auto values = cosines(member(part, "head_cosine"));
        std::vector<std::string> names = counted(values.size());
        const json& given = member(part, "heads");
        for (size_t i = 0; given.is_array() && i < std::min(given.size(), names.size()); ++i)
            names[i] = text_of(given[i]);
        every_pair({"Heads by " + by, "Cosine of every pair of heads (layer.head).", {}}, "head (layer.head)",
                   names, std::move(values), scale);
    }

    // A heatmap of layers and heads, colored by the cosine with the most similar earlier head.
    void best_matches(const json& matches, const std::string& by) {
        Heatmap map{.label = "",
                    .x_axis = "head",
                    .y_axis = "layer",
                    .columns = {},
                    .rows = {},
                    .values = {},
                    .unit = "cosine with the most similar earlier head",
                    .format = cosine_text};
        if (!matches.is_array() || matches.size() > kMostHeads) return;
        for (const json& match : matches) {
            const auto layer = count_of(member(match, "layer")), head = count_of(member(match, "head"));
            if (!layer || !head || *layer >= kMostLayers || *head >= kMostHeadsOfLayer) return;
            if (map.values.size() <= *layer) map.values.resize(*layer + 1);
            auto& row = map.values[*layer];
            if (row.size() <= *head) row.resize(*head + 1, std::nan(""));
            row[*head] = number_or_nan(member(match, "cosine"));
            map.details.resize(map.values.size());
            auto& details = map.details[*layer];
            details.resize(row.size());
            const auto from = count_of(member(match, "former_layer")),
                       of = count_of(member(match, "former_head"));
            if (from && of) details[*head] = fmt::format("layer {}, head {}", *from, *of);
        }
        size_t columns = 0;
        for (const auto& row : map.values) columns = std::max(columns, row.size());
        if (!any_finite(map.values)) return;
        map.rows = counted(map.values.size());
        map.columns = counted(columns);
        out_.push_back(
            {"Most similar earlier head, by " + by,
             "For every head the cosine with the head of an earlier layer that resembles it most." +
                 (by == "weights" ? "" : text_note()),
             std::move(map)});
    }

    void modules(const json& part) {
        const json& layers = member(part, "layers");
        if (!layers.is_array() || layers.empty() || layers.size() > kMostLayers) return;
        LinePlot plot{.label = "",
                      .x_axis = "layer",
                      .y_axis = "cosine (no unit)",
                      .lines = {{"attention", {}, {}}, {"FFN", {}, {}}, {"whole layer", {}, {}}},
                      .format = cosine_text};
        constexpr const char* kKeys[][2] = {{"attention", "attention_standard_deviation"},
                                            {"ffn", "ffn_standard_deviation"},
                                            {"whole_layer", "whole_layer_standard_deviation"}};
        for (const json& layer : layers) {
            const double at = number_or_nan(member(layer, "layer"));
            for (size_t i = 0; i < plot.lines.size(); ++i) {
                plot.lines[i].x.push_back(at);
                plot.lines[i].y.push_back(number_or_nan(member(layer, kKeys[i][0])));
                plot.lines[i].deviation.push_back(number_or_nan(member(layer, kKeys[i][1])));
            }
        }
        out_.push_back(
            {"Input and output of modules",
             "Cosine of the residual stream before and after a module, mean over tokens; near 1, the "
             "module changes little." +
                 text_note(),
             std::move(plot)});
    }

    // Per slot one curve for each stored matrix, colored by layer; and the ranks with 90 % of the energy.
    void spectra(const json& part) {
        const json& matrices = member(part, "matrices");
        if (!matrices.is_array()) return;
        std::vector<std::string> order;
        std::map<std::string, std::vector<Line>> lines;
        std::map<std::string, std::string> shapes;
        std::map<std::string, std::map<size_t, double>> ranks;
        size_t n_layer = 0;
        for (const json& matrix : matrices) {
            const std::string slot = text_of(member(matrix, "slot"));
            const json &values = member(matrix, "singular_values"), &layers = member(matrix, "layers");
            if (slot.empty() || !values.is_array() || values.empty() || !layers.is_array() || layers.empty())
                continue;
            if (!lines.contains(slot)) {
                if (order.size() == kMostSlots) return;
                order.push_back(slot);
            }
            const auto rows = count_of(member(matrix, "rows")), columns = count_of(member(matrix, "columns"));
            if (rows && columns) shapes[slot] = fmt::format("{} x {}", *rows, *columns);
            const double largest = number_or_nan(values[0]), full = static_cast<double>(values.size());
            Line line{fmt::format("{}", count_of(layers[0]).value_or(0)), {}, {}};
            const size_t step = std::max<size_t>(1, values.size() / 96);
            for (size_t i = 0; i < values.size(); i += step) {
                line.x.push_back(static_cast<double>(i + 1));
                // Values at the rounding error of the largest would stretch the axis.
                const double relative = number_or_nan(values[i]) / largest;
                line.y.push_back(relative > 1e-6 ? relative : std::nan(""));
            }
            lines[slot].push_back(std::move(line));
            const auto rank = number_of(member(matrix, "rank_for_90_percent"));
            for (const json& layer : layers) {
                const auto at = count_of(layer);
                if (!rank || !at || *at >= kMostLayers) continue;
                ranks[slot][*at] = *rank / full;
                n_layer = std::max(n_layer, *at + 1);
            }
        }
        rank_map(order, ranks, n_layer);
        for (const auto& slot : order) {
            out_.push_back({"Singular values of " + slot,
                            fmt::format("Relative to the largest one; a curve per stored matrix{}.",
                                        shapes.contains(slot) ? " of " + shapes[slot] : ""),
                            LinePlot{.label = "",
                                     .x_axis = "index of the singular value",
                                     .y_axis = "part of the largest",
                                     .lines = std::move(lines[slot]),
                                     .format = small_text,
                                     .logarithmic = true,
                                     .order = "layer"}});
        }
    }

    void rank_map(const std::vector<std::string>& slots,
                  std::map<std::string, std::map<size_t, double>>& ranks, size_t layers) {
        if (layers == 0) return;
        Heatmap map{.label = "",
                    .x_axis = "weight matrix",
                    .y_axis = "layer",
                    .columns = slots,
                    .rows = counted(layers),
                    .values = std::vector(layers, std::vector(slots.size(), std::nan(""))),
                    .unit = "rank for 90 %, part of the full rank",
                    .format = cosine_text};
        for (size_t s = 0; s < slots.size(); ++s) {
            for (const auto& [layer, part] : ranks[slots[s]]) map.values[layer][s] = part;
        }
        out_.push_back(
            {"Rank that holds 90 % of the energy",
             "Smallest rank with 90 % of the sum of squared singular values: low where a matrix can "
             "be factorized.",
             std::move(map)});
    }

    const json& analysis_;
    std::vector<Figure> out_;
};

}  // namespace

std::vector<Figure> analysis_figures(const json& analysis) { return Figures(analysis).all(); }

}  // namespace refold
