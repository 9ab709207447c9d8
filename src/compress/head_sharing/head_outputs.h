// What heads compute on calibration text: how alike two heads are, and what makes up for the difference.
//
// An earlier head is run in the place of a later one, on the input that the later one has. z and z' are what
// the two give to attn.o [q_per_kv * head_dim], W and W' the columns of attn.o that read them.
#pragma once

#include <vector>

#include "compress/head_sharing/matching.h"
#include "compress/method/method.h"
#include "compress/rewrite/units.h"

namespace refold {

struct OutputComparison {
    bool output_shared = true;  // W' is the earlier unit's; else the later unit keeps its own, W' = W
    bool aligned = false;       // W' is the best of all matrices
    std::string key;            // of the results, besides the model: what `units` depends on
};

// Cosines of the addends W z and W' z' of the residual stream (before a norm of the attention's output), not
// centred:
//     sum over tokens of (W z) . (W' z')  /  sqrt(sum of |W z|^2  sum of |W' z'|^2)
// For best_matches(): the lower triangle, row major, with ones on the diagonal. Of the calibration text the
// first 4096 tokens in whole sequences. Costs the attention of one layer for every pair of layers; memory
// holds sums over tokens, the residual stream and what one layer gives to attn.o.
std::vector<double> head_output_cosines(const Model& model, const HeadUnits& units,
                                        const OutputComparison& comparison, const Step& step);

// The linear map M [q_per_kv * head_dim, the same] for which z = M z' + least squares: W M are the columns of
// attn.o with which the later head can use the earlier one's queries, keys and values.
struct HeadMap {
    Unit unit;
    std::vector<float> weights;  // row major
    double explained = 0;        // part of |z|^2 on held-out text
};

// The maps of units that take over the weights of their sources in attn.q, attn.k and attn.v, and of all with
// the same weights; by layer. Solved on the whole calibration text, the ridge (towards 0) on its held-out
// part.
std::vector<HeadMap> solve_head_maps(const Model& model, const std::vector<Replacement>& replacements,
                                     const Step& step);

// For each of units.stored() whether its columns of attn.o, and those of all units with the same weights, are
// their own, so that a map can be multiplied into them.
std::vector<bool> have_own_outputs(const Model& model, const HeadUnits& units);

// Columns W of attn.o become W M. Throws Error(unsupported) when other layers use them.
Model with_head_maps(const Model& model, const std::vector<HeadMap>& maps,
                     std::vector<Requantized>& requantized);

}  // namespace refold
