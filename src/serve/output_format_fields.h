// The fields that ask for a format of the output.
#pragma once

#include "refold/output_format.h"
#include "serve/fields.h"

namespace refold {

// The format, by OpenAI's field (response_format), llama.cpp's (grammar, json_schema) or vLLM's (guided_*,
// structured_outputs). Throws ApiError (400) for a field that is not valid, or more than one.
OutputFormat output_format(Fields& fields);

// {"type": "text" | "json_object" | "json_schema"}, with {"name", "description", "schema", "strict"} beside
// the type (Responses) or in a "json_schema" (Chat Completions). llama.cpp has a "schema" beside json_object,
// too. Throws ApiError (400) that names `field`.
OutputFormat typed_format(const nlohmann::ordered_json& given, const char* field);

// A schema as JSON or as a text of JSON. Throws ApiError (400) that names `field`.
OutputFormat schema_format(const nlohmann::ordered_json& schema, const char* field);

}  // namespace refold
