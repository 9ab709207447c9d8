// What `refold analyze` tells, part by part, as JSON: long snake_case keys, null where something does not
// exist.
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
    weights,  // cosines of heads and of whole modules, by weights
    spectra,  // singular values of weight matrices
    softmax,  // cosines of layers' attention maps
    heads,    // cosines of heads' attention maps, and how far weights foretell them (Degree)
    modules,  // cosines of input and output of attention, FFN and layer
};
const char* part_name(AnalysisPart part);
// Throws Error(usage) with the nearest name.
AnalysisPart part_from_name(const std::string& name);
bool needs_text(AnalysisPart part);
// All of them, or those that need no text.
std::set<AnalysisPart> all_parts(bool with_text);

struct AnalysisOptions {
    std::set<AnalysisPart> parts;
    PassOptions pass;
    double ratio = 0.3;  // of heads that Degree selects
    int repeats = 5;     // samples of the text for Degree
};

using Analysis = std::map<AnalysisPart, nlohmann::ordered_json>;

// `sequences` are not read when no part needs them; otherwise the text goes through the model once. Throws
// Error(unsupported) for an encoder's activations, Error(input) for a model without weights.
Analysis analyse(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
                 const AnalysisOptions& options);

}  // namespace refold
