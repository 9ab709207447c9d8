// Which type every stored matrix gets.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

struct TypeChoice {
    std::map<std::string, DType> types;  // of the tensors that are quantized; others keep theirs
    std::vector<std::string>
        fallbacks;  // "blk.0.attn_q.weight: Q4_0 for Q3_K": rows that are no whole blocks
};

struct WantedTypes {
    std::string type;       // of all matrices, or "keep"
    std::string embedding;  // of embedding and output, or "auto": default_embedding_type()
    // Exceptions, separated by spaces, of which the last one that matches decides: "ffn.down=q4_k",
    // "attn.v@0-3,29=q5_0" (of these layers), "token_embd=q6_k", "token_embd=q8_0:4096,q5_k:16384,q3_k" (of
    // the 4096 rows that the text uses most, of the next 16384, of all others).
    std::string exceptions;
};

// One of WantedTypes::exceptions.
struct TypeException {
    Slot slot;
    std::vector<size_t> layers;
    std::vector<DType> types;   // several only of embedding and output
    std::vector<int64_t> rows;  // that have each of these, but the last
};
// Throws as choose_types().
std::vector<TypeException> parse_exceptions(const Model& model, const std::string& text);
// The one that decides; null for none.
const TypeException* exception_for(const std::vector<TypeException>& exceptions, Slot slot, size_t layer);

// The types of the slots and layers that read a tensor first decide for all. Tables with several types are
// cut already (row_types.h). Throws Error(usage) for unknown types, slots that the model does not have,
// layers out of range, and several types of anything but embedding and output.
TypeChoice choose_types(const Model& model, const WantedTypes& wanted);

}  // namespace refold
