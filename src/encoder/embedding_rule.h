// How a text becomes a vector: the model's configuration with what a caller changes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/single_sequence.h"
#include "model/embedding_config.h"

namespace refold {

// What a caller changes.
struct EmbeddingChoice {
    std::optional<RowPooling> pooling = {};
    bool of_model = false;  // by the model's own pooler instead
    std::optional<bool> normalize = {};

    bool pools() const { return pooling || of_model; }
};

struct EmbeddingRule {
    bool of_model = false;            // by the model's own pooler
    std::vector<RowPooling> pooling;  // else
    std::vector<EmbeddingStep> steps;
    size_t width = 0, size = 0;  // of a row and of an embedding

    // Throws Error(unsupported) when the model's pooler is asked for and `encoding` has none; `family` names
    // the model then.
    std::vector<float> embedding(const Encoding& encoding, const std::string& family) const;
};

// For rows of `width`. Throws Error(usage) for a pooling whose vectors do not fit the dense modules.
EmbeddingRule embedding_rule(const std::optional<EmbeddingConfig>& config, size_t width,
                             const EmbeddingChoice& choice);

}  // namespace refold
