#include "generation/continuation.h"

#include <algorithm>
#include <utility>

#include "generation/logprobs.h"

namespace refold {

Continuation::Continuation(const Tokenizer& tokenizer, GenerationRequest request, DecodeTokens decode)
    : tokenizer_(&tokenizer),
      request_(std::move(request)),
      decode_(std::move(decode)),
      text_(request_.stop) {}

void Continuation::add_prompt(std::span<const float> logits, int32_t token) {
    event_.prompt.push_back(token_logprob(logits, token, request_.logprobs));
    news_ = true;
}

bool Continuation::ends(int32_t token) const {
    return (!request_.ignore_eos && tokenizer_->is_end_of_generation(token)) ||
           std::ranges::find(request_.stop_tokens, token) != request_.stop_tokens.end();
}

bool Continuation::add(std::span<const float> logits, int32_t token, int32_t loop) {
    ++choices_;
    if (ends(token)) {
        event_.end_token = token;
        finish(FinishReason::stop);
        return false;
    }
    event_.tokens.push_back(token);
    event_.exits.push_back(loop);
    if (request_.logprobs >= 0) event_.logprobs.push_back(token_logprob(logits, token, request_.logprobs));
    news_ = true;
    add_text(token);
    return true;
}

void Continuation::add_text(int32_t token) {
    if (!decode_) {
        const bool shown = std::ranges::find(request_.shown, token) != request_.shown.end();
        event_.text += text_.push(tokenizer_->piece(token, shown));
        event_.stop_text = text_.stop();
    } else {
        tokens_.push_back(token);
        decoded_ = decode_(tokens_);
        TextStream whole(request_.stop);
        const std::string before = whole.push(decoded_);
        event_.stop_text = whole.stop();
        if (whole.stopped()) decoded_ = before;
    }
    if (!event_.stop_text.empty()) finish(FinishReason::stop);
}

void Continuation::finish(FinishReason reason, std::string error, bool format_error) {
    if (finished_) return;
    finished_ = news_ = true;
    event_.text += decode_ ? decoded_ : text_.finish();
    event_.finished = reason;
    event_.error = std::move(error);
    event_.format_error = format_error;
}

std::optional<GenerationEvent> Continuation::take() {
    if (!std::exchange(news_, false)) return std::nullopt;
    return std::exchange(event_, {});
}

}  // namespace refold
