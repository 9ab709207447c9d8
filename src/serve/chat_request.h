// The body of /v1/chat/completions, checked as that of completions is.
#pragma once

#include "serve/conversation/conversation.h"
#include "serve/generation_fields.h"

namespace refold {

struct ChatRequest : ApiRequest, Conversation {};

// Throws ApiError (400) that names the field and what is wrong.
ChatRequest parse_chat_request(std::string_view body);

}  // namespace refold
