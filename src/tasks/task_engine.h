// What answers the requests of a model's tasks.
#pragma once

#include <memory>

#include "engine/batch.h"

namespace refold {

// A decoder runs many sequences at a time, or, where there is no batch engine for it (the torch engine,
// rotations that are stretched), one after the other; an encoder runs one.
class TaskEngine {
public:
    // options.context: tokens of the longest sequence. Throws as the engines do, Error(usage) for a KV cache
    // that evicts rows.
    TaskEngine(const Model& model, const EngineOptions& options);

    bool encodes() const { return encoder_ != nullptr; }
    BatchEngine& decoder() { return *decoder_; }
    Engine& encoder() { return *encoder_; }
    int threads() const { return encodes() ? encoder_->threads() : decoder_->threads(); }

private:
    std::unique_ptr<BatchEngine> decoder_;
    std::unique_ptr<Engine> encoder_;
};

}  // namespace refold
