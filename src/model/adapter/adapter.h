// Adapters: LoRA in files of their own, for a model that was stored without it.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"

namespace refold {

struct Adapter {
    // W becomes W + scale B A in one layer of the topology (kWholeModel: the output layer).
    struct Term {
        size_t layer = 0;
        Slot slot = Slot::attn_q;
        int64_t rank = 0;
        float scale = 1;
        DType type = DType::F32;  // as stored, of a float type
        std::vector<float> a, b;  // [rank][in], [out][rank]
    };
    std::string label;        // where it came from, for messages
    std::vector<Term> terms;  // at most one for a layer and slot
};

// Reads PEFT's folder (adapter_config.json, adapter_model.safetensors) or llama.cpp's GGUF file for `model`,
// of which it needs no weights. The layers of a looped model's block mean those of all loops. Throws
// Error(io) and Error(input) for files that cannot be read or are broken, Error(input) naming module and
// shapes for an adapter of another model, Error(unsupported) for other methods than LoRA (DoRA, ...) and for
// modules that refold adds no LoRA to (embeddings, experts, norms).
Adapter load_adapter(const std::string& path, const Model& model);

}  // namespace refold
