// The measured numbers of a row of a paper's table: each is one of those that a command of refold prints.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/row_model.h"

namespace refold::cli {

class RowNumbers {
public:
    RowNumbers(ReproductionRun& run, RowModel& model) : run_(run), model_(model) {}

    // Why a column cannot be measured here; empty: it can.
    std::string missing(const PaperColumn& column) const;
    // In the column's unit; NaN for a place of a list that is shorter on this model. Kept among the known
    // numbers, of which it is when it has been measured before. Throws Error(input) when a command fails or
    // prints no such number, Error(interrupted).
    double measure(const PaperColumn& column);

private:
    double of_text(const PaperColumn& column);
    double of_task(const PaperColumn& column);
    double of_command(std::vector<std::string> words, const std::string& value);
    std::string key(const std::vector<std::string>& words, const std::string& value) const;
    const nlohmann::json& printed_by(const std::vector<std::string>& words);

    ReproductionRun& run_;
    RowModel& model_;
    // By commands: several columns may have numbers of one.
    std::map<std::vector<std::string>, nlohmann::json> printed_;
};

}  // namespace refold::cli
