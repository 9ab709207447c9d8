// Tools and the choice among them as OpenAI's interfaces write them.
#pragma once

#include "serve/conversation/tools.h"
#include "serve/fields.h"

namespace refold {

struct OfferedTools {
    std::vector<Tool> tools;
    ToolChoice choice;
};

// Where a function's properties are: chat completions have them in "function", responses beside the "type".
enum class FunctionStyle { wrapped, flat };

// Reads tools, tool_choice and parallel_tool_calls. Throws ApiError (400) that names the field and what is
// wrong.
OfferedTools read_functions(Fields& fields, FunctionStyle style);

// {"name", "description", "parameters", "strict"}; the schema is at `schema_key`.
Tool read_tool(const nlohmann::ordered_json& given, const char* schema_key);

}  // namespace refold
