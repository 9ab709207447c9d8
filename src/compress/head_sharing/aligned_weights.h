// The cosine of queries' and keys' weights, up to the symmetries of a head.
#pragma once

#include <vector>

#include "compress/rewrite/units.h"

namespace refold {

// What a head computes does not change when every pair of rows of Wq that is rotated together, as a complex
// row q_i, is multiplied by a complex number z_i, and that of Wk, k_i, by 1 / conj(z_i): a rotation of both
// and a scale that goes from one to the other. This is the cosine after the best rotations, for heads scaled
// so that |q_i| = |k_i|:
//     sum over pairs of |<q_i', q_i> + <k_i', k_i>|  /  norms
// It is 1 exactly for heads that are equal up to these symmetries, but for biases. A KV group has the queries
// of all its heads in q_i.
//
// For best_matches(): the lower triangle, row major, with ones on the diagonal. Throws Error(unsupported)
// unless whole heads are rotated, without norms of queries and keys.
std::vector<double> aligned_cosines(const Model& model, const HeadUnits& units);

}  // namespace refold
