// Which unit takes over whose weights, for head sharing and FFN sharing alike.
// "Head-wise Shareable Attention for Large Language Models", Algorithms 1 and 2.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compress/method/method.h"
#include "compress/rewrite/heads.h"

namespace refold {

struct Match {
    Unit later, former;
    double cosine = 0;  // NaN when nothing was compared
};

// Algorithm 1: for each of `units` that is `replaceable`, the unit of an earlier layer with the largest
// cosine; of equal ones the first. `units` are in the order of layer and index; `gram` is their
// gram_matrix(). Throws Error(input) with layer and unit when weights are not finite.
std::vector<Match> best_matches(const Model& model, const std::vector<Unit>& units,
                                const std::vector<double>& gram, const std::vector<bool>& replaceable);

// The `count` matches with the largest cosines (of equal ones the first), in the order of layer and index.
std::vector<Match> largest(const std::vector<Match>& matches, size_t count);

// The `count` matches with the smallest costs (of equal ones the first), in the order of layer and index.
std::vector<Match> cheapest(const std::vector<Match>& matches, const std::vector<double>& costs,
                            size_t count);

// Control: each match gets a random former unit among those of earlier layers, the same for a seed.
std::vector<Match> with_random_formers(const std::vector<Match>& matches, const std::vector<Unit>& units,
                                       uint64_t seed);

// For models without weights: `count` of the units that best_matches() would match, evenly spread, each
// matched to a unit of the first layer. So exactly `count` units are no longer stored.
std::vector<Match> placeholders(const std::vector<Unit>& units, const std::vector<bool>& replaceable,
                                size_t count);

// The weights that a unit takes over when the unit to be copied is itself replaced.
enum class Chain {
    root,     // the weights of the unit that is really stored (Algorithm 2 in ascending order)
    one_hop,  // the unit's original weights, which therefore stay stored
    repo,     // the unit's original weights, and the unit keeps them too (the authors' program)
};

// Algorithm 2, of all pairs: the dictionary in its listing has the former unit as key, so that of several
// pairs with one former unit only the last would remain. `selected` is in the order of layer and index.
std::vector<Replacement> resolve(const std::vector<Match>& selected, Chain chain);
// The other choice of Table 13: all units that are connected by matches take the weights of the one in the
// latest layer (of several there, the first). Saves as many units as Chain::root.
std::vector<Replacement> resolve_latter(const std::vector<Match>& selected);

// Reports the distribution of the best cosines and the smallest selected one. `what`: "heads".
void report_similarities(const std::vector<Match>& matches, const std::vector<Match>& selected,
                         const std::string& what, StepReport& report, nlohmann::json& details);
// Reports each pair and whose weights its later unit takes.
void report_pairs(const std::vector<Match>& selected, const std::vector<Replacement>& replacements,
                  StepReport& report, nlohmann::json& details);
// Reports that the pairs are placeholders() of a model without weights.
void report_placeholders(StepReport& report, nlohmann::json& details);

}  // namespace refold
