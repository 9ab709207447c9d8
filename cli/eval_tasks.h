// `refold eval tasks`.
#pragma once

#include "cli/verb.h"

namespace refold::cli {

// Declares the subcommand of `eval` and returns its action.
Action eval_tasks(CLI::App& eval);

}  // namespace refold::cli
