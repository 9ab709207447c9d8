// PostShare (Head-wise Shareable Attention, section 4.3): L = L_post + gamma * L_w with
// L_w = 1/|N| * sum over pairs (i, j) in N of sum over q, k, v of |W_i - W_j|_2 (equations 4 and 5).
#pragma once

#include "train/torch/objective.h"

namespace refold {

// Options: gamma, weighting (paper, authors). TrainRequest::pairs are N.
std::unique_ptr<Objective> make_postshare(const TrainRequest& request);

}  // namespace refold
