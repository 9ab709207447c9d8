// Which JSON Schemas generated documents are guaranteed to follow.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace refold {

// Throws Error(usage) for a text that is not JSON, or has more than 8192 values and keys or 64 levels.
nlohmann::ordered_json parse_schema(const std::string& text);

// A schema all of which XGrammar enforces, and whose documents follow the given one. Where that has a keyword
// of one type and no type ("minLength"), documents are of this type; draft 7's lists of items become
// prefixItems. Throws Error(usage) that names the place of a keyword that would not be enforced: one that
// XGrammar does not know, or one beside another that hides it ("properties" beside "anyOf"). Annotations
// (title, default, ...) are allowed everywhere. Properties keep their order, which is that of the documents.
nlohmann::ordered_json enforceable_schema(const nlohmann::ordered_json& schema);

}  // namespace refold
