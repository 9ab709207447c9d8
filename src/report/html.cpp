// Writes the comparison as one HTML page. Void elements are closed, so that the page is also well-formed XML.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "report/analysis_figures.h"
#include "report/color.h"
#include "report/figures.h"
#include "report/markup.h"
#include "report/measures.h"
#include "report/report.h"
#include "report/training.h"

namespace refold {
namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--ground:#fbfaf8;--card:#fff;--ink:#1b1b1a;--muted:#55534e;--grid:#dedbd4;--own:#d9d6cf}
@media (prefers-color-scheme:dark){:root{--ground:#161615;--card:#1f1f1e;--ink:#f1efea;--muted:#b7b4ac;--grid:#3b3a37;
--own:#4a4945}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
-webkit-text-size-adjust:100%}
main{max-width:1180px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.6rem;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:40px 0 12px}
p{margin:0 0 12px;max-width:75ch;overflow-wrap:anywhere}
.muted,figcaption,small{color:var(--muted)}
small{font-size:.82rem;display:block}
.card,figure,.scroll{background:var(--card);border:1px solid var(--grid);border-radius:10px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}
caption{text-align:left;padding:12px 12px 4px;color:var(--muted);font-size:.88rem}
th,td{padding:7px 12px;border-top:1px solid var(--grid);text-align:right;vertical-align:top;white-space:nowrap}
thead th{border-top:0;white-space:normal;min-width:6.2em;vertical-align:bottom}
tbody th{text-align:left;font-weight:500;white-space:normal;min-width:8.2em;max-width:19em;position:sticky;left:0;background:var(--card)}
thead th:first-child{text-align:left;position:sticky;left:0;background:var(--card)}
tbody th.part{font-weight:400;color:var(--muted);padding-left:24px}
tr.part th,tr.part td{border-top:0;padding-top:0}
.grid{display:grid;gap:16px;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr));align-items:start}
.pictures{grid-template-columns:repeat(auto-fill,minmax(min(368px,100%),1fr))}
.notes{margin:12px 0 0}
figure{margin:0;padding:14px}
figcaption{font-size:.88rem;margin:0 0 10px;overflow-wrap:anywhere}
figcaption strong{display:block;color:var(--ink);font-size:1rem}
figure .scroll{border:0;border-radius:0}
svg{display:block}
svg.chart{width:100%;height:auto;max-width:420px}
svg rect:hover,svg circle:hover{filter:brightness(1.2)}
article.card{padding:14px}
h3{font-size:1rem;margin:0 0 8px;overflow-wrap:anywhere}
blockquote,pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
blockquote{border-left:3px solid var(--series-1);padding-left:12px}
pre,code{font:.82rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre.card{padding:12px}
details{margin-top:12px}
summary{cursor:pointer;color:var(--muted);font-size:.88rem}
details ul{font-size:.82rem;max-height:18em;overflow:auto;margin:8px 0 0;padding-left:20px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px;margin:0 0 16px}
dt{color:var(--muted)}
dd{margin:0;overflow-wrap:anywhere}
@media (max-width:520px){tbody th small{display:none}tbody th{min-width:6.4em}thead th{min-width:0}main{padding:16px 12px 40px}th,td{padding:6px 8px}table{font-size:.86rem}tbody th.part{padding-left:16px}
figure{padding:10px 8px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:8px}}
)css";

std::string style() {
    return fmt::format(":root{{{}}}@media (prefers-color-scheme:dark){{:root{{{}}}}}{}",
                       color_variables(false), color_variables(true), kStyle);
}

std::string table(const Comparison& c) {
    std::string out =
        R"(<div class="scroll" tabindex="0" role="region" aria-label="Before and after, table"><table>)";
    out += fmt::format("<caption>{}</caption><thead><tr><th scope=\"col\">Measure</th>",
                       c.variants.size() > 1
                           ? "Small figures: change against " + escape(c.variants.front().name) + "."
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
    return out + "</tbody></table></div>";
}

std::string figure_html(const Figure& f, const std::string& about = "") {
    return fmt::format("<figure><figcaption><strong>{}</strong>{}</figcaption>{}</figure>", escape(f.title),
                       escape(f.caption), figure_svg(f, about));
}

// A section of figures side by side; empty when there are none.
std::string gallery(const std::string& heading, const std::string& introduction,
                    const std::vector<Figure>& figures) {
    if (figures.empty()) return "";
    std::string out = fmt::format("<section><h2>{}</h2>", escape(heading));
    if (!introduction.empty()) out += fmt::format("<p>{}</p>", escape(introduction));
    out += "<div class=\"grid\">";
    for (const auto& figure : figures) out += figure_html(figure, heading);
    return out + "</div></section>\n";
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
            out += gallery("What is alike in " + variant.name,
                           "Results of refold analyze: weights that are similar can be shared.",
                           analysis_figures(nlohmann::json::parse(analysis)));
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
        R"(<div class="scroll" tabindex="0" role="region" aria-label="Factors beside SVDs, table"><table>)"
        "<thead><tr><th scope=\"col\">Weight</th><th scope=\"col\">error</th>"
        "<th scope=\"col\">error of the SVD</th><th scope=\"col\">its rank</th></tr></thead>"
        "<tbody>{}</tbody></table></div></details>",
        escape(v.name), rows);
}

std::string errors_of_weights(const Comparison& c) {
    std::string out =
        gallery("Error of the weights",
                "How far the weights, written out, are from the original's: 0 is equal, 1 is as far as "
                "zeros would be.",
                reconstruction_figures(c));
    for (const Variant& variant : c.variants) out += svd_table(variant);
    return out;
}

}  // namespace

std::string to_html(const Comparison& c) {
    std::string out =
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>"
        // Even if escaping missed something, the page could not load or run it.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'\"/>";
    out += fmt::format("<title>{}</title><style>{}</style></head>\n<body><main>", escape(c.title), style());
    out += fmt::format("<header><h1>{}</h1><p class=\"muted\">{}</p></header>\n", escape(c.title),
                       escape(subtitle(c)));
    if (!c.variants.empty()) {
        out += "<section><h2>Before and after</h2>" + table(c);
        for (const auto& note : c.notes)
            out += fmt::format("<p class=\"notes\"><small>{}</small></p>", escape(note));
        out += "</section>\n" + gallery("Figures", "", bar_figures(c));
        out += gallery("Training", "", training_figures(c));
        out += gallery("Quality against size", "", quality_figures(c));
        out += "<section>" + topologies(c) + "</section>\n";
        out += gallery("Sharing by layer", "", share_figures(c));
        out += errors_of_weights(c) + analyses(c) + "<section>" + samples(c) + "</section>\n";
    }
    return out + "<section>" + provenance(c) + "</section></main></body></html>\n";
}

}  // namespace refold
