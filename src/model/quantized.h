// A model with its weights in another element type.
#pragma once

#include <map>
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

// A tensor whose rows, or the parts of rows that slots read, are no whole blocks of the type it was meant to
// get.
struct TypeFallback {
    std::string tensor;
    DType wanted, type;
    int64_t elements = 0;  // of a row, or such a part

    std::string text() const;  // "blk.0.ffn_down.weight: Q8_0"
};

struct Quantized {
    Model model;  // tensors are computed when read
    std::vector<TypeFallback> fallbacks;
};

// Quantizes every stored matrix once, so sharing stays; norms, biases and tables other than token_embd are
// unchanged. A tensor whose rows (or shared columns, see validate()) are not whole blocks gets the next
// larger type that fits; the rank of a LowRank is padded to whole blocks where that is smaller. Rounds to
// nearest, without an importance matrix.
Quantized quantize_model(const Model& model, const QuantizeOptions& options);

// How the slots use a stored tensor.
struct QuantizedUse {
    bool matrix = false, embedding = false;  // of some slot; neither: it keeps its type
    int64_t unit = 0;                        // rows are read in runs of multiples of this many elements
    int64_t whole_rows = 0;                  // all rows where every use reads all of them, else 1
};
std::map<std::string, QuantizedUse> quantized_uses(const Model& model);

// Whether a tensor can be stored in a type: rows of whole blocks, or rows that can be folded, which only
// refold's own format has.
enum class RowLayout { whole_blocks, or_folded };
bool fits(DType type, const QuantizedUse& use, RowLayout layout);

// `wanted`, or the next larger type whose blocks divide `unit`. For IQ types that is IQ4_NL, as in llama.cpp.
DType fitting_type(DType wanted, int64_t unit);
// The type of embedding and output where only `type` is given: see QuantizeOptions.
DType default_embedding_type(DType type);
// The model with ranks of LowRank factors padded to whole blocks of `type` where that is smaller.
Model with_whole_ranks(const Model& model, DType type);

struct NearestOptions {
    int threads = 0;                // 0: all cores
    std::vector<float> importance;  // as quantize() in io/dtype.h
};
// A stored tensor of the model in another type, rounded to nearest when it is read.
Tensor nearest_tensor(const Model& model, const std::string& tensor, DType type,
                      const NearestOptions& options = {});

// Type by its name in any case: "q4_k", "Q8_0". Throws Error(usage) listing the types.
DType quantization_type(const std::string& name);

}  // namespace refold
