// A continuation of one prompt while it grows: its tokens, their text and log probabilities, and its end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "generation/request.h"
#include "generation/text_stream.h"
#include "text/tokenizer.h"

namespace refold {

// The text of all generated tokens. For continuations whose text is more than the bytes of their tokens one
// after the other.
using DecodeTokens = std::function<std::string(std::span<const int32_t> tokens)>;

class Continuation {
public:
    // `tokenizer` outlives it. With `decode`, stop texts are looked for in what it returns, and the text
    // comes with the last event.
    Continuation(const Tokenizer& tokenizer, GenerationRequest request, DecodeTokens decode = {});

    const GenerationRequest& request() const { return request_; }
    bool finished() const { return finished_; }
    // Tokens chosen so far, one that ended the generation included.
    int64_t choices() const { return choices_; }

    // `token` of the prompt, from the logits after the token before it.
    void add_prompt(std::span<const float> logits, int32_t token);
    // A token chosen after `loop`. Finishes at end-of-generation and stop tokens and at stop texts. Returns
    // whether the token is part of the continuation.
    bool add(std::span<const float> logits, int32_t token, int32_t loop);
    // Does nothing when it is finished already.
    void finish(FinishReason reason, std::string error = {}, bool format_error = false);
    // All that was added since the last call; none if nothing was.
    std::optional<GenerationEvent> take();

private:
    bool ends(int32_t token) const;
    void add_text(int32_t token);

    const Tokenizer* tokenizer_;
    GenerationRequest request_;
    DecodeTokens decode_;
    TextStream text_;
    std::vector<int32_t> tokens_;  // for decode_
    std::string decoded_;
    GenerationEvent event_;
    int64_t choices_ = 0;
    bool news_ = false, finished_ = false;
};

}  // namespace refold
