#include "serve/responses/responses_request.h"

#include "serve/conversation/content_text.h"
#include "serve/conversation/function_fields.h"
#include "serve/conversation/template_fields.h"
#include "serve/output_format_fields.h"
#include "serve/responses/input_items.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;

// Instructions stand before everything else. Templates take one system message.
void read_items(Fields& fields, Json& messages) {
    const std::string instructions = fields.text("instructions");
    if (!instructions.empty()) messages.push_back({{"role", "system"}, {"content", instructions}});
    read_input(fields.ordered("input", kMostMessageValues), messages);
    if (!instructions.empty() && messages.size() > 1 && messages[1]["role"] == "system") {
        messages[0]["content"] = instructions + "\n\n" + messages[1]["content"].get<std::string>();
        messages.erase(1);
    }
    complete_messages(messages, "input");
}

// {"format": see typed_format()}
OutputFormat text_format(Fields& fields) {
    constexpr const char* kField = "text";
    const Json given = fields.ordered(kField);
    if (given.is_null()) return {};
    if (!given.is_object()) refuse(kField, "got {}, expected an object", shown(given));
    for (const auto& [name, value] : given.items()) {
        if (name != "format" && !value.is_null() && !(name == "verbosity" && value == "medium"))
            refuse(kField, "'{}': got {}, which is not supported", name.substr(0, 60), shown(value));
    }
    const Json format = given.value("format", Json());
    return format.is_null() ? OutputFormat{} : typed_format(format, kField);
}

// {"effort", "summary"}. Reasoning is given whole, so there is no summary to ask for.
void read_reasoning(Fields& fields, Json& variables) {
    constexpr const char* kField = "reasoning";
    const Json given = fields.ordered(kField);
    if (given.is_null()) return;
    if (!given.is_object()) refuse(kField, "got {}, expected an object", shown(given));
    for (const auto& [name, value] : given.items()) {
        if (value.is_null() || ((name == "summary" || name == "generate_summary") && value == "auto"))
            continue;
        if (name != "effort" || !value.is_string())
            refuse(kField, "'{}': got {}, which is not supported", name.substr(0, 60), shown(value));
        set_effort(variables, value.get<std::string>(), kField);
    }
}

// What asks for other than the field's only value here.
void refuse_unsupported(Fields& fields) {
    if (fields.has("previous_response_id"))
        refuse("previous_response_id", "responses are not stored - send the items again in 'input'");
    if (fields.boolean("background", false)) refuse("background", "responses are not stored - leave it out");
    if (const std::string how = fields.text("truncation"); !how.empty() && how != "disabled")
        refuse("truncation", "got '{}', expected disabled: nothing is left out of the input",
               how.substr(0, 60));
    if (const BodyValue* include = fields.find("include")) {
        if (!include->is_array()) refuse("include", "got {}, expected an array", shown(*include));
        for (const BodyValue& what : *include)  // reasoning is never encrypted
            if (what != "reasoning.encrypted_content") refuse("include", "{} is not supported", shown(what));
    }
}

}  // namespace

ResponsesRequest parse_responses_request(std::string_view body) {
    Fields fields(body);
    ResponsesRequest out;
    read_generation(fields, out);
    if (out.n != 1) refuse("n", "got {}, expected 1: a response is one answer", out.n);
    if (out.include_usage) refuse("stream_options", "'include_usage': a response always has its usage");
    if (const OutputFormat format = text_format(fields); format.kind != OutputFormat::Kind::any)
        out.options.format = format;
    read_items(fields, out.messages);
    OfferedTools offered = read_functions(fields, FunctionStyle::flat);
    out.tools = std::move(offered.tools);
    out.choice = std::move(offered.choice);
    out.variables = template_variables(fields);
    read_reasoning(fields, out.variables);
    out.max_tokens = fields.integer("max_output_tokens", 1, INT64_MAX);
    refuse_unsupported(fields);
    fields.boolean("store", true);  // nothing is stored, whatever it says
    const auto echo = [&](const char* field, Json otherwise) {
        const Json given = fields.ordered(field);
        out.echoed[field] = given.is_null() ? std::move(otherwise) : given;
    };
    echo("instructions", nullptr);
    echo("max_output_tokens", nullptr);
    echo("metadata", Json::object());
    echo("parallel_tool_calls", true);
    echo("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
    echo("temperature", 1.0);
    echo("text", {{"format", {{"type", "text"}}}});
    echo("tool_choice", "auto");
    echo("tools", Json::array());
    echo("top_p", 1.0);
    echo("user", nullptr);
    fields.refuse_the_rest();
    return out;
}

}  // namespace refold
