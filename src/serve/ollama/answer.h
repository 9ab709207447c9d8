// Answers in the form of Ollama's interface: JSON on one line, or a stream of such lines.
#pragma once

#include "serve/answer.h"
#include "serve/conversation/turn.h"
#include "serve/ollama/requests.h"

namespace refold {

// Throw ApiError (400) as make_turn() does, and for a prompt that does not fit. `check` is called between the
// steps of long work and may throw.
std::unique_ptr<ApiAnswer> make_answer(const OllamaChatRequest& request, const ServedModel& model,
                                       const std::function<void()>& check);
std::unique_ptr<ApiAnswer> make_answer(const OllamaGenerateRequest& request, const ServedModel& model,
                                       const std::function<void()>& check);

// What a request without a prompt gets, which asks for the model to be loaded.
nlohmann::ordered_json loaded_chat(const ModelInfo& info);
nlohmann::ordered_json loaded_generate(const ModelInfo& info);

}  // namespace refold
