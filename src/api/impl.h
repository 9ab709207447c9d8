// The data of the classes of include/refold.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "generation/generator.h"
#include "model/accounting.h"
#include "model/model.h"
#include "refold/model.h"
#include "refold/tokenizer.h"

namespace refold {

ModelInfo info_of(const Model& model);
ModelCost cost_of(const Cost& cost);

struct ModelFile::Impl {
    std::string path;
    Model model;
};

struct LanguageModel::Impl {
    Impl(const Model& model, const std::string& path, const LanguageModelOptions& options);

    Generator generator() { return Generator(*engine, tokenizer); }

    const ModelInfo info;
    const Tokenizer tokenizer;
    std::unique_ptr<Engine> engine;
};

}  // namespace refold
