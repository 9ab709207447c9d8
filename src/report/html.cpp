// Writes the comparison as one HTML page.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "core/text.h"
#include "report/analysis_figures.h"
#include "report/figures.h"
#include "report/markup.h"
#include "report/measures.h"
#include "report/page.h"
#include "report/report.h"
#include "report/training.h"

namespace refold {
namespace {

std::string table(const Comparison& c) {
    std::string out = fmt::format(
        "<caption>{}</caption><thead><tr><th scope=\"col\">Measure</th>",
        c.variants.size() > 1 ? "Small figures: change against " + escape(c.variants.front().name) + "."
                              : std::string());
    for (const auto& variant : c.variants)
        out += fmt::format("<th scope=\"col\">{}</th>", escape(variant.name));
    out += "</tr></thead><tbody>";
    for (const auto& measure : measures(c)) {
        const std::string hint = measure.hint.empty() || measure.part
                                     ? ""
                                     : fmt::format("<small>{}</small>", escape(measure.hint));
        out += fmt::format(R"(<tr{0}><th scope="row"{0}>{1}{2}</th>)", measure.part ? R"( class="part")" : "",
                           escape(measure.name), hint);
        for (const auto& variant : c.variants) {
            const std::string delta = change(measure, variant, c.variants.front());
            const std::string value = value_text(measure, variant);
            out += fmt::format("<td>{}{}</td>", value == "-" ? "–" : escape(value),
                               delta.empty() ? "" : fmt::format("<small>{}</small>", escape(delta)));
        }
        out += "</tr>";
    }
    return table_html("Before and after, table", out + "</tbody>");
}

// The details that hovering shows, as a list for readers without a pointer.
std::string borrowed_list(const TopologyMap& map) {
    std::string items;
    size_t count = 0;
    for (size_t p = 0; p < map.rows.size(); ++p) {
        for (size_t s = 0; s < map.slots.size(); ++s) {
            std::vector<std::string> parts;
            for (size_t c = 0; c < map.rows[p][s].size(); ++c) {
                if (!map.borrowed(p, s, c)) continue;
                const TopologyCell& from = map.rows[p][s][c];
                parts.push_back(from.head < 0 ? fmt::format("{} from layer {}", c, from.layer)
                                              : fmt::format("{} from {}.{}", c, from.layer, from.head));
            }
            if (parts.empty()) continue;
            count += parts.size();
            items += fmt::format("<li>layer {}, {}: {}</li>", p, slot_name(map.slots[s]),
                                 escape(join(parts, ", ")));
        }
    }
    if (count == 0) return "";
    return fmt::format(
        "<details><summary>All {} borrowed parts (head from layer.head)</summary><ul>{}</ul></details>",
        count, items);
}

std::string topologies(const Comparison& c) {
    std::string figures, unshared;
    for (const auto& variant : c.variants) {
        if (!variant.topology) continue;
        const TopologyMap& map = *variant.topology;
        const std::string summary = topology_summary(map);
        if (summary.ends_with("no sharing")) {
            unshared += fmt::format("<p>{}: {}; every layer has its own weights.</p>", escape(variant.name),
                                    escape(summary));
            continue;
        }
        figures += fmt::format(
            "<figure><figcaption><strong>{}</strong>{}</figcaption>"
            R"(<div class="scroll" tabindex="0" role="region" aria-label="Topology of {}">{}</div>{}</figure>)",
            escape(variant.name), escape(summary), escape(variant.name),
            topology_svg(map, "Topology of " + variant.name + ": " + summary), borrowed_list(map));
    }
    if (figures.empty() && unshared.empty()) return "";
    return "<h2>Where the weights come from</h2>" + unshared + "<div class=\"grid pictures\">" + figures +
           "</div>";
}

std::string samples(const Comparison& c) {
    std::string out, prompt;
    for (const auto& variant : c.variants) {
        if (variant.generated.empty() && variant.prompt.empty()) continue;
        if (variant.prompt != prompt) {
            prompt = variant.prompt;
            if (!out.empty()) out += "</div>";
            out += fmt::format("<p>Prompt: <q>{}</q></p><div class=\"grid\">", escape(prompt));
        } else if (out.empty()) {
            out += "<div class=\"grid\">";
        }
        out += fmt::format(R"(<article class="card"><h3>{}</h3><blockquote>{}</blockquote></article>)",
                           escape(variant.name), escape(variant.generated));
    }
    return out.empty() ? "" : "<h2>What it writes</h2>" + out + "</div>";
}

std::string subtitle(const Comparison& c) {
    std::vector<std::string> parts;
    if (!c.model.empty() && !c.title.starts_with(c.model)) parts.push_back(c.model);
    if (!c.date.empty()) parts.push_back(c.date);
    if (!c.machine.cpu.empty()) parts.push_back(c.machine.cpu);
    return join(parts, ", ");
}

std::string provenance(const Comparison& c) {
    std::string out = "<h2>To reproduce</h2><dl>";
    const auto entry = [&](const char* name, const std::string& value) {
        if (!value.empty()) out += fmt::format("<dt>{}</dt><dd>{}</dd>", name, value);
    };
    const auto files = [](const std::string& file, const FileHashes& hashes) {
        std::string names = hashes.size() == 1 && hashes.begin()->first == file ? "" : escape(file);
        for (const auto& [name, hash] : hashes)
            names += fmt::format("{} <small>SHA-256 <code>{}</code></small>", escape(name), escape(hash));
        return names;
    };
    entry("refold", escape(c.version));
    entry("Model file", files(c.source, c.hashes));
    for (size_t i = 1; i < c.variants.size(); ++i) {
        const Variant& v = c.variants[i];
        if (v.file != c.source || !same_files(v.hashes, c.hashes)) entry("Compared", files(v.file, v.hashes));
    }
    entry("Processor", escape(processor_text(c.machine)));
    if (c.machine.memory_bytes > 0) entry("Memory", format_bytes(c.machine.memory_bytes));
    entry("Date", escape(c.date));
    out += "</dl>";
    if (!c.commands.empty())
        out += fmt::format("<h3>Commands</h3><pre class=\"card\">{}</pre>", escape(join(c.commands, "\n")));
    for (const auto& variant : c.variants) {
        if (!variant.steps.empty())
            out += fmt::format(
                "<details><summary>What was done for {}</summary><pre class=\"card\">{}</pre></details>",
                escape(variant.name), escape(join(variant.steps, "\n")));
        if (variant.recipe.empty()) continue;
        out += fmt::format("<details><summary>Recipe of {}</summary><pre class=\"card\">{}</pre></details>",
                           escape(variant.name), escape(variant.recipe));
    }
    return out;
}

std::string analyses(const Comparison& c) {
    std::string out;
    for (const auto& variant : c.variants) {
        for (const auto& analysis : variant.analyses) {
            out += gallery_html("What is alike in " + variant.name,
                                "Results of refold analyze: weights that are similar can be shared.",
                                analysis_figures(parse_json(analysis, "report", "an analysis", kLargeJson)));
        }
    }
    return out;
}

std::string error_text(double error) { return std::isfinite(error) ? fmt::format("{:.4f}", error) : "–"; }

// The SVD errors that hovering shows, as a table.
std::string svd_table(const Variant& v) {
    if (v.svd_errors.empty() || !v.reconstruction) return "";
    const Reconstruction& r = *v.reconstruction;
    std::string rows;
    for (const SvdError& svd : v.svd_errors) {
        const auto column = r.column(svd.layer, svd.slot);
        if (!column) continue;
        rows += fmt::format("<tr><th scope=\"row\">layer {}, {}</th><td>{}</td><td>{}</td><td>{}</td></tr>",
                            svd.layer, slot_name(svd.slot), error_text(r.errors[svd.layer][*column]),
                            error_text(svd.error), svd.rank);
    }
    if (rows.empty()) return "";
    return fmt::format(
        "<details><summary>Factors of {} beside truncated SVDs that hold as many numbers</summary>"
        "{}</details>",
        escape(v.name),
        table_html("Factors beside SVDs, table",
                   "<thead><tr><th scope=\"col\">Weight</th><th scope=\"col\">error</th>"
                   "<th scope=\"col\">error of the SVD</th><th scope=\"col\">its rank</th></tr></thead>"
                   "<tbody>" +
                       rows + "</tbody>"));
}

std::string errors_of_weights(const Comparison& c) {
    std::string out =
        gallery_html("Error of the weights",
                     "How far the weights, written out, are from the original's: 0 is equal, 1 is as far as "
                     "zeros would be.",
                     reconstruction_figures(c));
    for (const Variant& variant : c.variants) out += svd_table(variant);
    return out;
}

}  // namespace

std::string to_html(const Comparison& c) {
    std::string out;
    if (!c.variants.empty()) {
        out += "<section><h2>Before and after</h2>" + table(c);
        for (const auto& note : c.notes)
            out += fmt::format("<p class=\"notes\"><small>{}</small></p>", escape(note));
        out += "</section>\n" + gallery_html("Figures", "", bar_figures(c));
        out += gallery_html("Training", "", training_figures(c));
        out += gallery_html("Quality against size", "", quality_figures(c));
        out += "<section>" + topologies(c) + "</section>\n";
        out += gallery_html("Sharing by layer", "", share_figures(c));
        out += errors_of_weights(c) + analyses(c) + "<section>" + samples(c) + "</section>\n";
    }
    return page_html(c.title, subtitle(c), out + "<section>" + provenance(c) + "</section>");
}

}  // namespace refold
