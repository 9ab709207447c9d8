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
    // "attn.v@0-3,29=q5_0" (of these layers), "token_embd=q6_k".
    std::string exceptions;
};

// The types of the slots and layers that read a tensor first decide for all. Throws Error(usage) for unknown
// types, slots that the model does not have, and layers out of range.
TypeChoice choose_types(const Model& model, const WantedTypes& wanted);

}  // namespace refold
