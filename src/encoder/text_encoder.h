// Texts and pairs of texts for an encoder: their tokens, embeddings and scores.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "encoder/embedding_rule.h"
#include "engine/single_sequence.h"
#include "text/tokenizer.h"

namespace refold {

class Normalizer;

// Encoding is for one thread at a time; everything else may be called from any thread.
class TextEncoder {
public:
    // `tokenizer` outlives it. Throws as make_engine(), Error(unsupported) for a decoder.
    TextEncoder(const Model& model, const Tokenizer& tokenizer, const EngineOptions& options);
    ~TextEncoder();
    TextEncoder(const TextEncoder&) = delete;
    TextEncoder& operator=(const TextEncoder&) = delete;

    // Whether the model comes with a configuration of its embeddings.
    bool configures_embeddings() const { return config_.has_value(); }
    // Whether the model has a head that scores pairs of texts.
    bool scores() const { return scores_; }
    const Capabilities& capabilities() const { return sequence_.capabilities(); }
    EngineMemory memory() const { return sequence_.memory(); }

    // See Encoder::embed() for what is the model's own. Throws Error(unsupported) for a configuration that is
    // not known, Error(usage) as embedding_rule().
    EmbeddingRule rule(const EmbeddingChoice& choice = {}) const;
    // What becomes of a text that is too long to be embedded.
    enum class TooLong {
        as_configured,  // it is cut if the model configures its embeddings, else kept
        cut,            // to the configured length, else to the context
        kept,
    };
    // Of a text to be embedded, with the configured prompt.
    std::vector<int32_t> tokens_of(const std::string& text, TooLong too_long = TooLong::as_configured) const;
    // Of two texts; the second one is cut where both do not fit the context. Throws Error(input) when the
    // first one leaves no room, Error(unsupported) when the vocabulary does not join pairs.
    PairEncoding pair(const std::string& first, const std::string& second) const;

    Encoding encode(const EncoderInput& input) { return sequence_.encode(input); }
    // Throws as encode() and EmbeddingRule::embedding().
    std::vector<float> embed(std::span<const int32_t> tokens, const EmbeddingRule& rule);
    // How well the second text of the pair answers the first one. Throws Error(unsupported) without scores().
    float score(const PairEncoding& pair);

private:
    const std::string family_;
    const Tokenizer& tokenizer_;
    const bool scores_;
    SingleSequence sequence_;
    std::optional<EmbeddingConfig> config_;
    std::exception_ptr config_error_;               // why it cannot be followed
    std::unique_ptr<const Normalizer> normalizer_;  // of the configuration
};

}  // namespace refold
