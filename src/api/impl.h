// The data of the classes of include/refold.
#pragma once

#include <memory>
#include <string>

#include "core/progress_observer.h"
#include "engine/engine.h"
#include "generation/generator.h"
#include "model/accounting.h"
#include "model/model.h"
#include "refold/control.h"
#include "refold/model.h"
#include "refold/tokenizer.h"

namespace refold {

ModelInfo info_of(const Model& model);
ModelCost cost_of(const Cost& cost);

// Passes the progress of this thread on to a control, which outlives it.
class Controlled {
public:
    explicit Controlled(const Control& control);
    // Throws Error(interrupted) when cancelled.
    void check() const;

private:
    const Control& control_;
    const ProgressObserver observer_;
};

struct ModelFile::Impl {
    std::string path;
    Model model;
};

struct LanguageModel::Impl {
    Impl(const Model& model, const std::string& path, const LanguageModelOptions& options);

    Generator generator() {
        return Generator(*engine, tokenizer,
                         {.decoding = {.draft_tokens = draft_tokens, .draft_model = draft.get()}});
    }

    const ModelInfo info;
    const Tokenizer tokenizer;
    std::unique_ptr<Engine> engine, draft;  // no draft model: null
    const int64_t draft_tokens;
};

}  // namespace refold
