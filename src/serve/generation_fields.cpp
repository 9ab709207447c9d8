#include "serve/generation_fields.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "serve/output_format_fields.h"

namespace refold {
namespace {

// The value of a field that goes by two names.
double number_of_two(Fields& fields, const char* field, const char* other, double least, double most,
                     double otherwise) {
    const double value = fields.number(field, otherwise, least, most),
                 of_other = fields.number(other, otherwise, least, most);
    if (fields.find(field) != nullptr && fields.find(other) != nullptr)
        refuse(other, "another name of '{}' - give one of them", field);
    return fields.find(other) != nullptr ? of_other : value;
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

}  // namespace

void read_sampling(Fields& fields, SamplingOptions& out) {
    out.temperature = fields.number("temperature", out.temperature, 0, 2);
    // Below this the quotient overflows, and only the likeliest token is left long before.
    if (out.temperature < 1e-4) out.temperature = 0;
    out.top_p = fields.number("top_p", out.top_p, 0, 1);
    if (out.top_p == 0) {  // as with OpenAI: the likeliest token alone
        out.temperature = 0;
        out.top_p = 1;
    }
    out.top_k =
        static_cast<int>(std::max<int64_t>(0, fields.integer("top_k", -1, INT32_MAX).value_or(out.top_k)));
    out.min_p = fields.number("min_p", out.min_p, 0, 1);
    constexpr double kTiny = 1e-3, kMost = 1e3;
    out.typical_p = fields.number("typical_p", out.typical_p, kTiny, 1);
    out.mirostat = static_cast<int>(fields.integer("mirostat", 0, 2).value_or(out.mirostat));
    out.mirostat_tau = fields.number("mirostat_tau", out.mirostat_tau, kTiny, kMost);
    out.mirostat_eta = fields.number("mirostat_eta", out.mirostat_eta, 0, 1);
    out.repetition_penalty =
        number_of_two(fields, "repetition_penalty", "repeat_penalty", kTiny, kMost, out.repetition_penalty);
    out.presence_penalty = fields.number("presence_penalty", out.presence_penalty, -2, 2);
    out.frequency_penalty = fields.number("frequency_penalty", out.frequency_penalty, -2, 2);
    out.penalty_last_n = fields.integer("repeat_last_n", -1, INT32_MAX).value_or(out.penalty_last_n);
}

std::vector<std::string> stop_texts(Fields& fields, const char* field) {
    const BodyValue* value = fields.find(field);
    if (value == nullptr) return {};
    // More texts than OpenAI's four, as lm-evaluation-harness and others send more. They are looked for after
    // every token.
    constexpr size_t kMost = 16, kLongest = 1024;
    std::vector<std::string> texts;
    const auto add = [&](const BodyValue& text) {
        if (!text.is_string() || text.get_ref<const std::string&>().empty())
            refuse(field, "got {}, expected a text that is not empty, or up to {} in an array", shown(text),
                   kMost);
        if (const size_t bytes = text.get_ref<const std::string&>().size(); bytes > kLongest)
            refuse(field, "got a text of {} bytes, expected at most {}", bytes, kLongest);
        texts.push_back(text.get<std::string>());
    };
    if (!value->is_array()) {
        add(*value);
    } else {
        if (value->size() > kMost) refuse(field, "got {} texts, expected at most {}", value->size(), kMost);
        for (const BodyValue& text : *value) add(text);
    }
    return texts;
}

void read_generation(Fields& fields, ApiRequest& out) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    out.model = fields.text("model");
    out.n = fields.integer("n", 1, 128).value_or(1);
    SamplingOptions& sampling = out.options.sampling;
    sampling.temperature = sampling.top_p = 1;
    sampling.top_k = 0;
    read_sampling(fields, sampling);
    sampling.logit_bias = logit_bias(fields);
    if (const auto seed = fields.integer("seed", -kMost, kMost)) out.seed = static_cast<uint64_t>(*seed);
    out.options.stop = stop_texts(fields, "stop");
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
    out.return_exits = fields.boolean("return_exits", false);
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

}  // namespace refold
