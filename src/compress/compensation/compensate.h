// W_c: a linear map beside shared or missing attention that compensates for the difference (UniAttn,
// section 3.2).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compress/method/method.h"

namespace refold {

// The options `rank`, `place`, `ridge`, `averages` and `type`, and how W_c is solved.
struct CompensationSettings {
    std::string solver;           // lsq, paper, zero
    std::string place;            // attention, before_norm, ffn, before_o, values
    int64_t rank = 0;             // 0: full
    std::optional<double> ridge;  // empty: chosen on held-out text
    int64_t averages = 1;         // of paper: see MapSettings
    std::string type;             // see computed_type()
};
// The options that these settings are read from, besides `solver`. Throws Error(usage) for an invalid ridge.
std::vector<OptionSpec> compensation_options();
CompensationSettings compensation_settings(const Options& options, const std::string& solver);
// True for lsq and paper, which look at activations.
bool is_solved(const std::string& solver);

// The layers without W_c whose attention is not what it is in the original: taken from another layer, or left
// out.
std::vector<size_t> layers_to_compensate(const Model& original, const Model& model);

// The model with W_c in these layers, solved from the first to the last against step.original on
// step.calibration. Reports to step.report.lines and to `details`. Throws Error(usage) for an invalid rank,
// Error(unsupported) with layer and reason where W_c is impossible.
Model compensate(const Model& model, Step& step, const CompensationSettings& settings,
                 const std::vector<size_t>& layers, nlohmann::json& details);

}  // namespace refold
