// A JSON Schema taken apart into alternatives of keywords that all hold together.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "grammar/schema_keywords.h"

namespace refold {

// Draft 7 and 2020-12. References lead to places of one document. A reader refuses what takes too many steps:
// conditions of conditions, or schemas that are the same reference again and again.
class SchemaReader {
public:
    explicit SchemaReader(const Schema& root);

    // A document follows `schema` if it follows at least one of these objects: keywords of objects, arrays,
    // strings and numbers, "type", "enum" (alone, if what stands beside it can be told of its values), and
    // any that are not known here, among them a "not" that could not be resolved. They have no $ref, const,
    // allOf, anyOf, oneOf, if, dependentRequired, dependentSchemas and unevaluated...; schemas within them
    // are as they stood, or an "allOf" of them. Of "oneOf", "not", "if" and what depends, fewer documents may
    // be left than the schema allows. None: no document follows it, or none that is left.
    std::vector<Schema> alternatives(const Schema& schema, const std::string& place, int depth = 0);

    // Whether, of the alternatives of "oneOf", each excludes the others as they stand.
    bool disjoint(const Schema& choices, const std::string& place);

    // What "#...", a reference, leads to.
    const Schema& target(const Schema& reference, const std::string& place) const;

    // Whether a value follows keywords or a schema; none: it cannot be told here ("pattern").
    std::optional<bool> follows(const Schema& value, const Schema& schema, const std::string& place,
                                int depth = 0);

private:
    struct Group;
    struct Combination;

    void step(const std::string& place, int depth, size_t steps = 1);
    std::vector<Group> groups(const Schema& schema, const std::string& place, int depth);
    std::optional<std::vector<Schema>> contrary(const Schema& schema, const std::string& place, int depth);
    std::optional<std::vector<Schema>> contrary(const std::string& key, const Schema& schema,
                                                const std::string& place, int depth);
    std::vector<Schema> apart(const std::vector<Combination>& all, const std::string& place, int depth);
    void close(Schema& keywords, bool several);
    std::optional<Schema> settled(Schema keywords, const std::string& place, int depth);
    std::optional<bool> keywords_hold(const Schema& value, const Schema& keywords, const std::string& place,
                                      int depth);
    bool excludes(const Schema& a, const Schema& b, const std::string& place, int depth, bool whole);

    const Schema& root_;
    bool unevaluated_;  // it has unevaluatedProperties or unevaluatedItems
    size_t steps_ = 0;
    size_t narrowed_ = 0;  // how often alternatives could have become fewer documents than the schema allows
};

}  // namespace refold
