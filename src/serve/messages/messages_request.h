// The body of /v1/messages, as Anthropic's clients send it.
#pragma once

#include <optional>

#include "serve/conversation/conversation.h"
#include "serve/generation_fields.h"

namespace refold {

struct MessagesRequest : ApiRequest, Conversation {
    bool thinking = false;  // asked for
};

// Throws ApiError (400) that names the field and what is wrong.
MessagesRequest parse_messages_request(std::string_view body);
// The body of /v1/messages/count_tokens: the same, without max_tokens.
MessagesRequest parse_count_tokens_request(std::string_view body);

// The body of an error: {"type": "error", "error": {"type", "message"}}.
std::string messages_error_body(const ApiError& error);

}  // namespace refold
