#include "tasks/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "tasks/python_text.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kColumns = 9;
using Cells = std::array<std::string, kColumns>;
constexpr std::array<bool, kColumns> kRight = {false, true, false, true, false, false, true, false, true};

std::string padded(const std::string& text, size_t width, bool right) {
    const std::string spaces(width - code_points(text), ' ');
    return right ? spaces + text : text + spaces;
}

std::string centered(const std::string& text, size_t width) {
    const size_t spaces = width - code_points(text);
    return std::string(spaces / 2, ' ') + text + std::string(spaces - spaces / 2, ' ');
}

std::string number(const Json& value) {
    return value.is_number() ? fmt::format("{:.4f}", value.get<double>()) : value.get<std::string>();
}

// Names, with their depth in groups.
using Lines = std::vector<std::pair<std::string, size_t>>;
using Groups = std::map<std::string, std::set<std::string>>;

void add_with_members(const std::string& name, size_t depth, const Groups& groups, const Json& shown,
                      Lines& lines) {
    if (shown.contains(name)) lines.emplace_back(name, depth);
    const auto members = groups.find(name);
    if (members == groups.end()) return;
    for (const std::string& member : members->second)
        add_with_members(member, depth + 1, groups, shown, lines);
}

// Groups by name, each followed by its members; then tasks without a group.
Lines in_order(const Json& results, const Json& subtasks, const Json& shown) {
    Groups groups;
    std::set<std::string> names, inner;
    for (const auto& [group, members] : subtasks.items())
        for (const auto& member : members) {
            groups[group].insert(member.get<std::string>());
            inner.insert(member.get<std::string>());
        }
    Lines lines;
    for (const auto& [group, members] : groups)
        if (!inner.contains(group)) add_with_members(group, 0, groups, shown, lines);
    for (const auto& [name, unused] : results.items()) names.insert(name);
    for (const std::string& name : names)
        if (!groups.contains(name) && !inner.contains(name)) add_with_members(name, 0, groups, shown, lines);
    return lines;
}

std::string table_of(const Json& all, const Json& shown, const char* title) {
    std::vector<Cells> rows;
    for (const auto& [name, depth] :
         in_order(all["results"], all.value("group_subtasks", Json::object()), shown)) {
        std::string label = (depth > 0 ? std::string(depth, ' ') + "- " : "") + name;
        const Json& version = all["versions"][name];
        std::string shown_version = version.is_string() ? version.get<std::string>() : version.dump();
        const Json& result = shown[name];
        std::map<std::string, Json> sorted;
        for (const auto& [key, value] : result.items()) sorted[key] = value;
        for (const auto& [key, value] : sorted) {
            const size_t comma = key.find(',');
            if (comma == std::string::npos || key.find("_stderr,") != std::string::npos) continue;
            const std::string metric = key.substr(0, comma);
            const bool higher = all["higher_is_better"][name].value(metric, true);
            rows.push_back({label, shown_version, key.substr(comma + 1), all["n-shot"][name].dump(), metric,
                            higher ? "↑" : "↓", number(value), "±",
                            number(sorted[metric + "_stderr" + key.substr(comma)])});
            label.clear();
            shown_version.clear();
        }
    }
    const Cells header = {title, "Version", "Filter", "n-shot", "Metric", "", "Value", "", "Stderr"};
    std::array<size_t, kColumns> widths{};
    for (size_t c = 0; c < kColumns; ++c) {
        widths[c] = std::max<size_t>(3, code_points(header[c]));
        for (const Cells& row : rows) widths[c] = std::max(widths[c], code_points(row[c]));
    }
    std::string out = "|", rule = "|";
    for (size_t c = 0; c < kColumns; ++c) {
        out += centered(header[c], widths[c]) + "|";
        rule += std::string(widths[c] - (kRight[c] ? 1 : 0), '-') + (kRight[c] ? ":|" : "|");
    }
    out += "\n" + rule + "\n";
    for (const Cells& row : rows) {
        out += "|";
        for (size_t c = 0; c < kColumns; ++c) out += padded(row[c], widths[c], kRight[c]) + "|";
        out += "\n";
    }
    return out;
}

}  // namespace

std::string results_table(const Json& results) {
    std::string out = table_of(results, results["results"], "Tasks");
    if (results.contains("groups")) out += "\n" + table_of(results, results["groups"], "Groups");
    return out;
}

}  // namespace refold
