// Options that every step of gradient descent has.
#pragma once

#include <cstdint>
#include <vector>

#include "compress/method/method.h"
#include "train/options.h"

namespace refold {

// Batches, Adam, learning rates over the steps, precision, device, seed and measurements on held-out text.
// `batch`: its default.
std::vector<OptionSpec> run_options(const char* batch);
// Their values.
TrainOptions run_options_of(const Options& options);
// Sets the number of steps, and the steps of them in which the learning rate grows.
void set_steps(TrainOptions& run, const Options& options, int64_t steps);

// A learning rate as text. Throws Error(usage), with the names of method and option, unless it is above 0.
double parse_learning_rate(const std::string& text, const char* method, const char* option,
                           const char* expected);

}  // namespace refold
