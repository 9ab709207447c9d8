// How a text's embedding follows from an encoder's last hidden states: what the folder of a
// sentence-transformers model configures, kept in the metadata of a model.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/gguf.h"

namespace refold {

// Why the folder's configuration cannot be followed.
inline constexpr const char* kEmbeddingReasonKey = "refold.embedding.unsupported";

// One vector [n_embd] of the rows [tokens, n_embd].
enum class RowPooling {
    cls,            // the first row
    max,            // by element
    mean,           //
    mean_sqrt,      // the sum over the square root of the number of rows
    weighted_mean,  // row t counts t + 1 times
    last,           // the last row
};

enum class DenseActivation { identity, tanh, relu, gelu, sigmoid };

// A dense module: activation(weight x + bias).
struct DenseModule {
    DenseActivation activation = DenseActivation::tanh;
    size_t in = 0, out = 0;
    std::vector<float> weight;  // [out, in]
    std::vector<float> bias;    // [out], or empty

    std::vector<double> operator()(std::span<const double> x) const;
};

// What happens to the pooled vector.
struct EmbeddingStep {
    std::optional<DenseModule> dense;  // else: scaled to length 1
};

struct EmbeddingConfig {
    std::vector<RowPooling> pooling;  // their vectors stand one after another
    std::vector<EmbeddingStep> steps = {};
    int64_t max_tokens = 0;  // longer texts are cut, special tokens included; 0: not configured
    bool lower_case = false;
    std::string prompt = {};  // stands before every text
};

std::vector<double> pooled(RowPooling how, std::span<const float> rows, size_t width);
void scale_to_length_1(std::vector<double>& x);

// The names that sentence-transformers use: "cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean",
// "lasttoken".
const char* pooling_name(RowPooling pooling);
std::optional<RowPooling> pooling_from_name(const std::string& name);
const char* dense_activation_name(DenseActivation activation);
std::optional<DenseActivation> dense_activation_from_name(const std::string& name);

// Keys "refold.embedding" and "refold.embedding.dense.<step>.weight", ".bias"; for llama.cpp
// "<architecture>.pooling_type", where it has the pooling.
void set_embedding_config(const EmbeddingConfig& config, const std::string& architecture,
                          GgufMetadata& metadata);
// Nothing for a model without a configuration. Of a file that another program wrote only "pooling_type"
// counts. Throws Error(input) for malformed keys, Error(unsupported) with the reason in kEmbeddingReasonKey.
std::optional<EmbeddingConfig> embedding_config(const GgufMetadata& metadata);

}  // namespace refold
