// Also trains the outputs after earlier layers, for early exit (Relaxed Recursive Transformers, section 3.7
// and appendix M).
#pragma once

#include "train/torch/objective.h"

namespace refold {

// Options: exits ("loops" or numbers of layers), coefficients (aggressive, weighted), coefficient,
// exit_target (ce, kd, ce+kd), temperature.
std::unique_ptr<Objective> make_early_exit(const TrainRequest& request);

// The numbers of layers after which a model may exit, without the last layer. "loops": the ends of all loops
// but the last. Throws Error(usage) for "loops" of a model without loops and for numbers that are not valid
// exits.
std::vector<size_t> exits_of(const Topology& topology, const std::string& text);

}  // namespace refold
