#include "compress/training/random_start.h"

#include "compress/method/selection.h"

namespace refold {

std::vector<OptionSpec> random_start_options() {
    return {{"std", OptionSpec::Kind::number, "0.02", "deviation of the initial values", 0, 1e6},
            seed_option("of the initial values")};
}

lazy::Gaussian random_start(const Options& options) {
    return {static_cast<float>(options.number("std")), seed_of(options)};
}

}  // namespace refold
