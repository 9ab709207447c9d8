#include "papers/paper_result.h"

#include <fmt/format.h>

#include <cmath>

#include "core/text.h"
#include "report/markup.h"
#include "report/page.h"

namespace refold {
namespace {

int decimals(const std::string& published) {
    const size_t point = published.find('.');
    return point == std::string::npos ? 0 : static_cast<int>(published.size() - point - 1);
}

double half_a_digit(const std::string& published) { return 0.5 * std::pow(10.0, -decimals(published)); }

std::string heading(const PaperResult& result) {
    return fmt::format("{} {}: {}", result.table.paper, result.table.place, result.table.title);
}

std::string subtitle(const PaperResult& result) {
    std::vector<std::string> parts;
    if (!result.model.empty()) parts.push_back("on " + result.model);
    for (const std::string& part : {result.settings, result.machine, result.date})
        if (!part.empty()) parts.push_back(part);
    parts.push_back("refold " + result.version);
    return join(parts, ", ");
}

// Notes of the table, and those of cells, each once with the places where it applies.
std::vector<std::string> notes(const PaperResult& result) {
    std::vector<std::string> out = result.table.notes;
    std::vector<std::pair<std::string, std::vector<std::string>>> of_cells;
    const auto add = [&](const std::string& note, const std::string& place) {
        for (auto& [known, places] : of_cells) {
            if (known != note) continue;
            if (std::ranges::find(places, place) == places.end()) places.push_back(place);
            return;
        }
        of_cells.push_back({note, {place}});
    };
    for (size_t r = 0; r < result.cells.size(); ++r) {
        for (size_t c = 0; c < result.cells[r].size(); ++c) {
            const PaperCell& cell = result.cells[r][c];
            const PaperColumn& column = result.table.columns[c];
            if (cell.note.empty()) continue;
            const bool everywhere = std::ranges::all_of(
                result.cells, [&](const std::vector<PaperCell>& row) { return row[c].note == cell.note; });
            add(cell.note, everywhere || cell.here ? column.name : result.table.rows[r].name);
        }
    }
    for (const auto& [note, places] : of_cells) out.push_back(join(places, ", ") + ": " + note);
    return out;
}

std::string shown(const std::string& text) { return text.empty() ? "-" : text; }
std::string here_text(const PaperCell& cell) {
    return cell.here ? number_as_printed(cell.published, *cell.here) : "-";
}

}  // namespace

bool equal_as_printed(const std::string& published, double here) {
    return std::abs(here - std::stod(published)) <= half_a_digit(published) * (1 + 1e-9);
}

std::string number_as_printed(const std::string& published, double here) {
    // Halves are rounded away from zero, as people do: 81.25 is 81.3.
    return published.empty() ? fmt::format("{:.4g}", here)
                             : fmt::format("{:.{}f}", here * (1 + 1e-12), decimals(published));
}

std::string difference_text(const PaperCell& cell) {
    if (!cell.here || cell.published.empty()) return "";
    if (equal_as_printed(cell.published, *cell.here)) return "=";
    return fmt::format("{:+.{}f}", *cell.here - std::stod(cell.published), decimals(cell.published));
}

std::string to_table(const PaperResult& result) {
    std::vector<std::string> header{""};
    for (const PaperColumn& column : result.table.columns) header.push_back(column.name);
    TextTable table(header);
    for (size_t r = 0; r < result.cells.size(); ++r) {
        std::vector<std::string> published{result.table.rows[r].name}, here{"  here"},
            difference{"  difference"};
        for (const PaperCell& cell : result.cells[r]) {
            published.push_back(shown(cell.published));
            here.push_back(here_text(cell));
            difference.push_back(difference_text(cell));
        }
        table.add(published);
        table.add(here);
        table.add(difference);
    }
    std::string out = heading(result) + "\n" + subtitle(result) + "\n\n" + table.str();
    for (const std::string& note : notes(result)) out += fmt::format("\n{}", note);
    return out + (out.ends_with('\n') ? "" : "\n");
}

std::string to_markdown(const PaperResult& result) {
    std::string out = fmt::format("## {}\n\n{}.\n\n| |", escape_markdown(heading(result)),
                                  escape_markdown(subtitle(result)));
    for (const PaperColumn& column : result.table.columns)
        out += fmt::format(" {} |", escape_markdown(column.name));
    out += "\n|---|";
    for (size_t c = 0; c < result.table.columns.size(); ++c) out += "---|";
    for (size_t r = 0; r < result.cells.size(); ++r) {
        const auto line = [&](const std::string& name, const auto& text) {
            out += fmt::format("\n| {} |", escape_markdown(name));
            for (const PaperCell& cell : result.cells[r])
                out += fmt::format(" {} |", escape_markdown(text(cell)));
        };
        line(result.table.rows[r].name, [](const PaperCell& cell) { return shown(cell.published); });
        line("here", here_text);
        line("difference", difference_text);
    }
    out += "\n";
    for (const std::string& note : notes(result)) out += fmt::format("\n{}\n", escape_markdown(note));
    std::string commands;
    for (const std::string& command : result.commands) commands += command + "\n";
    if (!commands.empty()) out += "\n" + markdown_code(commands, "sh") + "\n";
    return out;
}

std::string to_html(const PaperResult& result) {
    std::string table =
        "<caption>Small figures: what was measured here, and the difference; = where it is "
        "equal in all digits that were printed.</caption><thead><tr><th scope=\"col\"></th>";
    for (const PaperColumn& column : result.table.columns)
        table += fmt::format("<th scope=\"col\">{}</th>", escape(column.name));
    table += "</tr></thead><tbody>";
    for (size_t r = 0; r < result.cells.size(); ++r) {
        table += fmt::format("<tr><th scope=\"row\">{}</th>", escape(result.table.rows[r].name));
        for (const PaperCell& cell : result.cells[r])
            table += fmt::format("<td>{}<small>{} {}</small></td>", escape(shown(cell.published)),
                                 here_text(cell), difference_text(cell));
        table += "</tr>";
    }
    std::string body = table_html(heading(result), table + "</tbody>");
    for (const std::string& note : notes(result))
        body += fmt::format("<p class=\"notes\">{}</p>", escape(note));
    std::string commands;
    for (const std::string& command : result.commands) commands += command + "\n";
    if (!commands.empty())
        body += fmt::format("<h2>Commands</h2><pre class=\"card\">{}</pre>", escape(commands));
    return page_html(heading(result), subtitle(result), body);
}

nlohmann::ordered_json to_json(const PaperResult& result) {
    using Json = nlohmann::ordered_json;
    const PaperTable& t = result.table;
    Json rows = Json::array();
    for (size_t r = 0; r < result.cells.size(); ++r) {
        Json cells = Json::array();
        for (size_t c = 0; c < result.cells[r].size(); ++c) {
            const PaperCell& cell = result.cells[r][c];
            const bool both = cell.here && !cell.published.empty();
            const Json published = cell.published.empty() ? Json() : Json(std::stod(cell.published));
            cells.push_back(
                {{"column", t.columns[c].name},
                 {"published", published},
                 {"here", cell.here ? Json(*cell.here) : Json()},
                 {"difference", both ? Json(*cell.here - published.get<double>()) : Json()},
                 {"equal_as_printed", both ? Json(equal_as_printed(cell.published, *cell.here)) : Json()},
                 {"note", cell.note}});
        }
        rows.push_back({{"row", t.rows[r].name}, {"model", t.rows[r].model}, {"cells", cells}});
    }
    return {{"paper", t.paper},
            {"place", t.place},
            {"section", t.section},
            {"title", t.title},
            {"model", result.model},
            {"settings", result.settings},
            {"version", result.version},
            {"date", result.date},
            {"machine", result.machine},
            {"notes", t.notes},
            {"commands", result.commands},
            {"rows", rows}};
}

}  // namespace refold
