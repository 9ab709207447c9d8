// The items that a response goes on from, as messages.
#pragma once

#include <nlohmann/json.hpp>

namespace refold {

// `input`: a text of the user, or items. What the assistant said one after the other - reasoning, text, calls
// - is one message. Throws ApiError (400) that names "input".
void read_input(const nlohmann::ordered_json& input, nlohmann::ordered_json& messages);

}  // namespace refold
