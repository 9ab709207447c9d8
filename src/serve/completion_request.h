// The body of /v1/completions, checked field by field. A field that would change the result and is not
// supported is an error that names it; a field that cannot change it is ignored.
#pragma once

#include "serve/generation_fields.h"
#include "serve/prompt_field.h"

namespace refold {

struct CompletionRequest : ApiRequest {
    std::vector<ApiPrompt> prompts;
    bool echo = false;
    std::string suffix;  // of the text whose middle is asked for; empty: what follows is asked for
};

// Throws ApiError (400) that names the field and what is wrong.
CompletionRequest parse_completion_request(std::string_view body);

}  // namespace refold
