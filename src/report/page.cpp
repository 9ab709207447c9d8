#include "report/page.h"

#include <fmt/format.h>

#include "report/color.h"
#include "report/markup.h"

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

}  // namespace

std::string page_html(const std::string& title, const std::string& subtitle, const std::string& body) {
    std::string out =
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"/>"
        // Even if escaping missed something, the page could not load or run it.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
        "'unsafe-inline'\"/>";
    out += fmt::format("<title>{}</title><style>{}</style></head>\n<body><main>", escape(title), style());
    out += fmt::format("<header><h1>{}</h1><p class=\"muted\">{}</p></header>\n", escape(title),
                       escape(subtitle));
    return out + body + "</main></body></html>\n";
}

std::string figure_html(const Figure& f, const std::string& about) {
    return fmt::format("<figure><figcaption><strong>{}</strong>{}</figcaption>{}</figure>", escape(f.title),
                       escape(f.caption), figure_svg(f, about));
}

std::string gallery_html(const std::string& heading, const std::string& introduction,
                         const std::vector<Figure>& figures) {
    if (figures.empty()) return "";
    std::string out = fmt::format("<section><h2>{}</h2>", escape(heading));
    if (!introduction.empty()) out += fmt::format("<p>{}</p>", escape(introduction));
    out += "<div class=\"grid\">";
    for (const auto& figure : figures) out += figure_html(figure, heading);
    return out + "</div></section>\n";
}

std::string table_html(const std::string& label, const std::string& content) {
    return fmt::format(
        R"(<div class="scroll" tabindex="0" role="region" aria-label="{}"><table>{}</table></div>)",
        escape(label), content);
}

}  // namespace refold
