// Writes the README.md of an exported Hugging Face directory.
#pragma once

#include <string>

#include "report/report.h"

namespace refold {

struct ModelCardOptions {
    std::string name{};                      // heading
    std::string version{};                   // of refold
    std::string source_readme{};             // README of the original directory; empty: none
    const Comparison* comparison = nullptr;  // figures to include; null: none
};

// Front matter (base_model, license and tags, as far as known), the compression steps, the model's size,
// figures, and how to load it. Only the license is taken from `source_readme`, which is untrusted.
std::string model_card(const Model& model, const ModelCardOptions& options);

}  // namespace refold
