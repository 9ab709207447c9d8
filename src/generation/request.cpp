#include "generation/request.h"

#include <iterator>
#include <utility>

namespace refold {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>&& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void append(GenerationEvent& to, GenerationEvent&& from) {
    to.text += from.text;
    append(to.tokens, std::move(from.tokens));
    append(to.logprobs, std::move(from.logprobs));
    append(to.exits, std::move(from.exits));
    append(to.prompt, std::move(from.prompt));
    to.known_prompt += from.known_prompt;
    if (!to.started) to.started = from.started;
    if (from.finished) to.finished = from.finished;
    if (!from.stop_text.empty()) to.stop_text = std::move(from.stop_text);
    if (from.end_token) to.end_token = from.end_token;
    if (!from.error.empty()) to.error = std::move(from.error);
}

double GenerationResult::prefill_tokens_per_s() const {
    return static_cast<double>(evaluated_tokens) / prefill_seconds;
}

double GenerationResult::decode_tokens_per_s() const {
    return tokens.size() < 2 ? 0.0 : static_cast<double>(tokens.size() - 1) / decode_seconds;
}

}  // namespace refold
