// Bodies of requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/chat_request.h"
#include "serve/completion_request.h"

namespace refold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ApiRequest, CompletionWithEverything) {
    const CompletionRequest r = parse_completion_request(R"({
        "model": "m", "prompt": ["a", [1, 2]], "max_tokens": 0, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
        "n": 2, "best_of": 2, "stream": true, "stream_options": {"include_usage": true}, "logprobs": 3,
        "echo": true, "stop": ["x", "y"], "seed": -1, "ignore_eos": true, "user": "me", "suffix": null,
        "presence_penalty": 0.0, "logit_bias": {}})");
    EXPECT_EQ(r.model, "m");
    ASSERT_EQ(r.prompts.size(), 2U);
    EXPECT_EQ(std::get<std::string>(r.prompts[0]), "a");
    EXPECT_THAT(std::get<std::vector<int32_t>>(r.prompts[1]), ElementsAre(1, 2));
    EXPECT_EQ(r.max_tokens, 0);
    EXPECT_EQ(r.options.sampling.temperature, 0.5);
    EXPECT_EQ(r.options.sampling.top_p, 0.9);
    EXPECT_EQ(r.options.sampling.top_k, 5);
    EXPECT_EQ(r.n, 2);
    EXPECT_TRUE(r.stream && r.include_usage && r.echo && r.options.ignore_eos);
    EXPECT_EQ(r.options.logprobs, 3);
    EXPECT_THAT(r.options.stop, ElementsAre("x", "y"));
    EXPECT_EQ(r.seed, 0xFFFFFFFFFFFFFFFFU);
}

TEST(ApiRequest, CompletionDefaultsAreOpenAis) {
    const CompletionRequest r = parse_completion_request(R"({"prompt": "a", "stop": null, "seed": null})");
    EXPECT_EQ(r.model, "");
    EXPECT_EQ(r.n, 1);
    EXPECT_EQ(r.max_tokens, std::nullopt);
    EXPECT_EQ(r.options.sampling.temperature, 1);
    EXPECT_EQ(r.options.sampling.top_p, 1);
    EXPECT_EQ(r.options.sampling.top_k, 0);
    EXPECT_EQ(r.seed, std::nullopt);
    EXPECT_EQ(r.options.logprobs, -1);
    EXPECT_THAT(r.options.stop, IsEmpty());
    EXPECT_FALSE(r.stream || r.include_usage || r.echo || r.options.ignore_eos);
}

TEST(ApiRequest, PromptsOfEveryKind) {
    const auto count = [](const std::string& prompt) {
        return parse_completion_request("{\"prompt\": " + prompt + "}").prompts.size();
    };
    EXPECT_EQ(count("\"\""), 1U);
    EXPECT_EQ(count("[5]"), 1U);
    EXPECT_EQ(count("[5, 6, 7]"), 1U);
    EXPECT_EQ(count("[[5], [6, 7]]"), 2U);
    EXPECT_EQ(count("[\"a\", \"b\", \"c\"]"), 3U);
}

TEST(ApiRequest, ExtremesOfSampling) {
    const auto with = [](const std::string& field) {
        return parse_completion_request("{\"prompt\": \"a\", " + field + "}");
    };
    EXPECT_EQ(with("\"temperature\": 1e-30").options.sampling.temperature, 0);
    EXPECT_EQ(with("\"temperature\": 2").options.sampling.temperature, 2);
    EXPECT_EQ(with("\"top_p\": 0").options.sampling.temperature, 0);
    EXPECT_EQ(with("\"top_p\": 0").options.sampling.top_p, 1);
    EXPECT_EQ(with("\"top_k\": -1").options.sampling.top_k, 0);
    EXPECT_EQ(with("\"seed\": 9223372036854775807").seed, 0x7FFFFFFFFFFFFFFFU);
    EXPECT_EQ(with("\"max_tokens\": 5.0").max_tokens, 5);
    EXPECT_EQ(with("\"seed\": -2e3").seed, static_cast<uint64_t>(-2000));
}

TEST(ApiRequest, AllOfSampling) {
    const auto r = parse_completion_request(R"({"prompt": "a", "min_p": 0.05, "repetition_penalty": 1.1,
        "presence_penalty": -0.5, "frequency_penalty": 0.25, "repeat_last_n": -1,
        "logit_bias": {"5": 1.5, "7": -100}, "stop_token_ids": [3, 4],
        "typical_p": 0.6, "mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2})");
    const SamplingOptions& s = r.options.sampling;
    EXPECT_EQ(s.min_p, 0.05);
    EXPECT_EQ(s.typical_p, 0.6);
    EXPECT_EQ(s.mirostat, 2);
    EXPECT_EQ(s.mirostat_tau, 3);
    EXPECT_EQ(s.mirostat_eta, 0.2);
    EXPECT_EQ(s.repetition_penalty, 1.1);
    EXPECT_EQ(s.presence_penalty, -0.5);
    EXPECT_EQ(s.frequency_penalty, 0.25);
    EXPECT_EQ(s.penalty_last_n, -1);
    EXPECT_EQ(s.logit_bias, (std::map<int32_t, double>{{5, 1.5}, {7, -100}}));
    EXPECT_THAT(r.options.stop_tokens, ElementsAre(3, 4));
    const auto defaults = parse_completion_request(R"({"prompt": "a"})").options.sampling;
    EXPECT_EQ(defaults.penalty_last_n, 64);
    EXPECT_EQ(defaults.repetition_penalty, 1);
    EXPECT_EQ(defaults.typical_p, 1);
    EXPECT_EQ(defaults.mirostat, 0);
    const auto other = parse_completion_request(R"({"prompt": "a", "repeat_penalty": 1.2})");
    EXPECT_EQ(other.options.sampling.repetition_penalty, 1.2);
}

TEST(ApiRequest, ChatMessagesAsTemplatesTakeThem) {
    const ChatRequest r = parse_chat_request(R"({
        "messages": [{"role": "developer", "content": "D"},
                     {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                      "name": "N"},
                     {"role": "assistant", "content": null, "refusal": null, "tool_calls": []}],
        "max_tokens": 7, "max_completion_tokens": 7, "logprobs": true, "top_logprobs": 2,
        "response_format": {"type": "text"}, "tools": [], "parallel_tool_calls": false})");
    EXPECT_EQ(r.messages, nlohmann::ordered_json::parse(R"([{"role": "system", "content": "D"},
        {"role": "user", "content": "a\nb", "name": "N"}, {"role": "assistant", "content": ""}])"));
    EXPECT_EQ(r.max_tokens, 7);
    EXPECT_EQ(r.options.logprobs, 2);
    EXPECT_EQ(parse_chat_request(R"({"messages": [{"role": "user", "content": ""}], "logprobs": true})")
                  .options.logprobs,
              0);
}

TEST(ApiRequest, CallsAndResultsAsTemplatesTakeThem) {
    const ChatRequest r = parse_chat_request(R"({
        "messages": [{"role": "user", "content": "a"},
                     {"role": "assistant", "content": null, "reasoning_content": "R", "tool_calls":
                      [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"z\": 1, \"a\": 2}"}},
                       {"id": "c2", "type": "function", "function": {"name": "g", "arguments": ""}}]},
                     {"role": "tool", "tool_call_id": "c2", "content": "two"},
                     {"role": "tool", "tool_call_id": "c1", "name": "own", "content": [{"type": "text", "text": "one"}]}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "D", "strict": true,
                   "parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}},
                  {"type": "function", "function": {"name": "g", "parameters": null}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools":
                        [{"type": "function", "function": {"name": "g"}}]}},
        "parallel_tool_calls": false, "reasoning_effort": "none", "chat_template_kwargs": {"x": [1]}})");
    EXPECT_EQ(r.messages, nlohmann::ordered_json::parse(R"([{"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "reasoning_content": "R", "tool_calls":
         [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}},
          {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
        {"role": "tool", "content": "two", "tool_call_id": "c2", "name": "g"},
        {"role": "tool", "content": "one", "name": "own", "tool_call_id": "c1"}])"));
    ASSERT_EQ(r.tools.size(), 2U);
    EXPECT_EQ(r.tools[0].for_template().dump(),
              R"({"type":"function","function":{"name":"f","description":"D","parameters":)"
              R"({"type":"object","properties":{"z":{},"a":{}}}}})");
    EXPECT_TRUE(r.tools[0].strict);
    EXPECT_EQ(r.tools[1].for_template().dump(), R"({"type":"function","function":{"name":"g"}})");
    EXPECT_EQ(r.choice.mode, ToolChoice::Mode::required);
    EXPECT_EQ(r.choice.allowed, std::vector<std::string>{"g"});
    EXPECT_FALSE(r.choice.several);
    EXPECT_EQ(r.variables.dump(), R"({"reasoning_effort":"none","enable_thinking":false,"x":[1]})");
}

struct Refused {
    const char *body, *param, *message;
};
// NOLINTNEXTLINE(readability-identifier-naming): the name that GoogleTest looks for
void PrintTo(const Refused& refused, std::ostream* out) { *out << refused.body; }

void expect_refused(const Refused& refused, void (*parse)(std::string_view)) {
    try {
        parse(refused.body);
        ADD_FAILURE() << "taken: " << refused.body;
    } catch (const ApiError& error) {
        EXPECT_EQ(error.status, 400);
        EXPECT_EQ(error.param, refused.param) << error.message;
        EXPECT_THAT(error.message, HasSubstr(refused.message));
    }
}

class RefusedCompletion : public testing::TestWithParam<Refused> {};
TEST_P(RefusedCompletion, NamesTheField) {
    expect_refused(GetParam(), [](std::string_view body) { parse_completion_request(body); });
}
INSTANTIATE_TEST_SUITE_P(
    All, RefusedCompletion,
    testing::Values(
        Refused{"", "", "not JSON"}, Refused{"{", "", "not JSON"},
        Refused{"[]", "", "expected a JSON object"}, Refused{"{\"prompt\": \"\xFF\"}", "", "not JSON"},
        Refused{R"({"prompt": "\ud800"})", "", "not JSON"},
        Refused{R"({"prompt": "a", "temperature": NaN})", "", "not JSON"},
        Refused{R"({"prompt": "a", "temperature": 1e999})", "", "out of range"},
        Refused{"{}", "prompt", "missing"}, Refused{R"({"prompt": null})", "prompt", "missing"},
        Refused{R"({"prompt": 5})", "prompt", "got 5"}, Refused{R"({"prompt": []})", "prompt", "empty array"},
        Refused{R"({"prompt": {}})", "prompt", "an object"},
        Refused{R"({"prompt": [1, "a"]})", "prompt", "\"a\""},
        Refused{R"({"prompt": ["a", 1]})", "prompt", "got 1"},
        Refused{R"({"prompt": [-1]})", "prompt", "got -1"},
        Refused{R"({"prompt": [1.5]})", "prompt", "got 1.5"},
        Refused{R"({"prompt": [99999999999]})", "prompt", "99999999999"},
        Refused{R"({"prompt": [[true]]})", "prompt", "true"},
        Refused{R"({"prompt": "a", "model": 5})", "model", "expected a text"},
        Refused{R"({"prompt": "a", "max_tokens": -1})", "max_tokens", "got -1"},
        Refused{R"({"prompt": "a", "max_tokens": 1.5})", "max_tokens", "whole number"},
        Refused{R"({"prompt": "a", "max_tokens": "16"})", "max_tokens", "whole number"},
        Refused{R"({"prompt": "a", "max_tokens": 18446744073709551615})", "max_tokens",
                "18446744073709551615"},
        Refused{R"({"prompt": "a", "max_completion_tokens": 5})", "max_completion_tokens",
                "use 'max_tokens'"},
        Refused{R"({"prompt": "a", "temperature": 2.1})", "temperature", "from 0 to 2"},
        Refused{R"({"prompt": "a", "temperature": -0.1})", "temperature", "from 0 to 2"},
        Refused{R"({"prompt": "a", "temperature": true})", "temperature", "got true"},
        Refused{R"({"prompt": "a", "top_p": 1.1})", "top_p", "from 0 to 1"},
        Refused{R"({"prompt": "a", "top_k": -2})", "top_k", "got -2"},
        Refused{R"({"prompt": "a", "n": 0})", "n", "got 0"},
        Refused{R"({"prompt": "a", "n": 129})", "n", "got 129"},
        Refused{R"({"prompt": "a", "n": 2, "best_of": 1})", "best_of", "'n' (2)"},
        Refused{R"({"prompt": "a", "best_of": 2, "stream": true})", "best_of", "'stream'"},
        Refused{R"({"prompt": "a", "logprobs": 21})", "logprobs", "from 0 to 20"},
        Refused{R"({"prompt": "a", "logprobs": true})", "logprobs", "got true"},
        Refused{R"({"prompt": "a", "stop": ""})", "stop", "not empty"},
        Refused{R"({"prompt": "a", "stop": [1]})", "stop", "up to 16"},
        Refused{R"({"prompt": "a", "max_tokens": 1e300})", "max_tokens", "whole number"},
        Refused{
            R"({"prompt": "a", "stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]})",
            "stop", "at most 16"},
        Refused{R"({"prompt": "a", "echo": 1})", "echo", "got 1"},
        Refused{R"({"prompt": "a", "stream_options": {}})", "stream_options", "together with 'stream'"},
        Refused{R"({"prompt": "a", "stream": true, "stream_options": {"x": true}})", "stream_options", "'x'"},
        Refused{R"({"prompt": "a", "stream": true, "stream_options": 1})", "stream_options", "an object"},
        Refused{R"({"prompt": "a", "suffix": "b", "echo": true})", "echo", "'suffix'"},
        Refused{R"({"prompt": "a", "logit_bias": {"x": 1}})", "logit_bias", "got 'x'"},
        Refused{R"({"prompt": "a", "logit_bias": {"-5": 1}})", "logit_bias", "got '-5'"},
        Refused{R"({"prompt": "a", "logit_bias": {"99999999999": 1}})", "logit_bias", "99999999999"},
        Refused{R"({"prompt": "a", "logit_bias": {"5": 101}})", "logit_bias", "from -100 to 100"},
        Refused{R"({"prompt": "a", "logit_bias": {"5": true}})", "logit_bias", "got true"},
        Refused{R"({"prompt": "a", "logit_bias": [[5, 1]]})", "logit_bias", "expected an object"},
        Refused{R"({"prompt": "a", "presence_penalty": 2.1})", "presence_penalty", "from -2 to 2"},
        Refused{R"({"prompt": "a", "frequency_penalty": -2.1})", "frequency_penalty", "from -2 to 2"},
        Refused{R"({"prompt": "a", "repetition_penalty": 0})", "repetition_penalty", "got 0"},
        Refused{R"({"prompt": "a", "repeat_penalty": "x"})", "repeat_penalty", "got \"x\""},
        Refused{R"({"prompt": "a", "repeat_penalty": 1.1, "repetition_penalty": 1.1})", "repeat_penalty",
                "one of them"},
        Refused{R"({"prompt": "a", "repeat_last_n": -2})", "repeat_last_n", "got -2"},
        Refused{R"({"prompt": "a", "min_p": 1.1})", "min_p", "from 0 to 1"},
        Refused{R"({"prompt": "a", "typical_p": 0})", "typical_p", "to 1"},
        Refused{R"({"prompt": "a", "mirostat": 3})", "mirostat", "from 0 to 2"},
        Refused{R"({"prompt": "a", "mirostat_tau": 0})", "mirostat_tau", "got 0"},
        Refused{R"({"prompt": "a", "mirostat_eta": 1.5})", "mirostat_eta", "from 0 to 1"},
        Refused{R"({"prompt": "a", "stop_token_ids": 5})", "stop_token_ids", "an array"},
        Refused{R"({"prompt": "a", "stop_token_ids": [-1]})", "stop_token_ids", "got -1"},
        Refused{R"({"prompt": "a", "promt": 1})", "promt", "unknown field"}));

class RefusedChat : public testing::TestWithParam<Refused> {};
TEST_P(RefusedChat, NamesTheField) {
    expect_refused(GetParam(), [](std::string_view body) { parse_chat_request(body); });
}
constexpr const char* kM = "messages";
INSTANTIATE_TEST_SUITE_P(
    All, RefusedChat,
    testing::Values(
        Refused{"{}", kM, "missing"}, Refused{R"({"messages": []})", kM, "at least one"},
        Refused{R"({"messages": "a"})", kM, "an array"}, Refused{R"({"messages": ["a"]})", kM, "message 0"},
        Refused{R"({"messages": [{"content": "a"}]})", kM, "'role'"},
        Refused{R"({"messages": [{"role": "tool", "content": "a"}]})", kM, "'tool_call_id'"},
        Refused{R"({"messages": [{"role": "robot", "content": "a"}]})", kM, "\"robot\""},
        Refused{R"({"messages": [{"role": "user"}]})", kM, "'content' is missing"},
        Refused{R"({"messages": [{"role": "user", "content": 5}]})", kM, "got 5"},
        Refused{R"({"messages": [{"role": "user", "content": [5]}]})", kM, "'type'"},
        Refused{R"({"messages": [{"role": "user", "content": [{"type": "text"}]}]})", kM, "'text'"},
        Refused{R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})",
                kM, "image_url"},
        Refused{
            R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{}]}]})",
            kM, "message 1: a call in 'tool_calls' needs an 'id'"},
        Refused{R"({"messages": [{"role": "assistant", "tool_calls": 5}]})", kM, "'tool_calls': got 5"},
        Refused{R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {}}]}]})", kM,
                "needs a 'name'"},
        Refused{R"({"messages": [{"role": "assistant", "tool_calls":
                [{"id": "1", "function": {"name": "f", "arguments": "{"}}]}]})",
                kM, "no JSON"},
        Refused{R"({"messages": [{"role": "assistant", "tool_calls":
                [{"id": "1", "function": {"name": "f", "arguments": "[]"}}]}]})",
                kM, "expected an object"},
        Refused{
            R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}]})",
            kM, "their results must follow"},
        Refused{R"({"messages": [{"role": "assistant", "reasoning_content": 1}]})", kM,
                "'reasoning_content'"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]})",
                "tools", "'function' is missing"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "web_search"}]})",
                "tools", "'web_search' is not supported"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "tools":
                [{"type": "function", "function": {"name": "f g"}}]})",
                "tools", "got the name"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "tools":
                [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "f"}}]})",
                "tools", "two tools"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "tools":
                [{"type": "function", "function": {"name": "f", "parameters": 5}}]})",
                "tools", "'parameters': got 5"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "tools":
                [{"type": "function", "function": {"name": "f", "returns": {}}}]})",
                "tools", "'returns'"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "functions": [{}]})", "functions",
                "not support"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"})",
                "tool_choice", "no tools"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "tool_choice": "maybe"})", "tool_choice",
                "'maybe'"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "tool_choice":
                {"type": "function", "function": {"name": "g"}}})",
                "tool_choice", "no tool of the name"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "tool_choice":
                {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}})",
                "tool_choice", "at least one tool"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "audio": {}})", "audio", "not support"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "reasoning_effort": "much"})",
                "reasoning_effort", "'much'"},
        Refused{
            R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": []}})",
            "chat_template_kwargs", "set by the server"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "max_tokens": 0})", "max_tokens",
                "got 0"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "logprobs": 1})", "logprobs", "got 1"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1})", "top_logprobs",
                "together with"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "echo": true})", "echo", "unknown field"},
        Refused{R"({"messages": [{"role": "user", "content": "a"}], "prompt": "a"})", "prompt",
                "unknown field"}));

TEST(ApiRequest, NestedTooDeep) {
    const std::string deep = "{\"prompt\": " + std::string(100'000, '[') + std::string(100'000, ']') + "}";
    expect_refused({deep.c_str(), "", "nested too deep"},
                   [](std::string_view body) { parse_completion_request(body); });
}

// What is looked for after every token has an end.
TEST(ApiRequest, TooMuchToStopAt) {
    const auto with = [](const char* field, const std::string& value) {
        return "{\"prompt\": \"a\", \"" + std::string(field) + "\": " + value + "}";
    };
    const auto parse = [](std::string_view body) { parse_completion_request(body); };
    const auto text = [](size_t bytes) { return '"' + std::string(bytes, 'x') + '"'; };
    EXPECT_NO_THROW(parse(with("stop", text(1024))));
    expect_refused({with("stop", text(1025)).c_str(), "stop", "1025 bytes"}, parse);
    std::string ids = "[1";
    for (int i = 1; i < 1024; ++i) ids += ",1";
    EXPECT_NO_THROW(parse(with("stop_token_ids", ids + "]")));
    expect_refused({with("stop_token_ids", ids + ",1]").c_str(), "stop_token_ids", "1025 ids"}, parse);
}

TEST(ApiRequest, TooManyChoices) {
    std::string prompts = "[\"a\"";
    for (int i = 0; i < 20; ++i) prompts += ", \"a\"";
    expect_refused({("{\"prompt\": " + prompts + "], \"n\": 100}").c_str(), "n", "21 prompts of 100"},
                   [](std::string_view body) { parse_completion_request(body); });
}

}  // namespace
}  // namespace refold
