// Where the modules of an adapter are in a model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/adapter/adapter.h"

namespace refold {

// A matrix of a checkpoint, and what it is here: several slots where it has their rows together.
struct AdaptedModule {
    struct Part {
        size_t layer;
        Slot slot;
        std::vector<int64_t> rows;  // of the checkpoint's matrix, by row of the slot's
    };
    int64_t in = 0, out = 0;
    std::vector<Part> parts;
};
using AdaptedModules = std::map<std::string, AdaptedModule>;  // by name

// By the names of transformers, without ".weight".
AdaptedModules hf_modules(const Model& model);
// By the names of GGUF's tensors.
AdaptedModules gguf_modules(const Model& model);

// The factors of one module.
struct AdapterFactors {
    std::string module;
    int64_t in = 0, out = 0;
    Adapter::Term term;  // b has the rows of the module
};
// Adds the factors' terms. Throws as load_adapter().
void add_factors(Adapter& adapter, const Model& model, const AdaptedModules& modules,
                 const AdapterFactors& factors);

// The readers of load_adapter().
Adapter load_peft(const std::string& folder, const Model& model);
Adapter load_lora_gguf(const std::string& path, const Model& model);

}  // namespace refold
