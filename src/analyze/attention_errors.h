// What a model loses where the attention of a layer is another layer's or is left out, layer by layer against
// the original model, what W_c makes up for, and how far the attention follows the depth of its layer
// (UniAttn, sections 3.2 to 3.4, appendices C, F and I).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analyze/matrix.h"
#include "model/model.h"

namespace refold {

// Let e be the residual stream after the attention in the original model minus that in this model, so e has
// the errors of the layers below. For `without` the layer's W_c is left out; layers below keep theirs.
struct ErrorSize {
    // Squared Frobenius norm of the mean of e over sequences, which has a row per position: what the
    // pseudo-inverse of means minimizes (Theorem 3.1, appendix F).
    double of_means = 0;
    // Mean over tokens of |e|^2.
    double of_tokens = 0;
};

// Undefined without a source. The paper argues with expansions; these two numbers are what they amount to.
struct DepthFactor {
    // Mean over tokens of |d| / |x|, where x is the residual stream before the source and d, the depth
    // factor, that before the layer minus x.
    double size = kUndefined;
    // |f(x + d) - f(x)| / |f(x + d)| over all tokens, where f is the layer's attention without W_c and keeps
    // what it takes from the source: how much of the attention's output the depth factor makes. 0: the layer
    // might as well stand beside its source.
    double effect = kUndefined;
};

struct AttentionError {
    size_t layer = 0;
    std::optional<size_t> source;  // the layer whose probabilities, or keys and values, it uses
    ErrorSize without;
    std::optional<ErrorSize> with;  // has no value where the layer has no W_c
    DepthFactor depth;
};

struct AttentionErrors {
    std::vector<AttentionError> layers;  // those whose attention is not their own, or that have W_c
    int64_t positions = 0;               // of the longest sequence

    // Means over the layers; without W_c, `with` is `without`.
    ErrorSize without() const, with() const;
    DepthFactor depth() const;  // over layers with a source
};

// Runs the sequences through both models. The processes of group() split them, and all get the same numbers.
// Throws Error(unsupported) when the models cannot be compared layer by layer, and when no layer's attention
// is another one's or left out.
AttentionErrors attention_errors(const Model& original, const Model& model,
                                 const std::vector<std::vector<int32_t>>& sequences, int threads);

// Expected squared error of Theorem I.1, for X and e of as many rows and columns of standard Gaussians.
double expected_error_on_random_data(int64_t rows, int64_t columns);

}  // namespace refold
