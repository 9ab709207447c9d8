// W_c: a linear map beside shared or missing attention that makes up for the difference (UniAttn,
// section 3.2).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compress/method.h"

namespace refold {

// What `rank`, `place`, `ridge` and `type` say, and how W_c is solved.
struct CompensationSettings {
    std::string solver;           // lsq, paper, zero
    std::string place;            // attention, ffn, before_o, values
    int64_t rank = 0;             // 0: full
    std::optional<double> ridge;  // empty: chosen on held-out text
    std::string type;             // see computed_type()
};
// The options that go with `compensation` = `solver`. Throws Error(usage) for a ridge that is none.
std::vector<OptionSpec> compensation_options();
CompensationSettings compensation_settings(const Options& options, const std::string& solver);
// lsq and paper look at activations.
bool is_solved(const std::string& solver);

// Layers that have not the attention that they have in the original, because it is another layer's or was
// left out, and no W_c yet.
std::vector<size_t> layers_to_compensate(const Model& original, const Model& model);

// The model with W_c in these layers, solved bottom-up against step.original on step.calibration; reports to
// step.report.lines, and to `details` for programs. Throws Error(usage) for a rank that is none, and
// Error(unsupported), naming layer and reason, where W_c has no place.
Model compensate(const Model& model, Step& step, const CompensationSettings& settings,
                 const std::vector<size_t>& layers, nlohmann::json& details);

}  // namespace refold
