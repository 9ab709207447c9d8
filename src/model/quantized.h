// A model with its weights in another element type.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

struct QuantizeOptions {
    DType type = DType::Q8_0;
    // For the embedding and the output, which lose most. Not given: as llama.cpp, Q6_K for types below 6 bits
    // (Q8_0 where its blocks do not fit), else `type`.
    std::optional<DType> embedding_type;
    int threads = 0;  // 0: all cores
};

struct Quantized {
    Model model;                         // tensors are computed when read
    std::vector<std::string> fallbacks;  // tensors whose shape does not fit the type, with what they got
};

// Quantizes every stored matrix once, so sharing stays; norms, biases and tables other than token_embd are
// unchanged. A tensor whose rows (or shared columns, see validate()) are not whole blocks gets the next
// larger type that fits; the rank of a LowRank is padded to whole blocks where that is smaller. Rounds to
// nearest, without an importance matrix.
Quantized quantize_model(const Model& model, const QuantizeOptions& options);

// Type by its name in any case: "q4_k", "Q8_0". Throws Error(usage) listing the types.
DType quantization_type(const std::string& name);

}  // namespace refold
