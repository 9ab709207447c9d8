// An analysis for people and for other programs.
#pragma once

#include <string>

#include "analyze/analysis.h"

namespace refold {

// Tables of what matters most, for a terminal.
std::string summary_text(const Analysis& analysis);

// Writes one CSV file per matrix and table into `folder`, "<part>_<key>.csv": matrices with the layers or
// heads of their rows and columns first, tables with the names of their columns; nothing between commas where
// something does not exist. Throws Error(io).
void write_csv(const Analysis& analysis, const std::string& folder);

}  // namespace refold
