// The model's turn in a conversation: the prompt that asks for it, and what its answer may look like.
#pragma once

#include <functional>
#include <vector>

#include "serve/conversation/answer_parser.h"
#include "serve/conversation/conversation.h"
#include "serve/served_model.h"

namespace refold {

// The text that the chat template makes of a conversation. Throws as make_turn() does.
std::string turn_text(const Conversation& conversation, const char* field, const ServedModel& model,
                      const std::function<void()>& check);

struct Turn {
    std::vector<int32_t> prompt;
    AnswerParts parts;
    AnswerStructure structure;
};

// Throws ApiError (400) that names `field`, the request's field with the messages, or another one: for
// messages that do not fit or that the template refuses, for tools, and variables that it does not have.
// Texts that can have no few enough tokens are refused before they are cut into tokens. `check` is called
// between the steps of long work and may throw.
Turn make_turn(const Conversation& conversation, const OutputFormat& format, const char* field,
               const ServedModel& model, const std::function<void()>& check);

}  // namespace refold
