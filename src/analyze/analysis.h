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
    sharing,  // errors of shared attention against the original model (AttentionErrors)
};
const char* part_name(AnalysisPart part);
// Throws Error(usage) with the nearest name.
AnalysisPart part_from_name(const std::string& name);
bool needs_text(AnalysisPart part);
bool needs_original(AnalysisPart part);
// All parts that need no more than a text, or those that need not even that.
std::set<AnalysisPart> all_parts(bool with_text);

struct AnalysisOptions {
    std::set<AnalysisPart> parts;
    PassOptions pass;
    double ratio = 0.3;               // fraction of heads that Degree selects
    int repeats = 5;                  // number of text samples for Degree
    size_t sample = 0;                // sequences of such a sample; 0: half of all
    const Model* original = nullptr;  // for the parts that need it, and its file or folder
    std::string original_path = {};
};

using Analysis = std::map<AnalysisPart, nlohmann::ordered_json>;

// Runs `sequences` through the model once if a part needs them. Throws Error(unsupported) for modules of an
// encoder and as attention_errors() does, Error(input) for a model without weights.
Analysis analyze(const Model& model, const std::vector<std::vector<int32_t>>& sequences,
                 const AnalysisOptions& options);

}  // namespace refold
