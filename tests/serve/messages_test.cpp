// Anthropic's interface, over real connections, with an engine that says what it is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "serve/messages/messages_request.h"
#include "serve/running_server.h"
#include "serve/templates.h"

namespace refold {
namespace {

using testing::HasSubstr;

constexpr const char* kMessagesPath = "/v1/messages";

const json kCustomTool = {
    {"name", "weather"},
    {"description", "The weather of a city"},
    {"input_schema",
     {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}, {"required", {"city"}}}}};

json asked_message(const json& more = json::object()) {
    json body = {{"model", "org/fake"},
                 {"max_tokens", 400},
                 {"temperature", 0},
                 {"messages", {{{"role", "user"}, {"content", "Hello"}}}}};
    body.update(more);
    return body;
}

// The message of a stream, put together as Anthropic's client does.
json message_of(const std::string& body) {
    json message;
    std::string arguments;
    bool stopped = false;
    for (const auto& [name, data] : named_events_of(body)) {
        EXPECT_EQ(name, data["type"].get<std::string>());
        EXPECT_FALSE(stopped);
        if (name == "message_start") message = data["message"];
        if (name == "content_block_start") {
            EXPECT_EQ(data["index"], message["content"].size());
            message["content"].push_back(data["content_block"]);
        }
        if (name == "content_block_delta") {
            const json& delta = data["delta"];
            json& block = message["content"][data["index"].get<size_t>()];
            if (delta["type"] == "text_delta")
                block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
            if (delta["type"] == "thinking_delta")
                block["thinking"] =
                    block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
            if (delta["type"] == "input_json_delta") arguments += delta["partial_json"].get<std::string>();
        }
        if (name == "content_block_stop" && !arguments.empty())
            message["content"].back()["input"] = json::parse(std::exchange(arguments, {}));
        if (name == "message_delta") {
            message.update(data["delta"]);
            message["usage"] = data["usage"];
        }
        stopped = name == "message_stop";
    }
    EXPECT_TRUE(stopped);
    return message;
}

TEST(Messages, Text) {
    RunningServer running(answering("Hello you."));
    const HttpReply reply =
        running.post(kMessagesPath, asked_message({{"system", "Be brief."},
                                                   {"metadata", {{"user_id", "u"}}},
                                                   {"cache_control", {{"type", "ephemeral"}}}}));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json body = reply.json();
    EXPECT_THAT(body["id"].get<std::string>(), testing::StartsWith("msg-"));
    EXPECT_EQ(body["type"], "message");
    EXPECT_EQ(body["role"], "assistant");
    EXPECT_EQ(body["model"], "org/fake");
    EXPECT_EQ(body["content"], json({{{"type", "text"}, {"text", "Hello you."}}}));
    EXPECT_EQ(body["stop_reason"], "end_turn");
    EXPECT_TRUE(body["stop_sequence"].is_null());
    EXPECT_GT(body["usage"]["input_tokens"], 5);
    EXPECT_GT(body["usage"]["output_tokens"], 2);
    const json stopped = running.post(kMessagesPath, asked_message({{"stop_sequences", {" y"}}})).json();
    EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
    EXPECT_EQ(stopped["stop_sequence"], " y");
    EXPECT_EQ(stopped["content"][0]["text"], "Hello");
    EXPECT_EQ(running.post(kMessagesPath, asked_message({{"max_tokens", 1}})).json()["stop_reason"],
              "max_tokens");
    const json again = message_of(running.post(kMessagesPath, asked_message({{"stream", true}})).body);
    EXPECT_EQ(again["content"], body["content"]);
    EXPECT_EQ(again["stop_reason"], "end_turn");
    EXPECT_EQ(again["usage"]["output_tokens"], body["usage"]["output_tokens"]);
    EXPECT_GT(again["usage"]["cache_read_input_tokens"], 0);
}

TEST(Messages, CallsOfTools) {
    RunningServer running(answering(std::string("I look.\n") + kCall + "\n" + kCall));
    const json body = running.post(kMessagesPath, asked_message({{"tools", {kCustomTool}}})).json();
    ASSERT_EQ(body["content"].size(), 3U) << body;
    EXPECT_EQ(body["stop_reason"], "tool_use");
    EXPECT_EQ(body["content"][0]["text"], "I look.");
    EXPECT_EQ(body["content"][1]["type"], "tool_use");
    EXPECT_EQ(body["content"][1]["name"], "weather");
    EXPECT_EQ(body["content"][2]["input"], json({{"city", "Oslo"}}));
    const json streamed = message_of(
        running.post(kMessagesPath, asked_message({{"tools", {kCustomTool}}, {"stream", true}})).body);
    ASSERT_EQ(streamed["content"].size(), 3U) << streamed;
    EXPECT_EQ(streamed["content"][2]["input"], json({{"city", "Oslo"}}));
    EXPECT_EQ(streamed["stop_reason"], "tool_use");
    const json one =
        running
            .post(kMessagesPath,
                  asked_message({{"tools", {kCustomTool}},
                                 {"tool_choice", {{"type", "any"}, {"disable_parallel_tool_use", true}}}}))
            .json();
    ASSERT_EQ(one["content"].size(), 1U) << one;
    EXPECT_EQ(one["content"][0]["type"], "tool_use");
}

TEST(Messages, Thinking) {
    RunningServer running(answering("I think.\n</think>\n\nYes."));
    const json body = running
                          .post(kMessagesPath,
                                asked_message({{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}}))
                          .json();
    ASSERT_EQ(body["content"].size(), 2U) << body;
    EXPECT_EQ(body["content"][0]["type"], "thinking");
    EXPECT_EQ(body["content"][0]["thinking"], "I think.");
    EXPECT_EQ(body["content"][1]["text"], "Yes.");
    const json streamed = message_of(
        running.post(kMessagesPath, asked_message({{"thinking", {{"type", "enabled"}}}, {"stream", true}}))
            .body);
    EXPECT_EQ(streamed["content"], body["content"]);
}

TEST(Messages, BlocksAsTemplatesTakeThem) {
    const MessagesRequest r = parse_messages_request(R"({"max_tokens": 5,
        "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "T"}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                     {"role": "assistant", "content": [{"type": "thinking", "thinking": "R", "signature": ""},
                      {"type": "redacted_thinking", "data": "x"},
                      {"type": "text", "text": "c"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"z": 1, "a": 2}}]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
                      "content": [{"type": "text", "text": "d"}]}, {"type": "text", "text": "e"}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "tool", "name": "f"}})");
    EXPECT_EQ(r.messages, nlohmann::ordered_json::parse(R"([{"role": "system", "content": "S\nT"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c", "reasoning_content": "R", "tool_calls":
         [{"id": "t", "type": "function", "function": {"name": "f", "arguments": {"z": 1, "a": 2}}}]},
        {"role": "tool", "content": "d", "tool_call_id": "t", "name": "f"}, {"role": "user", "content": "e"}])"));
    EXPECT_EQ(r.choice.allowed, std::vector<std::string>{"f"});
    EXPECT_FALSE(r.choice.several);
}

TEST(Messages, TokensAreCounted) {
    RunningServer running(answering("Hello"));
    json body = asked_message({{"tools", {kCustomTool}}});
    const json usage = running.post(kMessagesPath, body).json()["usage"];
    body.erase("max_tokens");
    const HttpReply counted = running.post("/v1/messages/count_tokens", body);
    EXPECT_EQ(counted.json(), json({{"input_tokens", usage["input_tokens"]}}));
}

TEST(Messages, ErrorsHaveAnthropicsForm) {
    RunningServer running(answering("Hello"));
    const auto refused = [&](const json& more, const char* message) {
        const HttpReply reply = running.post(kMessagesPath, asked_message(more));
        EXPECT_EQ(reply.status, 400) << reply.body;
        const json body = reply.json();
        EXPECT_EQ(body["type"], "error");
        EXPECT_EQ(body["error"]["type"], "invalid_request_error");
        EXPECT_THAT(body["error"]["message"].get<std::string>(), HasSubstr(message));
    };
    refused({{"max_tokens", nullptr}}, "'max_tokens': missing");
    refused({{"messages", json::array()}}, "at least one message");
    refused({{"messages", {{{"role", "system"}, {"content", "a"}}}}}, "got role 'system'");
    refused({{"messages", {{{"role", "user"}, {"content", 5}}}}}, "got 5");
    refused({{"messages", {{{"role", "user"}, {"content", {{{"type", "image"}}}}}}}}, "type 'image'");
    refused({{"messages", {{{"role", "assistant"}, {"content", {{{"type", "image"}}}}}}}}, "type 'image'");
    refused({{"messages", {{{"role", "user"}, {"content", {{{"type", "tool_result"}}}}}}}}, "'tool_use_id'");
    refused({{"tools", {{{"type", "web_search_20250305"}, {"name", "web_search"}}}}},
            "'web_search_20250305'");
    refused({{"tool_choice", {{"type", "any"}}}}, "there are no tools");
    refused({{"tool_choice", {{"type", "all"}}}}, "got 'all'");
    refused({{"thinking", {{"type", "much"}}}}, "got 'much'");
    refused({{"output_config", {{"effort", "low"}}}}, "'effort'");
    refused({{"n", 2}}, "'n': got 2");
    refused({{"stop", "a"}, {"stop_sequences", {"b"}}}, "'stop_sequences'");
    refused({{"mcp_servers", json::array({1})}}, "'mcp_servers'");
    EXPECT_EQ(running.get(kMessagesPath).json()["type"], "error");
    const HttpReply unknown = running.get(std::string(kMessagesPath) + "/batches");
    EXPECT_EQ(unknown.status, 404);
    EXPECT_EQ(unknown.json()["type"], "error");
    RunningServer plain;
    const HttpReply thinking =
        plain.post(kMessagesPath, asked_message({{"thinking", {{"type", "enabled"}}}, {"max_tokens", 5}}));
    EXPECT_EQ(thinking.status, 400);
    EXPECT_THAT(thinking.body, HasSubstr("'thinking'"));
}

TEST(Messages, KeysComeInTheirHeader) {
    RunningOptions setup = answering("Hello");
    setup.server.api_keys = {{"secret"}};
    RunningServer running(setup);
    const HttpReply without = running.post(kMessagesPath, asked_message());
    EXPECT_EQ(without.status, 401);
    EXPECT_EQ(without.json()["error"]["type"], "authentication_error");
    EXPECT_EQ(running.post(kMessagesPath, asked_message(), "x-api-key: secret\r\n").status, 200);
    EXPECT_EQ(running.post(kMessagesPath, asked_message(), "x-api-key: other\r\n").status, 401);
    EXPECT_EQ(running.post(kMessagesPath, asked_message(), "Authorization: Bearer secret\r\n").status, 200);
}

TEST(Messages, AStreamThatBreaksOff) {
    RunningOptions setup = answering("Hello");
    setup.engine.on_step = [](std::span<const Row>) { fail(ErrorCode::internal, "fake", "on fire"); };
    RunningServer running(setup);
    const auto events = named_events_of(running.post(kMessagesPath, asked_message({{"stream", true}})).body);
    EXPECT_EQ(events.back().first, "error");
    EXPECT_EQ(events.back().second["error"]["type"], "api_error");
}

}  // namespace
}  // namespace refold
