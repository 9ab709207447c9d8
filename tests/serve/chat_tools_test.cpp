// Tools and reasoning in chat completions, over real connections, with an engine that says what it is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "serve/chat_request.h"
#include "serve/running_server.h"
#include "serve/templates.h"

namespace refold {
namespace {

using testing::HasSubstr;

constexpr const char* kChatPath = "/v1/chat/completions";

const json kFunction = {
    {"type", "function"},
    {"function",
     {{"name", "weather"},
      {"parameters",
       {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}, {"required", {"city"}}}}}}};

json asked_chat(const json& more = json::object()) {
    json body = chat({{"ignore_eos", false}, {"max_tokens", 400}});
    body.update(more);
    return body;
}

// The message and the finish reason of a stream, put together.
json chat_of(const std::vector<json>& events) {
    json message = json::object(), finish;
    EXPECT_EQ(events.back(), "[DONE]");
    for (const json& event : events) {
        if (!event.is_object() || event["choices"].empty()) continue;
        const json& choice = event["choices"][0];
        for (const auto& [key, value] : choice["delta"].items()) {
            if (value.is_null()) continue;
            if (key != "tool_calls") {
                message[key] = message.value(key, "") + value.get<std::string>();
                continue;
            }
            const json& call = value[0];
            const size_t index = call["index"];
            if (call.contains("id")) {
                EXPECT_EQ(index, message["tool_calls"].size());
                EXPECT_EQ(call["function"]["arguments"], "");
                message["tool_calls"].push_back(call);
            } else {
                std::string& to =
                    message["tool_calls"][index]["function"]["arguments"].get_ref<std::string&>();
                to += call["function"]["arguments"].get<std::string>();
            }
        }
        if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    }
    return {{"message", message}, {"finish_reason", finish}};
}

TEST(ChatTools, ACallAtOnceAndStreamed) {
    RunningServer running(answering(std::string("I look.\n\n") + kCall));
    const json choice = running.post(kChatPath, asked_chat({{"tools", {kFunction}}})).json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
    const json& message = choice["message"];
    EXPECT_EQ(message["content"], "I look.");
    ASSERT_EQ(message["tool_calls"].size(), 1U);
    EXPECT_THAT(message["tool_calls"][0]["id"].get<std::string>(), testing::StartsWith("call-"));
    EXPECT_EQ(message["tool_calls"][0]["type"], "function");
    EXPECT_EQ(message["tool_calls"][0]["function"],
              json({{"name", "weather"}, {"arguments", R"({"city": "Oslo"})"}}));
    const auto events =
        events_of(running.post(kChatPath, asked_chat({{"tools", {kFunction}}, {"stream", true}})).body);
    const json streamed = chat_of(events);
    EXPECT_EQ(streamed["finish_reason"], "tool_calls");
    EXPECT_EQ(streamed["message"]["role"], "assistant");
    EXPECT_EQ(streamed["message"]["content"], "I look.");
    EXPECT_EQ(streamed["message"]["tool_calls"][0]["function"], message["tool_calls"][0]["function"]);
}

TEST(ChatTools, WithoutContentItIsNull) {
    RunningServer running(answering(std::string(kCall) + "\n" + kCall));
    const json message =
        running.post(kChatPath, asked_chat({{"tools", {kFunction}}})).json()["choices"][0]["message"];
    EXPECT_TRUE(message["content"].is_null());
    EXPECT_EQ(message["tool_calls"].size(), 2U);
    EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
    // One call at a time: after the first, nothing may follow.
    const json one =
        running.post(kChatPath, asked_chat({{"tools", {kFunction}}, {"parallel_tool_calls", false}}))
            .json()["choices"][0];
    EXPECT_EQ(one["message"]["tool_calls"].size(), 1U);
    EXPECT_EQ(one["finish_reason"], "tool_calls");
}

TEST(ChatTools, AStopTextWithinACall) {
    RunningServer running(answering(kCall));
    const json choice =
        running.post(kChatPath, asked_chat({{"tools", {kFunction}}, {"stop", "Oslo"}})).json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop") << choice;
}

TEST(ChatTools, ChoicesOfTools) {
    std::string no_reasoning = kTemplate;
    no_reasoning.resize(no_reasoning.find("{# </think>"));
    RunningServer running(answering("Hello", no_reasoning.c_str()));
    const auto choice = [&](const json& tool_choice) {
        return running.post(kChatPath, asked_chat({{"tools", {kFunction}}, {"tool_choice", tool_choice}}))
            .json()["choices"][0];
    };
    EXPECT_EQ(choice("auto")["message"]["content"], "Hello");
    EXPECT_EQ(choice("none")["message"]["content"], "Hello");
    // The engine would say otherwise.
    for (const json& forced :
         {json("required"), json({{"type", "function"}, {"function", {{"name", "weather"}}}})}) {
        const json called = choice(forced);
        ASSERT_TRUE(called["message"].contains("tool_calls")) << called;
        EXPECT_EQ(called["message"]["tool_calls"][0]["function"]["name"], "weather");
    }
    // The tools are no part of the prompt when there are none to be called.
    const auto tokens = [&](const json& more) {
        return running.post(kChatPath, asked_chat(more)).json()["usage"]["prompt_tokens"].get<int>();
    };
    EXPECT_EQ(tokens({{"tools", {kFunction}}, {"tool_choice", "none"}}), tokens(json::object()));
    EXPECT_GT(tokens({{"tools", {kFunction}}}), tokens(json::object()) + 50);
}

TEST(ChatTools, CallsArePartOfLaterPrompts) {
    const ChatPrompt prompt(tokenizer(), kTemplate);
    const ChatRequest request = parse_chat_request(R"({"messages": [
        {"role": "user", "content": "Oslo?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function",
         "function": {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"}]})");
    EXPECT_EQ(prompt.text({request.messages, {}, {}}, [] {}),
              "<|user|>Oslo?<|assistant|><tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
              "\"Oslo\"}}\n"
              "</tool_call><|tool|>rain<|assistant|>");
}

// Written as Python's json.dumps() writes them, whatever their size.
TEST(ChatTools, NumbersAreKept) {
    const ChatPrompt prompt(tokenizer(), kTemplate);
    const ChatRequest request = parse_chat_request(R"({"messages": [
        {"role": "user", "content": "Oslo?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f",
         "arguments": "{\"a\": 48.856613, \"b\": 1.0, \"c\": 123456789.125, \"d\": 18446744073709551615, \"e\": -18446744073709551616}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
         "properties": {"a": {"type": "number", "minimum": -90.0, "default": 48.856613},
                        "d": {"type": "integer", "maximum": 1000000000000000000000000000000, "x-scale": 1e16}}}}}]})");
    nlohmann::ordered_json tools = nlohmann::ordered_json::array();
    for (const Tool& tool : request.tools) tools.push_back(tool.for_template());
    EXPECT_EQ(
        prompt.text({request.messages, tools, {}}, [] {}),
        "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", "
        "\"properties\": {\"a\": {\"type\": \"number\", \"minimum\": -90.0, \"default\": 48.856613}, "
        "\"d\": {\"type\": \"integer\", \"maximum\": 1000000000000000000000000000000, \"x-scale\": 1e+16}}}}}"
        "<|user|>Oslo?<|assistant|><tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 48.856613, \"b\": "
        "1.0, "
        "\"c\": 123456789.125, \"d\": 18446744073709551615, \"e\": -18446744073709551616}}\n"
        "</tool_call><|tool|>rain<|assistant|>");
}

// The interfaces that give arguments as JSON keep the numbers of a call as well.
TEST(ChatTools, NumbersOfAnswersAreKept) {
    const std::string call =
        R"({"name": "weather", "arguments": {"city": "Oslo", "n": [48.856613, 1.0, 18446744073709551615, -18446744073709551616]}})";
    RunningServer running(answering("<tool_call>\n" + call + "\n</tool_call>"));
    const std::string numbers = "[48.856613,1.0,18446744073709551615,-18446744073709551616]";
    const json ask = {
        {"model", "org/fake"}, {"messages", {{{"role", "user"}, {"content", "Oslo?"}}}}, {"stream", false}};
    json ollama = ask, messages = ask, function = kFunction;
    function["function"]["parameters"]["properties"]["n"] = {{"type", "array"},
                                                             {"items", {{"type", "number"}}}};
    ollama["tools"] = json::array({function});
    ollama["options"] = {{"num_predict", 400}};
    messages["max_tokens"] = 400;
    messages["tools"] =
        json::array({{{"name", "weather"}, {"input_schema", function["function"]["parameters"]}}});
    EXPECT_THAT(running.post("/api/chat", ollama).body, HasSubstr(numbers));
    EXPECT_THAT(running.post("/v1/messages", messages).body, HasSubstr(numbers));
}

// As most templates are: what is undefined by nature stands beside text.
TEST(ChatTools, TemplatesHaveStatements) {
    const ChatPrompt prompt(tokenizer(), R"({# a comment #}{% set name = "A" %}{% set ns = namespace(x=1) %}
{%- macro said(text) %}<{{ text }}>{% endmacro %}{{ name }}{{ said(messages[0].content) }})");
    const ChatPrompt wrong(tokenizer(), "{% set a = 1 %}{{ missing.member }}");
    const auto messages = nlohmann::ordered_json::array({{{"role", "user"}, {"content", "Hello"}}});
    EXPECT_EQ(prompt.text({messages, {}, {}}, [] {}), "A<Hello>");
    EXPECT_THROW(wrong.text({messages, {}, {}}, [] {}), Error);
    EXPECT_THROW(ChatPrompt(tokenizer(), "{% if %}"), Error);
}

TEST(ChatTools, Reasoning) {
    RunningServer running(answering("I think.\n</think>\n\nYes."));
    const json thinking = {{"chat_template_kwargs", {{"enable_thinking", true}}}};
    const json message = running.post(kChatPath, asked_chat(thinking)).json()["choices"][0]["message"];
    EXPECT_EQ(message["reasoning_content"], "I think.");
    EXPECT_EQ(message["content"], "Yes.");
    json streaming = thinking;
    streaming["stream"] = true;
    const json streamed = chat_of(events_of(running.post(kChatPath, asked_chat(streaming)).body));
    EXPECT_EQ(streamed["message"]["reasoning_content"], "I think.");
    EXPECT_EQ(streamed["message"]["content"], "Yes.");
    EXPECT_EQ(streamed["finish_reason"], "stop");
    // A format is the content's.
    json formatted = thinking;
    formatted["structured_outputs"] = {{"choice", {"Yes.", "No."}}};
    const json kept = running.post(kChatPath, asked_chat(formatted)).json()["choices"][0]["message"];
    EXPECT_EQ(kept["reasoning_content"], "I think.");
    EXPECT_EQ(kept["content"], "Yes.");
    // Without it, the text is what the model says.
    const json plain = running.post(kChatPath, asked_chat()).json()["choices"][0]["message"];
    EXPECT_FALSE(plain.contains("reasoning_content"));
    EXPECT_EQ(plain["content"], "I think.\n</think>\n\nYes.");
    expect_error(running.post(kChatPath, asked_chat({{"chat_template_kwargs", {{"thinking", true}}}})), 400,
                 "unsupported_parameter", "no variable 'thinking'");
}

TEST(ChatTools, LogprobsAreThoseOfAllTokens) {
    RunningServer running(answering(kCall));
    const json body =
        running.post(kChatPath, asked_chat({{"tools", {kFunction}}, {"logprobs", true}, {"top_logprobs", 1}}))
            .json();
    EXPECT_EQ(body["choices"][0]["logprobs"]["content"].size(), body["usage"]["completion_tokens"]);
    size_t streamed = 0;
    for (const json& event : events_of(
             running
                 .post(kChatPath, asked_chat({{"tools", {kFunction}}, {"logprobs", true}, {"stream", true}}))
                 .body)) {
        if (event.is_object() && !event["choices"][0]["logprobs"].is_null())
            streamed += event["choices"][0]["logprobs"]["content"].size();
    }
    EXPECT_EQ(streamed, body["usage"]["completion_tokens"]);
}

TEST(ChatTools, FormsThatAreNotKnown) {
    RunningServer running(answering("Hello", "{% for tool in tools %}{{ tool }}{% endfor %}<function=f>"));
    expect_error(running.post(kChatPath, asked_chat({{"tools", {kFunction}}})), 400, "unsupported_parameter",
                 "a form that this server does not know");
    json strict = kFunction;
    strict["function"]["strict"] = true;
    strict["function"]["parameters"]["properties"]["city"] = {{"uniqueItems", true}};
    RunningServer known(answering("Hello"));
    expect_error(known.post(kChatPath, asked_chat({{"tools", {strict}}})), 400, "invalid_function_parameters",
                 "'weather' is strict");
}

TEST(ChatTools, KnownTokensOfThePromptAreCounted) {
    RunningOptions setup;
    setup.scheduler.prefixes = true;
    RunningServer running(setup);
    const auto cached = [&](const json& body) {
        return running.post("/v1/completions", body)
            .json()["usage"]["prompt_tokens_details"]["cached_tokens"];
    };
    EXPECT_EQ(cached(completion({{"prompt", {5, 6, 7, 8}}})), 0);
    EXPECT_EQ(cached(completion({{"prompt", {5, 6, 7, 9}}})), 3);
    EXPECT_EQ(cached(completion({{"prompt", {5, 6, 7, 9}}, {"n", 3}})), 3);  // once for the prompt
}

TEST(Completions, TheBestOfSeveral) {
    RunningServer running;
    const json base = {{"temperature", 1.5}, {"seed", 3}, {"logprobs", 0}};
    json all = base, best = base;
    all["n"] = 6;
    best["best_of"] = 6;
    best["n"] = 2;
    std::vector<std::pair<double, std::string>> ranked;
    const json every = running.post("/v1/completions", completion(all)).json();
    for (const json& choice : every["choices"]) {
        double sum = 0;
        for (const json& logprob : choice["logprobs"]["token_logprobs"]) sum += logprob.get<double>();
        ranked.emplace_back(-sum, choice["text"]);
    }
    std::ranges::stable_sort(ranked, {}, &std::pair<double, std::string>::first);
    const json chosen = running.post("/v1/completions", completion(best)).json();
    ASSERT_EQ(chosen["choices"].size(), 2U);
    for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(chosen["choices"][i]["text"], ranked[i].second);
        EXPECT_EQ(chosen["choices"][i]["index"], i);
    }
    EXPECT_EQ(chosen["usage"]["completion_tokens"], 48);
    best.erase("logprobs");
    const json without = running.post("/v1/completions", completion(best)).json();
    EXPECT_EQ(without["choices"][0]["text"], ranked[0].second);
    EXPECT_TRUE(without["choices"][0]["logprobs"].is_null());
}

}  // namespace
}  // namespace refold
