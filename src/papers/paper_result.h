// A table of a paper beside what was measured here.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "papers/paper_table.h"

namespace refold {

struct PaperCell {
    std::string published;       // as printed; empty: nothing is
    std::optional<double> here;  // in the unit of the column
    std::string note;            // why there is no number, or why the published one cannot be right
};

struct PaperResult {
    PaperTable table;  // its rows are those of `cells`
    std::vector<std::vector<PaperCell>> cells;
    std::string model;     // that the table was run on; empty: its own models
    std::string settings;  // "200 items of each task, 4 windows of a text"
    std::string version, date, machine;
    std::vector<std::string> commands;
};

// Whether `here`, rounded to the digits that were printed, is what was published.
bool equal_as_printed(const std::string& published, double here);
// With as many decimals as were published; without a published number four digits.
std::string number_as_printed(const std::string& published, double here);
// "=" if equal as printed, else "+0.12"; empty when one of the two is missing.
std::string difference_text(const PaperCell& cell);

// Per row: published, here, difference.
std::string to_table(const PaperResult& result);
std::string to_markdown(const PaperResult& result);
std::string to_html(const PaperResult& result);  // a self-contained page
nlohmann::ordered_json to_json(const PaperResult& result);

}  // namespace refold
