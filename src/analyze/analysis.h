// The results of `refold analyze`, part by part, as JSON with snake_case keys; missing values are null.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "analyze/activations.h"

namespace refold {

enum class AnalysisPart {
    weights,  // cosines of the weights of heads and of whole modules
    spectra,  // singular values of weight matrices
    softmax,  // cosines of layers' attention maps
    heads,    // cosines of heads' attention maps, and how well weights predict them (Degree)
    modules,  // cosines between input and output of attention, FFN and layer
};
const char* part_name(AnalysisPart part);
// Throws Error(usage) with the nearest name.
AnalysisPart part_from_name(const std::string& name);
bool needs_text(AnalysisPart part);
// All parts, or those that need no text.
std::set<AnalysisPart> all_parts(bool with_text);

struct AnalysisOptions {
    std::set<AnalysisPart> parts;
    PassOptions pass;
    double ratio = 0.3;  // fraction of heads that Degree selects
    int repeats = 5;     // number of text samples for Degree
    size_t sample = 0;   // sequences of such a sample; 0: half of all
};

using Analysis = std::map<AnalysisPart, nlohmann::ordered_json>;

// Runs `sequences` through the model once if a part needs them. Throws Error(unsupported) for modules of an
// encoder, Error(input) for a model without weights.
Analysis analyze(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
                 const AnalysisOptions& options);

}  // namespace refold
