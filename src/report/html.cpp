// The comparison as one HTML page. Void elements are closed, so that the page is well-formed XML too.
#include <fmt/format.h>

#include <algorithm>

#include "core/text.h"
#include "report/bar_chart.h"
#include "report/markup.h"
#include "report/measures.h"
#include "report/report.h"

namespace refold {
namespace {

constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--ground:#fbfaf8;--card:#fff;--ink:#1b1b1a;--muted:#55534e;--grid:#dedbd4;--own:#d9d6cf;
--series-1:#2a6fcf;--series-2:#c2611f;--better:#1a6b3a;--worse:#a33420}
@media (prefers-color-scheme:dark){:root{--ground:#161615;--card:#1f1f1e;--ink:#f1efea;--muted:#b7b4ac;--grid:#3b3a37;
--own:#4a4945;--series-1:#5b9bf0;--series-2:#e08a4a;--better:#7fcf9b;--worse:#f09a86}}
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
    for (const auto& measure : measures()) {
        const bool measured = std::any_of(c.variants.begin(), c.variants.end(),
                                          [&](const Variant& v) { return measure.value(v).has_value(); });
        if (!measured) continue;
        const bool part = measure.name[0] == ' ';
        const std::string name = part ? measure.name + 2 : measure.name;
        const std::string hint =
            *measure.hint != 0 && !part ? fmt::format("<small>{}</small>", escape(measure.hint)) : "";
        out += fmt::format(R"(<tr{0}><th scope="row"{0}>{1}{2}</th>)", part ? R"( class="part")" : "",
                           escape(name), hint);
        for (const auto& variant : c.variants) {
            const auto value = measure.value(variant);
            const std::string delta = change(measure, variant, c.variants.front());
            out += fmt::format("<td>{}{}</td>", value ? escape(measure.format(*value)) : "–",
                               delta.empty() ? "" : fmt::format("<small>{}</small>", escape(delta)));
        }
        out += "</tr>";
    }
    return out + "</tbody></table></div>";
}

using Value = std::optional<double> (*)(const Variant&);

std::vector<std::optional<double>> column(const Comparison& c, double unit, Value value) {
    std::vector<std::optional<double>> out;
    for (const auto& variant : c.variants) {
        const auto v = value(variant);
        out.push_back(v ? std::optional(*v / unit) : std::nullopt);
    }
    return out;
}

bool any(const std::vector<std::optional<double>>& values) {
    return std::any_of(values.begin(), values.end(), [](const auto& v) { return v.has_value(); });
}

std::string figure(const Comparison& c, const std::string& title, const std::string& caption,
                   BarChart chart) {
    std::erase_if(chart.series, [](const BarSeries& s) { return !any(s.values); });
    if (chart.series.empty()) return "";
    for (const auto& variant : c.variants) chart.categories.push_back(variant.name);
    chart.label = title + ", bar chart; the values are in the table above";
    return fmt::format("<figure><figcaption><strong>{}</strong>{}</figcaption>{}</figure>", escape(title),
                       escape(caption), bar_chart_svg(chart));
}

std::string speed_figure(const Comparison& c, const std::string& title, Value own, Value stock) {
    return figure(c, title, "Same machine and threads, in turns; higher is better.",
                  {.label = "",
                   .axis = "tokens per second",
                   .categories = {},
                   .series = {{"refold", column(c, 1, own)}, {"stock llama.cpp", column(c, 1, stock)}},
                   .format = [](double v) { return fmt::format("{:.1f} t/s", v); }});
}

std::string perplexity_figure(const Comparison& c) {
    BarSeries series{"perplexity", column(c, 1, [](const Variant& v) {
                         return v.perplexity ? std::optional(v.perplexity->value) : std::nullopt;
                     })};
    std::string protocol;
    for (const auto& v : c.variants) {
        series.errors.push_back(v.perplexity ? v.perplexity->standard_error : 0.0);
        if (v.perplexity && protocol.empty()) protocol = v.perplexity->protocol;
    }
    const bool logarithmic = spans_decades(series.values);
    return figure(
        c, "Perplexity", "Lower is better. " + protocol,
        {.label = "",
         .axis = "perplexity (no unit)",
         .categories = {},
         .series = {series},
         .format = [](double v) { return v < 1000 ? fmt::format("{:.2f}", v) : fmt::format("{:.0f}", v); },
         .logarithmic = logarithmic});
}

std::string charts(const Comparison& c) {
    constexpr double kMiB = 1024.0 * 1024.0;
    const auto mib = [](double v) { return fmt::format("{:.1f} MiB", v); };
    std::string out = R"(<div class="grid">)";
    out +=
        figure(c, "Parameters stored", "Shared weights count once.",
               {.label = "",
                .axis = "million parameters",
                .categories = {},
                .series = {{"parameters", column(c, 1e6,
                                                 [](const Variant& v) {
                                                     return std::optional(static_cast<double>(v.parameters));
                                                 })}},
                .format = [](double v) { return fmt::format("{:.1f} M", v); }});
    out += figure(c, "File size", "Of the GGUF file.",
                  {.label = "",
                   .axis = "MiB (1,048,576 bytes)",
                   .categories = {},
                   .series = {{"file", column(c, kMiB,
                                              [](const Variant& v) {
                                                  return std::optional(static_cast<double>(v.file_bytes));
                                              })}},
                   .format = mib});
    const auto weights = [](const Variant& v) -> std::optional<double> {
        if (!v.resident_weight_bytes) return std::nullopt;
        return static_cast<double>(*v.resident_weight_bytes);
    };
    const auto process = [](const Variant& v) -> std::optional<double> {
        if (!v.resident_set_bytes) return std::nullopt;
        return static_cast<double>(*v.resident_set_bytes);
    };
    out += figure(
        c, "Memory", "The process also holds KV cache, activations and vocabulary.",
        {.label = "",
         .axis = "MiB (1,048,576 bytes)",
         .categories = {},
         .series = {{"weights", column(c, kMiB, weights)}, {"whole process", column(c, kMiB, process)}},
         .format = mib});
    out += perplexity_figure(c);
    out += speed_figure(
        c, "Decode speed",
        [](const Variant& v) { return v.decode ? std::optional(v.decode->tokens_per_s) : std::nullopt; },
        [](const Variant& v) {
            return v.decode ? std::optional(v.decode->baseline_tokens_per_s) : std::nullopt;
        });
    out += speed_figure(
        c, "Prefill speed",
        [](const Variant& v) { return v.prefill ? std::optional(v.prefill->tokens_per_s) : std::nullopt; },
        [](const Variant& v) {
            return v.prefill ? std::optional(v.prefill->baseline_tokens_per_s) : std::nullopt;
        });
    return out + "</div>";
}

// What hovering shows, for readers without a pointer.
std::string borrowed_list(const TopologyMap& map) {
    std::string items;
    size_t count = 0;
    for (size_t p = 0; p < map.rows.size(); ++p) {
        for (size_t s = 0; s < map.slots.size(); ++s) {
            std::vector<std::string> parts;
            for (size_t c = 0; c < map.rows[p][s].size(); ++c) {
                if (!map.borrowed(p, s, c)) continue;
                const TopologyCell& from = map.rows[p][s][c];
                parts.push_back(from.head < 0 ? fmt::format("{} from layer {}", c, from.position)
                                              : fmt::format("{} from {}.{}", c, from.position, from.head));
            }
            if (parts.empty()) continue;
            count += parts.size();
            items += fmt::format("<li>layer {}, {}: {}</li>", p, slot_name(map.slots[s]),
                                 escape(join(parts, ", ")));
        }
    }
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
    const auto file = [](const std::string& name, const std::string& hash) {
        return escape(name) +
               (hash.empty() ? "" : fmt::format(" <small>SHA-256 <code>{}</code></small>", escape(hash)));
    };
    entry("refold", escape(c.version));
    entry("Model file", file(c.source, c.sha256));
    for (const auto& variant : c.variants) {
        if (variant.sha256 != c.sha256) entry("Made from it", file(variant.file, variant.sha256));
    }
    entry("Processor", c.machine.cpu.empty()
                           ? ""
                           : fmt::format("{}, {} thread{}", escape(c.machine.cpu), c.machine.threads,
                                         c.machine.threads == 1 ? "" : "s"));
    if (c.machine.memory_bytes > 0) entry("Memory", format_bytes(c.machine.memory_bytes));
    entry("Date", escape(c.date));
    out += "</dl>";
    if (!c.commands.empty())
        out += fmt::format("<h3>Commands</h3><pre class=\"card\">{}</pre>", escape(join(c.commands, "\n")));
    for (const auto& variant : c.variants) {
        if (variant.recipe.empty()) continue;
        out += fmt::format("<details><summary>Recipe of {}</summary><pre class=\"card\">{}</pre></details>",
                           escape(variant.name), escape(variant.recipe));
    }
    return out;
}

}  // namespace

std::string to_html(const Comparison& c) {
    std::string out =
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>"
        // Even if something slipped through the escaping, nothing would be loaded or run.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'\"/>";
    out += fmt::format("<title>{}</title><style>{}</style></head>\n<body><main>", escape(c.title), kStyle);
    out += fmt::format("<header><h1>{}</h1><p class=\"muted\">{}</p></header>\n", escape(c.title),
                       escape(subtitle(c)));
    if (!c.variants.empty()) {
        out += "<section><h2>Before and after</h2>" + table(c);
        for (const auto& note : c.notes)
            out += fmt::format("<p class=\"notes\"><small>{}</small></p>", escape(note));
        out += "</section>\n<section><h2>Figures</h2>" + charts(c) + "</section>\n";
        out += "<section>" + topologies(c) + "</section>\n<section>" + samples(c) + "</section>\n";
    }
    return out + "<section>" + provenance(c) + "</section></main></body></html>\n";
}

}  // namespace refold
