#include "serve/conversation/answer_structure.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/json_number.h"
#include "grammar/structure.h"
#include "serve/fields.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using Shape = ToolForm::Shape;

std::string text(std::string_view of) { return std::string(of); }

Json any_text() { return {{"type", "any_text"}}; }
Json words(std::string_view of) { return {{"type", "const_string"}, {"value", of}}; }
Json pattern(const char* regex) { return {{"type", "regex"}, {"pattern", regex}}; }
Json optional(Json of) { return {{"type", "optional"}, {"content", std::move(of)}}; }
Json sequence(Json parts) { return {{"type", "sequence"}, {"elements", std::move(parts)}}; }
Json tag(const std::string& begin, Json content, const std::string& end) {
    return {{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", end}};
}
Json one_of(Json parts) {
    if (parts.size() == 1) return parts[0];
    return {{"type", "or"}, {"elements", std::move(parts)}};
}
Json list_of(Json tags, const char* separator, bool several) {
    return {{"type", "tags_with_separator"},
            {"tags", std::move(tags)},
            {"separator", separator},
            {"at_least_one", true},
            {"stop_after_first", !several}};
}

OutputFormat schema(const Json& of) {
    return {.kind = OutputFormat::Kind::json_schema, .text = exact_dump(of)};
}

// The arguments of a tool that describes none are {}: a schema without properties would allow any.
Json schema_of(const Tool& tool) {
    constexpr std::array kSayNothing = {"type", "properties", "required", "title", "description", "$schema"};
    Json out = tool.parameters.is_null() ? Json::object() : tool.parameters;
    bool none = out.value("properties", Json()).empty();
    for (const auto& [key, value] : out.items())
        none = none && std::ranges::find(kSayNothing, key) != kSayNothing.end();
    if (none) out = {{"type", "object"}, {"properties", Json::object()}, {"additionalProperties", false}};
    return out;
}

Json arguments_of(const Tool& tool) {
    try {
        return structure_of(schema(schema_of(tool)));
    } catch (const Error& error) {
        if (tool.strict)
            throw ApiError(400, fmt::format("'tools': '{}' is strict, but {}", tool.name, error.what()),
                           "tools", "invalid_function_parameters");
    }
    return structure_of({.kind = OutputFormat::Kind::json});
}

class Calls {
public:
    Calls(const ToolForm& form, const ToolChoice& choice) : form_(form), several_(choice.several) {}

    void add(const Tool& tool) {
        const std::string head = fmt::format(R"({{"name": "{}", "{}": )", tool.name, form_.arguments_key);
        const std::string begin = text(form_.begin), mark = text(form_.arguments_mark);
        const Json arguments = arguments_of(tool);
        switch (form_.shape) {
            case Shape::object:
                tags_.push_back(tag(begin + text(form_.before) + head, arguments,
                                    "}" + text(form_.after) + text(form_.end)));
                break;
            case Shape::named:
                tags_.push_back(form_.id_mark.empty()
                                    ? sequence({words(begin + tool.name + mark), arguments})
                                    : sequence({words(begin + tool.name + text(form_.id_mark)),
                                                pattern("[a-zA-Z0-9]{9}"), words(mark), arguments}));
                break;
            default: tags_.push_back(tag(head, arguments, "}"));
        }
    }

    // One call or more, and nothing else.
    Json required() const {
        switch (form_.shape) {
            case Shape::object: return list_of(tags_, "\n", several_);
            case Shape::list:
                return sequence({words(text(form_.begin) + text(form_.before) + "["),
                                 list_of(tags_, ", ", several_), words("]")});
            case Shape::named: {
                Json one = one_of(tags_);
                return several_ ? Json{{"type", "plus"}, {"content", std::move(one)}} : one;
            }
            case Shape::whole: break;
        }
        return sequence({optional(words(form_.begin)), one_of(tags_)});
    }

    // Text, calls or calls after text.
    Json automatic() const {
        if (form_.shape == Shape::whole)
            return one_of({required(), optional(sequence({pattern("[^{ \\n]"), any_text()}))});
        Json before = any_text();
        before["excludes"] = Json::array({form_.begin});
        return sequence({std::move(before), optional(required())});
    }

private:
    const ToolForm& form_;
    const bool several_;
    Json tags_ = Json::array();
};

}  // namespace

AnswerStructure answer_structure(const AnswerParts& parts, const std::vector<Tool>& tools,
                                 const ToolChoice& choice, const OutputFormat& format) {
    using Reasoning = AnswerParts::Reasoning;
    const bool free = format.kind == OutputFormat::Kind::any;
    AnswerStructure out;
    Json content;
    if (parts.calls != nullptr) {
        Calls calls(*parts.calls, choice);
        for (const Tool& tool : tools) {
            const bool allowed = choice.allowed.empty() ||
                                 std::ranges::find(choice.allowed, tool.name) != choice.allowed.end();
            if (allowed) calls.add(tool);
        }
        if (choice.mode == ToolChoice::Mode::required) {
            content = calls.required();
        } else {
            content = free ? calls.automatic() : one_of({calls.required(), structure_of(format)});
        }
    } else if (!free && parts.reasoning != Reasoning::none) {
        content = structure_of(format);
    } else {
        return out;
    }
    out.json = format.kind == OutputFormat::Kind::json || format.kind == OutputFormat::Kind::json_schema;
    if (parts.reasoning != Reasoning::none) {
        const bool begun = parts.reasoning == Reasoning::begun;
        Json reasoning =
            sequence({tag(begun ? "" : text(parts.marks.begin), any_text(), text(parts.marks.end)),
                      pattern("[ \\n]{0,4}")});
        content =
            sequence({begun ? std::move(reasoning) : optional(std::move(reasoning)), std::move(content)});
    }
    out.format = content.dump();
    return out;
}

}  // namespace refold
