// The low-rank terms of a model's layers (expression Plus) as an adapter for the model without them.
#pragma once

#include <cstdint>
#include <string>

#include "model/model.h"

namespace refold {

bool has_lora(const Model& model);
// The model without its LoRA, which the adapters are made for.
Model without_lora(const Model& model);

struct AdapterExport {
    uint64_t bytes = 0;       // of the tensors
    uint64_t parameters = 0;  // B and A together
    size_t matrices = 0;
};

// llama.cpp's adapter (GGUF) for what for_stock(without_lora(model)) is. A factor's type is kept where it is
// a float type, else F32. Atomic. Throws Error(usage) when the model has no terms, Error(unsupported) naming
// the matrix that stock llama.cpp has in another form (Q, K and V as one tensor).
AdapterExport save_lora_gguf(const Model& model, const std::string& path, bool overwrite);

// A folder that PEFT loads on top of what save_hf_model(without_lora(model)) writes: adapter_config.json and
// adapter_model.safetensors. B A is added as it is (alpha = r). Atomic. Throws Error(usage) when the model
// has no terms, Error(unsupported) for matrices that the checkpoint has transposed or joined with others.
AdapterExport save_peft(const Model& model, const std::string& folder, bool overwrite);

}  // namespace refold
