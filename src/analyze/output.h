// Prints an analysis as tables and writes it as CSV.
#pragma once

#include <string>

#include "analyze/analysis.h"

namespace refold {

// Tables of the most important results, for a terminal.
std::string summary_text(const Analysis& analysis);

// Writes one CSV file "<part>_<key>.csv" per matrix and table into `folder`. Matrices have the layers or
// heads as the first row and column, tables the column names as the first row. Missing values are empty
// fields. Throws Error(io).
void write_csv(const Analysis& analysis, const std::string& folder);

}  // namespace refold
