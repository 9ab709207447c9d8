// Which heads direct_share replaces: how heads are compared, aligned and selected.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "compress/head_sharing/head_outputs.h"
#include "compress/head_sharing/matching.h"
#include "compress/method/method.h"
#include "compress/rewrite/heads.h"

namespace refold::direct_share {

// One selection: heads are compared by `on`, and those selected share `shared`.
struct Selection {
    std::string name;  // empty when it is the only one
    std::vector<Slot> on, shared;
};

// The options `metric`, `align` and `select`.
bool by_output(const Options& options);
bool is_aligned(const Options& options);
bool by_cost(const Options& options);
// True when heads are compared, aligned or chosen on calibration text.
bool is_calibrated(const Options& options);
// Throws Error(usage) when these options do not go with the others.
void check_calibrated(const Options& options);

// `count` heads of `model` with their matches, in the order of layer and index; heads of `compared` are
// compared. Reports how they were found.
std::vector<Match> choose(const Model& model, const Model& compared, const Selection& selection, size_t count,
                          Step& step, nlohmann::json& details);

// The maps that aligned heads need: none unless align=symmetries. In a dry run they have no weights.
std::vector<HeadMap> maps_of(const Model& model, const std::vector<Replacement>& replacements, Step& step,
                             nlohmann::json& details);

// The model in which units take over the weights of others, with maps of their outputs.
Model replaced(const Model& model, const std::vector<Replacement>& replacements,
               const std::vector<Slot>& slots, const std::vector<HeadMap>& maps,
               std::vector<Requantized>& requantized);

}  // namespace refold::direct_share
