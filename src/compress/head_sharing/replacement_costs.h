// How much the next token's distribution changes when one head takes over another one's weights.
#pragma once

#include <functional>
#include <vector>

#include "compress/head_sharing/matching.h"
#include "compress/method/method.h"
#include "compress/rewrite/units.h"

namespace refold {

// For each match the mean Kullback-Leibler divergence in nats when it alone is made, by LayerProbes on 1024
// tokens of the calibration text; of a head that several layers use, the sum over these. `units` are those of
// the model, `replaced` makes the model of one match. `key` says what that depends on, for the results.
std::vector<double> replacement_costs(const Model& model, const HeadUnits& units,
                                      const std::vector<Match>& matches,
                                      const std::function<Model(const Match&)>& replaced,
                                      const std::string& key, const Step& step);

}  // namespace refold
