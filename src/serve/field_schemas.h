// JSON Schemas of the fields that are more than a text, a number or a truth value.
#pragma once

#include <span>

namespace refold {

struct FieldSchema {
    const char* name;
    const char* schema;          // JSON
    const char* path = nullptr;  // of the only endpoint that it is for; null: all
};

std::span<const FieldSchema> field_schemas();
// Null when there is none. That of the endpoint comes first.
const FieldSchema* find_field_schema(const char* path, const char* name);

}  // namespace refold
