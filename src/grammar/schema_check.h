// Which JSON Schemas generated documents are guaranteed to follow.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace refold {

// Throws Error(usage) that names the place of a keyword that XGrammar would not enforce: one it does not
// know, or one beside another that hides it ("properties" beside "anyOf"). Annotations (title, default, ...)
// are allowed everywhere.
void check_schema(const nlohmann::json& schema);

}  // namespace refold
