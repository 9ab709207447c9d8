// What `fit` changes besides types: steps that make the KV cache smaller, of which the best one is measured.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compress/compress.h"

namespace refold {

// Methods that can make the KV cache smaller.
inline constexpr std::array<const char*, 4> kCacheMethods = {"narrow", "llmdrop", "cla", "uniattn"};

struct Structure {
    std::string method;             // one of kCacheMethods
    std::vector<RecipeStep> steps;  // with the repair of what it costs
};

// For each of `methods` its mildest setting that leaves at most so many bytes of KV cache per token (with a
// cache in F16; all layers together). Throws Error(usage) when none reaches that, or when the model has no
// more already.
std::vector<Structure> cache_structures(const Model& model, uint64_t kv_bytes_per_token,
                                        std::span<const std::string> methods);

struct MeasuredStructure {
    Structure structure;
    double divergence = 0;  // from the original on held-out sequences, unquantized
};

// Carries out all of them, the best one first. Results are kept in the work folder.
std::vector<MeasuredStructure> measured_structures(const Model& model,
                                                   const std::vector<Structure>& structures,
                                                   const std::string& version, Work& work,
                                                   const StepInputs& inputs);

// The recipe of these steps.
Recipe recipe_of_steps(const std::vector<RecipeStep>& steps);

}  // namespace refold
