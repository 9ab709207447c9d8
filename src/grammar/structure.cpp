#include "grammar/structure.h"

#include "core/error.h"
#include "grammar/gbnf.h"
#include "grammar/grammar.h"
#include "grammar/schema.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Json structure_of(const OutputFormat& format) {
    const auto schema = [](Json of) {
        return Json{{"type", "json_schema"},
                    {"json_schema", std::move(of)},
                    {"max_whitespace_cnt", kMostFormatWhitespace}};
    };
    switch (format.kind) {
        case OutputFormat::Kind::json: return schema({{"type", "object"}, {"additionalProperties", true}});
        case OutputFormat::Kind::json_schema: return schema(checked_schema(format.text));
        case OutputFormat::Kind::grammar: return {{"type", "grammar"}, {"grammar", read_gbnf(format.text)}};
        case OutputFormat::Kind::regex:
            check_nesting(format.text, "regular expression");
            return {{"type", "regex"}, {"pattern", format.text}};
        default: break;
    }
    if (format.choices.empty()) fail(ErrorCode::usage, "choices", "there are none");
    Json choices = Json::array();
    for (const std::string& choice : format.choices)
        choices.push_back({{"type", "const_string"}, {"value", choice}});
    return {{"type", "or"}, {"elements", std::move(choices)}};
}

}  // namespace refold
