// Training outputs behind earlier positions along (Relaxed Recursive Transformers, section 3.5 and appendix
// M).
#pragma once

#include "train/torch/objective.h"

namespace refold {

// Options: exits ("loops" or numbers of positions), coefficients (aggressive, weighted), coefficient,
// exit_target (ce, kd, ce+kd), temperature.
std::unique_ptr<Objective> make_early_exit(const TrainRequest& request);

// Numbers of positions after which a model may exit, the last one not among them. "loops": the ends of its
// loops but the last. Throws Error(usage) for a model without loops, and for numbers that are no exits.
std::vector<size_t> exits_of(const Topology& topology, const std::string& text);

}  // namespace refold
