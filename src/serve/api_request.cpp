#include "serve/api_request.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "serve/api_error.h"
#include "serve/body_json.h"
#include "serve/ordered_field.h"

namespace refold {
namespace {

template <typename... Args>
[[noreturn]] void refuse(const std::string& field, fmt::format_string<Args...> format, Args&&... args) {
    throw ApiError(400, fmt::format("'{}': {}", field, fmt::format(format, std::forward<Args>(args)...)),
                   field);
}

// A value in a message: short, on one line.
template <typename Value>
std::string shown(const Value& value) {
    std::string text = value.is_structured() ? (value.is_array() ? "an array" : "an object")
                                             : value.dump(-1, ' ', true, Value::error_handler_t::replace);
    return text.size() <= 60 ? text : text.substr(0, 60) + "...";
}

// Fields that cannot change the result.
constexpr auto kHarmless =
    std::to_array<const char*>({"user", "metadata", "store", "service_tier", "safety_identifier",
                                "prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"});

// Fields that are not supported, accepted with the values that ask for nothing.
struct Neutral {
    const char* field;
    std::vector<BodyValue> values;  // besides null
};
const std::vector<Neutral>& neutral_fields() {
    static const std::vector<Neutral> fields = {{"typical_p", {1}},
                                                {"suffix", {""}},
                                                {"tools", {BodyValue::array()}},
                                                {"tool_choice", {"none", "auto"}},
                                                {"functions", {BodyValue::array()}},
                                                {"function_call", {"none", "auto"}},
                                                {"modalities", {BodyValue::array({"text"})}},
                                                {"audio", {}},
                                                {"prediction", {}},
                                                {"reasoning_effort", {}},
                                                {"verbosity", {}},
                                                {"web_search_options", {}}};
    return fields;
}

// 5 and 5.0, which some clients send for it.
std::optional<int64_t> whole_number(const BodyValue& value) {
    constexpr double kExact = 1LL << 53;
    if (value.is_number_float()) {
        const double given = value.get<double>();
        if (std::abs(given) <= kExact && given == std::floor(given)) return static_cast<int64_t>(given);
    }
    // An unsigned number above the signed range would wrap.
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX))
        return std::nullopt;
    return value.get<int64_t>();
}

class Fields {
public:
    explicit Fields(std::string_view body) : source_(body), body_(body), object_(body_.value()) {
        if (!object_.is_object())
            throw ApiError(400, "the request's body: got " + shown(object_) + ", expected a JSON object");
    }

    // Null when the field is missing or null.
    const BodyValue* find(const char* field) {
        known_.insert(field);
        const auto found = object_.find(field);
        return found == object_.end() || found->is_null() ? nullptr : &*found;
    }
    // The same as JSON whose objects have their keys in the client's order.
    nlohmann::ordered_json ordered(const char* field) {
        return find(field) == nullptr ? nlohmann::ordered_json() : ordered_field(source_, field);
    }
    bool boolean(const char* field, bool otherwise) {
        const BodyValue* value = find(field);
        if (value == nullptr) return otherwise;
        if (!value->is_boolean()) refuse(field, "got {}, expected true or false", shown(*value));
        return value->get<bool>();
    }
    std::string text(const char* field) {
        const BodyValue* value = find(field);
        if (value == nullptr) return "";
        if (!value->is_string()) refuse(field, "got {}, expected a text", shown(*value));
        return value->get<std::string>();
    }
    std::optional<int64_t> integer(const char* field, int64_t least, int64_t most) {
        const BodyValue* value = find(field);
        if (value == nullptr) return std::nullopt;
        const std::optional<int64_t> given = whole_number(*value);
        if (!given || *given < least || *given > most)
            refuse(field, "got {}, expected a whole number from {} to {}", shown(*value), least, most);
        return given;
    }
    double number(const char* field, double otherwise, double least, double most) {
        const BodyValue* value = find(field);
        if (value == nullptr) return otherwise;
        const double given = value->is_number() ? value->get<double>() : NAN;
        if (!(given >= least && given <= most))
            refuse(field, "got {}, expected a number from {} to {}", shown(*value), least, most);
        return given;
    }

    void refuse_the_rest() {
        for (const auto& [field, value] : object_.items()) {
            if (known_.contains(field) || value.is_null()) continue;
            if (std::ranges::find(kHarmless, field) != kHarmless.end()) continue;
            const auto neutral = std::ranges::find(neutral_fields(), field, &Neutral::field);
            const std::string name = field.size() <= 60 ? field : field.substr(0, 60) + "...";
            if (neutral == neutral_fields().end())
                throw ApiError(400, fmt::format("'{}': unknown field", name), name, "unknown_parameter");
            if (std::ranges::find(neutral->values, value) == neutral->values.end())
                throw ApiError(400,
                               fmt::format("'{}': got {}, which this server does not support - leave it out",
                                           name, shown(value)),
                               name, "unsupported_parameter");
        }
    }

private:
    const std::string_view source_;
    const BodyJson body_;
    const BodyValue& object_;
    std::set<std::string, std::less<>> known_;
};

std::vector<std::string> stop_texts(Fields& fields) {
    const BodyValue* value = fields.find("stop");
    if (value == nullptr) return {};
    // More texts than OpenAI's four, as lm-evaluation-harness and others send more. They are looked for after
    // every token.
    constexpr size_t kMost = 16, kLongest = 1024;
    std::vector<std::string> texts;
    const auto add = [&](const BodyValue& text) {
        if (!text.is_string() || text.get_ref<const std::string&>().empty())
            refuse("stop", "got {}, expected a text that is not empty, or up to {} in an array", shown(text),
                   kMost);
        if (const size_t bytes = text.get_ref<const std::string&>().size(); bytes > kLongest)
            refuse("stop", "got a text of {} bytes, expected at most {}", bytes, kLongest);
        texts.push_back(text.get<std::string>());
    };
    if (!value->is_array()) {
        add(*value);
    } else {
        if (value->size() > kMost) refuse("stop", "got {} texts, expected at most {}", value->size(), kMost);
        for (const BodyValue& text : *value) add(text);
    }
    return texts;
}

int32_t token_id(const BodyValue& value, const char* field) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > INT32_MAX)
        refuse(field, "got {} where a token id is expected", shown(value));
    return static_cast<int32_t>(value.get<uint64_t>());
}

std::vector<int32_t> token_ids(const BodyValue& array, const char* field) {
    std::vector<int32_t> ids;
    ids.reserve(array.size());
    for (const BodyValue& id : array) ids.push_back(token_id(id, field));
    return ids;
}

// The value of a field that goes by two names.
double number_of_two(Fields& fields, const char* field, const char* other, double least, double most,
                     double otherwise) {
    if (fields.find(field) != nullptr && fields.find(other) != nullptr)
        refuse(other, "another name of '{}' - give one of them", field);
    const char* given = fields.find(other) != nullptr ? other : field;
    return fields.number(given, otherwise, least, most);
}

// {"token id": bias}
std::map<int32_t, double> logit_bias(Fields& fields) {
    constexpr const char* kField = "logit_bias";
    const BodyValue* value = fields.find(kField);
    if (value == nullptr) return {};
    if (!value->is_object())
        refuse(kField, "got {}, expected an object of token ids and biases", shown(*value));
    std::map<int32_t, double> biases;
    for (const auto& [name, bias] : value->items()) {
        int32_t token = -1;
        const char* const end = name.data() + name.size();
        const auto [next, error] = std::from_chars(name.data(), end, token);
        if (error != std::errc() || next != end || token < 0)
            refuse(kField, "got '{}' where a token id is expected", name.substr(0, 60));
        const double given = bias.is_number() ? bias.get<double>() : NAN;
        if (!(std::abs(given) <= 100))
            refuse(kField, "token {}: got {}, expected a number from -100 to 100", token, shown(bias));
        biases[token] = given;
    }
    return biases;
}

// ---- formats of the output

using Json = nlohmann::ordered_json;

std::string format_text(const Json& value, const char* field) {
    if (!value.is_string()) refuse(field, "got {}, expected a text", shown(value));
    return value.get<std::string>();
}

// A schema as JSON or as a text of JSON.
OutputFormat schema_format(const Json& schema, const char* field) {
    if (schema.is_string())
        return {.kind = OutputFormat::Kind::json_schema, .text = schema.get<std::string>()};
    if (!schema.is_object() && !schema.is_boolean())
        refuse(field, "got {}, expected a JSON Schema", shown(schema));
    return {.kind = OutputFormat::Kind::json_schema, .text = schema.dump()};
}

OutputFormat choice_format(const Json& choices, const char* field) {
    if (!choices.is_array()) refuse(field, "got {}, expected an array of texts", shown(choices));
    OutputFormat out{.kind = OutputFormat::Kind::choice};
    for (const Json& choice : choices) out.choices.push_back(format_text(choice, field));
    return out;
}

// OpenAI's {"type": "json_schema", "json_schema": {"name", "schema"}}. llama.cpp also takes the schema beside
// the type.
OutputFormat response_format(const Json& given) {
    constexpr const char* kField = "response_format";
    if (!given.is_object()) refuse(kField, "got {}, expected an object", shown(given));
    const std::string type = given.contains("type") ? format_text(given["type"], kField) : "";
    if (type == "text") return {};
    if (type != "json_object" && type != "json_schema")
        refuse(kField, "got type '{}', expected text, json_object or json_schema", type.substr(0, 60));
    const bool wrapped = given.contains("json_schema");
    const Json& holder = wrapped ? given["json_schema"] : given;
    if (holder.is_object() && holder.contains("schema")) return schema_format(holder["schema"], kField);
    if (type == "json_schema") refuse(kField, "'json_schema' needs a 'schema'");
    return {.kind = OutputFormat::Kind::json};
}

// A format by the name that vLLM has for it.
OutputFormat named_format(const std::string& name, const Json& value, const char* field) {
    if (name == "json") return schema_format(value, field);
    if (name == "regex") return {.kind = OutputFormat::Kind::regex, .text = format_text(value, field)};
    if (name == "choice") return choice_format(value, field);
    if (name == "grammar") return {.kind = OutputFormat::Kind::grammar, .text = format_text(value, field)};
    if (name == "json_object" && value == true) return {.kind = OutputFormat::Kind::json};
    refuse(field, "'{}' is not supported; known: json, json_object, regex, choice, grammar",
           name.substr(0, 60));
}

// The format of the output, by OpenAI's field, llama.cpp's (grammar, json_schema) or vLLM's.
OutputFormat output_format(Fields& fields) {
    OutputFormat out;
    const char* by = nullptr;
    const auto set = [&](OutputFormat format, const char* field) {
        if (format.kind == OutputFormat::Kind::any) return;
        if (by != nullptr) refuse(field, "another format of the output than '{}' - give one of them", by);
        out = std::move(format);
        by = field;
    };
    const auto read = [&](const char* field, auto make) {
        if (const Json value = fields.ordered(field); !value.is_null()) set(make(value), field);
    };
    read("response_format", response_format);
    read("json_schema", [](const Json& value) { return schema_format(value, "json_schema"); });
    constexpr std::pair<const char*, const char*> kNamed[] = {{"grammar", "grammar"},
                                                              {"guided_json", "json"},
                                                              {"guided_regex", "regex"},
                                                              {"guided_choice", "choice"},
                                                              {"guided_grammar", "grammar"}};
    for (const auto& [field, name] : kNamed)
        read(field,
             [&, name = name, field = field](const Json& value) { return named_format(name, value, field); });
    if (const Json given = fields.ordered("structured_outputs"); !given.is_null()) {
        if (!given.is_object()) refuse("structured_outputs", "got {}, expected an object", shown(given));
        for (const auto& [name, value] : given.items()) {
            if (!value.is_null()) set(named_format(name, value, "structured_outputs"), "structured_outputs");
        }
    }
    return out;
}

void read_sampling(Fields& fields, SamplingOptions& out) {
    out.temperature = fields.number("temperature", 1, 0, 2);
    // Below this the quotient overflows, and only the likeliest token is left long before.
    if (out.temperature < 1e-4) out.temperature = 0;
    out.top_p = fields.number("top_p", 1, 0, 1);
    if (out.top_p == 0) {  // as with OpenAI: the likeliest token alone
        out.temperature = 0;
        out.top_p = 1;
    }
    out.top_k = static_cast<int>(std::max<int64_t>(0, fields.integer("top_k", -1, INT32_MAX).value_or(0)));
    out.min_p = fields.number("min_p", 0, 0, 1);
    constexpr double kTiny = 1e-3, kMost = 1e3;
    out.repetition_penalty = number_of_two(fields, "repetition_penalty", "repeat_penalty", kTiny, kMost, 1);
    out.presence_penalty = fields.number("presence_penalty", 0, -2, 2);
    out.frequency_penalty = fields.number("frequency_penalty", 0, -2, 2);
    out.penalty_last_n = fields.integer("repeat_last_n", -1, INT32_MAX).value_or(out.penalty_last_n);
    out.logit_bias = logit_bias(fields);
}

void read_common(Fields& fields, ApiRequest& out) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    out.model = fields.text("model");
    out.n = fields.integer("n", 1, 128).value_or(1);
    read_sampling(fields, out.options.sampling);
    if (const auto seed = fields.integer("seed", -kMost, kMost)) out.seed = static_cast<uint64_t>(*seed);
    out.options.stop = stop_texts(fields);
    if (const BodyValue* tokens = fields.find("stop_token_ids")) {
        if (!tokens->is_array())
            refuse("stop_token_ids", "got {}, expected an array of token ids", shown(*tokens));
        constexpr size_t kMostTokens = 1024;  // looked for after every token, too
        if (tokens->size() > kMostTokens)
            refuse("stop_token_ids", "got {} ids, expected at most {}", tokens->size(), kMostTokens);
        out.options.stop_tokens = token_ids(*tokens, "stop_token_ids");
    }
    out.options.ignore_eos = fields.boolean("ignore_eos", false);
    out.options.format = output_format(fields);
    out.stream = fields.boolean("stream", false);
    if (const BodyValue* options = fields.find("stream_options")) {
        if (!out.stream) refuse("stream_options", "only allowed together with 'stream'");
        if (!options->is_object()) refuse("stream_options", "got {}, expected an object", shown(*options));
        for (const auto& [name, value] : options->items()) {
            // Padding hides the lengths of encrypted streams; this one is not encrypted.
            if (name != "include_usage" && name != "include_obfuscation")
                refuse("stream_options", "unknown field '{}'", name.substr(0, 60));
            if (!value.is_boolean() && !value.is_null())
                refuse("stream_options", "'{}': got {}, expected true or false", name, shown(value));
            if (name == "include_usage" && value.is_boolean()) out.include_usage = value.get<bool>();
        }
    }
}

// A text, texts, token ids or arrays of token ids.
std::vector<ApiPrompt> read_prompts(Fields& fields) {
    const BodyValue* value = fields.find("prompt");
    if (value == nullptr) refuse("prompt", "missing - give a text, token ids, or an array of them");
    std::vector<ApiPrompt> prompts;
    if (value->is_string()) {
        prompts.emplace_back(value->get<std::string>());
    } else if (value->is_array() && !value->empty() && value->front().is_number()) {
        prompts.emplace_back(token_ids(*value, "prompt"));
    } else if (value->is_array()) {
        if (static_cast<int64_t>(value->size()) > kMostChoices)
            refuse("prompt", "got {} prompts, expected at most {}", value->size(), kMostChoices);
        for (const BodyValue& prompt : *value) {
            if (prompt.is_string())
                prompts.emplace_back(prompt.get<std::string>());
            else if (prompt.is_array())
                prompts.emplace_back(token_ids(prompt, "prompt"));
            else
                refuse("prompt", "got {} in the array, expected a text or an array of token ids",
                       shown(prompt));
        }
    } else {
        refuse("prompt", "got {}, expected a text, token ids, or an array of them", shown(*value));
    }
    if (prompts.empty()) refuse("prompt", "an empty array - give at least one prompt");
    return prompts;
}

// A text, or parts of type text.
std::string content_text(const BodyValue& content, const std::string& where) {
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array())
        refuse("messages", "{}: 'content': got {}, expected a text or an array of parts", where,
               shown(content));
    std::string text;
    for (const BodyValue& part : content) {
        const auto type = part.is_object() ? part.find("type") : part.end();
        if (!part.is_object() || type == part.end() || !type->is_string())
            refuse("messages", "{}: a content part needs a 'type'", where);
        if (*type != "text")
            refuse("messages", "{}: content of type {} is not supported - this server takes text", where,
                   shown(*type));
        const auto found = part.find("text");
        if (found == part.end() || !found->is_string())
            refuse("messages", "{}: a content part of type text needs a 'text'", where);
        if (!text.empty()) text += '\n';
        text += found->get_ref<const std::string&>();
    }
    return text;
}

nlohmann::ordered_json read_message(const BodyValue& message, size_t index) {
    const std::string where = fmt::format("message {}", index);
    if (!message.is_object()) refuse("messages", "{}: got {}, expected an object", where, shown(message));
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) refuse("messages", "{}: 'role' is missing", where);
    const bool known = *role == "system" || *role == "user" || *role == "assistant" || *role == "developer";
    if (!known)
        refuse("messages", "{}: got role {}, expected system, user or assistant", where, shown(*role));
    nlohmann::ordered_json out = {
        {"role", *role == "developer" ? "system" : role->get_ref<const std::string&>()}, {"content", ""}};
    bool content = false;
    for (const auto& [field, value] : message.items()) {
        if (field == "role" || value.is_null()) continue;
        if (field == "content") {
            out["content"] = content_text(value, where);
            content = true;
        } else if (field == "name" && value.is_string()) {
            out["name"] = value.get_ref<const std::string&>();
        } else if (!value.is_array() || !value.empty()) {  // tool_calls: []
            refuse("messages", "{}: '{}' is not supported", where, field.substr(0, 60));
        }
    }
    if (!content && *role != "assistant") refuse("messages", "{}: 'content' is missing", where);
    return out;
}

}  // namespace

CompletionRequest parse_completion_request(std::string_view body) {
    Fields fields(body);
    CompletionRequest out;
    read_common(fields, out);
    out.prompts = read_prompts(fields);
    out.echo = fields.boolean("echo", false);
    out.max_tokens = fields.integer("max_tokens", 0, INT64_MAX);
    if (fields.find("max_completion_tokens") != nullptr)
        refuse("max_completion_tokens", "a field of chat completions - use 'max_tokens'");
    out.options.logprobs = static_cast<int>(fields.integer("logprobs", 0, kMostLogprobs).value_or(-1));
    if (const auto best = fields.integer("best_of", 1, 128); best && *best != out.n)
        refuse("best_of", "got {}, but only as many as 'n' ({}) are supported", *best, out.n);
    if (static_cast<int64_t>(out.prompts.size()) * out.n > kMostChoices)
        refuse("n", "{} prompts of {} choices each, expected at most {} choices", out.prompts.size(), out.n,
               kMostChoices);
    fields.refuse_the_rest();
    return out;
}

ChatRequest parse_chat_request(std::string_view body) {
    Fields fields(body);
    ChatRequest out;
    read_common(fields, out);
    const BodyValue* messages = fields.find("messages");
    if (messages == nullptr) refuse("messages", "missing - give an array of messages");
    if (!messages->is_array() || messages->empty())
        refuse("messages", "got {}, expected an array of at least one message", shown(*messages));
    out.messages = nlohmann::ordered_json::array();
    for (const BodyValue& message : *messages)
        out.messages.push_back(read_message(message, out.messages.size()));
    const auto older = fields.integer("max_tokens", 1, INT64_MAX);
    const auto newer = fields.integer("max_completion_tokens", 1, INT64_MAX);
    out.max_tokens = newer ? newer : older;
    const auto top = fields.integer("top_logprobs", 0, kMostLogprobs);
    const bool logprobs = fields.boolean("logprobs", false);
    if (top && !logprobs) refuse("top_logprobs", "only allowed together with 'logprobs': true");
    if (logprobs) out.options.logprobs = static_cast<int>(top.value_or(0));
    fields.refuse_the_rest();
    return out;
}

TokenizeRequest parse_tokenize_request(std::string_view body) {
    Fields fields(body);
    TokenizeRequest out;
    out.model = fields.text("model");
    const bool prompt = fields.find("prompt") != nullptr;
    if (!prompt && fields.find("content") == nullptr) refuse("prompt", "missing - give a text");
    out.text = fields.text(prompt ? "prompt" : "content");
    const bool special = fields.boolean("add_special", true);
    out.add_special = fields.boolean("add_special_tokens", special);
    fields.refuse_the_rest();
    return out;
}

DetokenizeRequest parse_detokenize_request(std::string_view body) {
    Fields fields(body);
    DetokenizeRequest out;
    out.model = fields.text("model");
    const BodyValue* tokens = fields.find("tokens");
    if (tokens == nullptr || !tokens->is_array()) refuse("tokens", "expected an array of token ids");
    out.tokens = token_ids(*tokens, "tokens");
    fields.refuse_the_rest();
    return out;
}

}  // namespace refold
