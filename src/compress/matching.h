// Which unit takes whose weights: the choice that head sharing and FFN sharing have in common.
// "Head-wise Shareable Attention for Large Language Models", Algorithms 1 and 2.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compress/method.h"
#include "compress/units.h"

namespace refold {

struct Match {
    Unit later, former;
    double cosine = 0;  // not a number where nothing was compared
};

// Algorithm 1: for every unit of `units` that is `replaceable`, the unit of an earlier position with the
// largest cosine; of equal ones the first. `units` are in order of position and index, `gram` is their
// gram_matrix(). Throws Error(input) naming position and unit when weights are not finite.
std::vector<Match> best_matches(const Model& model, const std::vector<Unit>& units,
                                const std::vector<double>& gram, const std::vector<bool>& replaceable);

// The `count` matches with the largest cosines (of equal ones the first), in order of position and index.
std::vector<Match> largest(const std::vector<Match>& matches, size_t count);

// Control: every match's former unit drawn from all of `units` at earlier positions, the same for a seed.
std::vector<Match> with_random_formers(const std::vector<Match>& matches, const std::vector<Unit>& units,
                                       uint64_t seed);

// For models without weights: `count` of the units that best_matches() would match, evenly spread, each with
// a unit of the first position, so that exactly `count` units are no longer stored.
std::vector<Match> placeholders(const std::vector<Unit>& units, const std::vector<bool>& replaceable,
                                size_t count);

// What happens when the unit to be copied is itself replaced.
enum class Chain {
    root,     // follow to the unit that is really stored (Algorithm 2 in ascending order)
    one_hop,  // copy its original weights, which stay stored for that
    repo,     // it takes its own weights back (the authors' published program)
};

struct Replacement {
    Unit unit, source;
    bool operator==(const Replacement&) const = default;
};
// Algorithm 2: who takes whose original weights. `selected` in order of position and index.
std::vector<Replacement> resolve(const std::vector<Match>& selected, Chain chain);
// The other choice of the paper's Table 13: units connected by matches all take the weights of the one in the
// latest layer (of several there, the first). As many units are saved as with Chain::root.
std::vector<Replacement> resolve_latter(const std::vector<Match>& selected);

// Distribution of the best cosines, and the smallest one that was chosen. `what`: "heads".
void report_similarities(const std::vector<Match>& matches, const std::vector<Match>& selected,
                         const std::string& what, StepReport& report, nlohmann::json& details);
// Every pair and what became of it.
void report_pairs(const std::vector<Match>& selected, const std::vector<Replacement>& replacements,
                  StepReport& report, nlohmann::json& details);
// Says that pairs are placeholders() of a model without weights.
void report_placeholders(StepReport& report, nlohmann::json& details);

// floor(ratio * units); the guard keeps 0.3 * 90 = 26.999... from losing one.
size_t part_of(double ratio, size_t units);

}  // namespace refold
