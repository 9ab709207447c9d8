// Variables that clients give a chat template.
#pragma once

#include "serve/fields.h"

namespace refold {

// chat_template_kwargs, and reasoning_effort, which is a variable of that name; "none" also sets
// enable_thinking to false. Throws ApiError (400) for variables that the server sets.
nlohmann::ordered_json template_variables(Fields& fields);

// The variables for a level of effort.
void set_effort(nlohmann::ordered_json& variables, const std::string& effort, const char* field);

}  // namespace refold
