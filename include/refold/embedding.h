// Embeddings of text, by encoders such as BERT.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "refold/model.h"

namespace refold {

enum class Pooling {
    mean,   // of the last hidden states of all tokens
    first,  // the last hidden state of the first token, [CLS]
    model,  // the model's own pooler
    max,    // of the last hidden states, element by element
    last,   // the last hidden state of the last token
};

struct EncoderOptions {
    int threads = 0;      // 0: all cores
    int64_t context = 0;  // most tokens of a text; 0: the model's own
    bool f32 = false;     // float32 weights and activations
};

struct EncodedText {
    std::vector<int32_t> tokens;
    std::vector<float> last_hidden_state;  // [tokens, n_embd]
    std::vector<float> pooled;             // [n_embd]; empty when the model has no pooler
};

// An encoder that is ready to run. One thread at a time may use it.
class Encoder {
public:
    // Throws as ModelFile does; Error(unsupported) for a decoder.
    explicit Encoder(const std::string& model, const EncoderOptions& options = {});
    ~Encoder();
    Encoder(Encoder&&) noexcept;
    Encoder& operator=(Encoder&&) noexcept;

    const ModelInfo& info() const;
    const Tokenizer& tokenizer() const;

    // The text with the model's special tokens around it. Throws Error(input) for more tokens than the
    // context.
    EncodedText encode(const std::string& text);
    // The same for token ids, taken as they are.
    EncodedText encode(std::span<const int32_t> tokens);
    // One vector [embedding_size()] for a text, as the model's sentence-transformers folder configures it:
    // pooling, dense modules, normalization; the prompt stands before the text, and a text that is too long
    // is cut. A model without that configuration has mean pooling and vectors of length 1, and a text that is
    // too long is Error(input). `pooling` replaces the configured one; `normalize` says whether vectors have
    // length 1. Throws Error(unsupported) for a configuration that is not known and for Pooling::model when
    // the model has no pooler, Error(usage) for a pooling whose vectors do not fit the dense modules.
    std::vector<float> embed(const std::string& text, std::optional<Pooling> pooling = {},
                             std::optional<bool> normalize = {});
    // The vectors of several texts one after another, [texts, embedding_size()], each that of its text alone.
    // `done` gets the number of texts that are finished, in between.
    std::vector<float> embed(std::span<const std::string> texts, std::optional<Pooling> pooling = {},
                             std::optional<bool> normalize = {},
                             const std::function<void(size_t)>& done = {});
    // Elements of an embedding: n_embd, unless the configuration has dense modules or several poolings.
    size_t embedding_size(std::optional<Pooling> pooling = {}) const;
    // Whether the model comes with a configuration of its embeddings.
    bool configures_embeddings() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// In [-1, 1]. Throws Error(usage) for vectors of different sizes.
double cosine_similarity(std::span<const float> a, std::span<const float> b);

}  // namespace refold
