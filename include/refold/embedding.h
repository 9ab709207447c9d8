// Embeddings of text, by encoders such as BERT.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "refold/model.h"

namespace refold {

enum class Pooling {
    mean,   // of the last hidden states of all tokens
    first,  // the last hidden state of the first token, [CLS]
    model,  // the model's own pooler
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
    // One vector [n_embd] for a text; of length 1 when `normalize`. Throws Error(unsupported) for
    // Pooling::model when the model has no pooler.
    std::vector<float> embed(const std::string& text, Pooling pooling = Pooling::mean, bool normalize = true);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// In [-1, 1]. Throws Error(usage) for vectors of different sizes.
double cosine_similarity(std::span<const float> a, std::span<const float> b);

}  // namespace refold
