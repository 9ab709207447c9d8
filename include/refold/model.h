// Models: as files (what they store, conversion) and ready to run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "refold/control.h"

namespace refold {

class Tokenizer;

// Wherever a function takes a model by name, the name is one of
//   - the path of a GGUF file,
//   - the path of a Hugging Face directory (config.json, *.safetensors, tokenizer files),
//   - a name that `refold pull` has fetched: from its catalogue ("smollm2-135m-instruct") or of the Hugging
//     Face hub ("org/name", "org/name@revision", "org/name:Q4_K_M").

struct ModelCost {
    uint64_t parameters = 0;          // numbers stored
    uint64_t bytes = 0;               // of the tensors, each stored tensor once
    uint64_t kv_bytes_per_token = 0;  // of a float16 KV cache, all layers together
    uint64_t flops_per_token = 0;     // 2 per multiply-add of all linear maps, output layer included
};

struct ModelInfo {
    std::string architecture;   // "llama", "bert", ...
    bool causal = true;         // a decoder; false: an encoder
    int64_t layers = 0;         // of the forward pass
    int64_t stored_layers = 0;  // fewer in a looped model
    int64_t loops = 1;          // how often the block of stored layers runs
    int64_t n_embd = 0, n_head = 0, n_head_kv = 0, n_vocab = 0;
    int64_t context_length = 0;  // tokens
    int64_t tensors = 0;
    bool shares = false;        // some stored tensor serves several layers, or weights are factors
    ModelCost stored;           // the model as it is
    ModelCost without_sharing;  // the same function with every layer's weights written out
};

// A model as it is stored. Weights are mapped, not read: loading and inspecting are quick.
class ModelFile {
public:
    // Throws Error(usage) when a name is not known or not fetched yet, Error(io) when a path cannot be read,
    // Error(input) when the model is malformed, Error(unsupported) when its architecture is not known.
    explicit ModelFile(const std::string& model);
    ~ModelFile();
    ModelFile(ModelFile&&) noexcept;
    ModelFile& operator=(ModelFile&&) noexcept;

    // The file or directory.
    const std::string& path() const;
    ModelInfo info() const;

    // All writers are atomic: the output is complete or absent. They print nothing. They throw Error(usage)
    // when it exists and `overwrite` is false, Error(io) when it cannot be written, Error(interrupted) when
    // cancelled.

    // refold's GGUF: every stored tensor once, sharing as data. Without sharing it is plain GGUF.
    void save(const std::string& path, bool overwrite = false, const Control& control = {}) const;
    // GGUF for stock llama.cpp, sharing written out. Throws Error(unsupported) naming what llama.cpp cannot
    // express.
    void export_gguf(const std::string& path, bool overwrite = false, const Control& control = {}) const;
    // A directory that transformers loads, sharing written out; quantized weights become float32. Throws
    // Error(unsupported) naming what the architecture's configuration cannot express.
    void export_hf(const std::string& directory, bool overwrite = false, const Control& control = {}) const;

    struct Impl;  // internal
    const Impl& impl() const { return *impl_; }

private:
    std::unique_ptr<Impl> impl_;
};

// ModelFile(model).info()
ModelInfo inspect(const std::string& model);

struct LanguageModelOptions {
    int threads = 0;        // 0: all cores
    int64_t context = 0;    // most tokens of one sequence; 0: the model's own, at most 4096
    bool f32 = false;       // float32 weights, activations and KV cache; else float16 and the stored types
    int64_t sequences = 1;  // most that run at a time; each takes a context of KV cache
    // A smaller model with the same vocabulary that drafts up to `draft_tokens` tokens at a time for
    // generate(). The model verifies them, so that the output is its own up to rounding. Empty: none.
    std::string draft_model = {};
    int64_t draft_tokens = 8;
};

// A decoder that is ready to run: weights in memory once, KV cache, tokenizer. Its functions are in
// refold/generation.h and refold/scoring.h. One thread at a time may use it.
class LanguageModel {
public:
    // Throws as ModelFile does; Error(usage) for options out of range; Error(unsupported) for an encoder, or
    // for a model without a tokenizer that can be run.
    explicit LanguageModel(const std::string& model, const LanguageModelOptions& options = {});
    explicit LanguageModel(const ModelFile& model, const LanguageModelOptions& options = {});
    ~LanguageModel();
    LanguageModel(LanguageModel&&) noexcept;
    LanguageModel& operator=(LanguageModel&&) noexcept;

    const ModelInfo& info() const;
    const Tokenizer& tokenizer() const;
    int64_t context() const;  // most tokens of one sequence

    // Logits [n_vocab] after `tokens`. Throws Error(usage) without tokens, Error(input) for ids outside the
    // vocabulary and for more tokens than the context.
    std::vector<float> logits(std::span<const int32_t> tokens);
    // Logits after every token: [tokens, n_vocab]. Throws as logits(); Error(interrupted) when cancelled.
    std::vector<float> all_logits(std::span<const int32_t> tokens, std::stop_token stop = {});

    struct Impl;  // internal
    Impl& impl() { return *impl_; }

private:
    std::unique_ptr<Impl> impl_;
};

}  // namespace refold
