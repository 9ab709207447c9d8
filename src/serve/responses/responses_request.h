// The body of /v1/responses, OpenAI's interface of items.
#pragma once

#include "serve/conversation/conversation.h"
#include "serve/generation_fields.h"

namespace refold {

struct ResponsesRequest : ApiRequest, Conversation {
    nlohmann::ordered_json echoed;  // fields that the response repeats
};

// Throws ApiError (400) that names the field and what is wrong: also for what needs stored responses, of
// which this server has none.
ResponsesRequest parse_responses_request(std::string_view body);

}  // namespace refold
