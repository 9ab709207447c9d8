// `refold fit --frontier`: a file of each of several sizes, and a page about all of them.
#pragma once

#include "cli/fit_input.h"

namespace refold::cli {

// Writes the files into the folder --output, and the page beside it. Files that an earlier run has made for
// the same inputs stay. Checks everything that can be checked before anything is measured.
void fit_frontier(const FitArguments& arguments);

// Throws Error(usage) for options that belong to --frontier only, or do not go with it.
void check_frontier_options(const FitArguments& arguments);

}  // namespace refold::cli
