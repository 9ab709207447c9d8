// Weights that are random until they are trained.
#pragma once

#include <vector>

#include "compress/method/lazy.h"
#include "compress/method/method.h"

namespace refold {

// `std` and `seed`.
std::vector<OptionSpec> random_start_options();
lazy::Gaussian random_start(const Options& options);

}  // namespace refold
