// OpenAI's interface of items, over real connections, with an engine that says what it is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "serve/responses/responses_request.h"
#include "serve/running_server.h"
#include "serve/templates.h"

namespace refold {
namespace {

using testing::HasSubstr;

constexpr const char* kResponsesPath = "/v1/responses";

const json kFlatFunction = {
    {"type", "function"},
    {"name", "weather"},
    {"parameters",
     {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}, {"required", {"city"}}}}};

json asked_response(const json& more = json::object()) {
    json body = {{"model", "org/fake"}, {"temperature", 0}, {"max_output_tokens", 400}, {"input", "Hello"}};
    body.update(more);
    return body;
}

// The response that a stream ends with, after checking that its events tell the same.
json response_of(const std::string& body) {
    json output = json::array(), response;
    int64_t number = 0;
    for (const auto& [name, data] : named_events_of(body)) {
        EXPECT_EQ(json(name), data["type"]);
        EXPECT_EQ(data["sequence_number"], number++);
        const auto latest = [&]() -> json& {
            EXPECT_EQ(data["output_index"], output.size() - 1);
            EXPECT_EQ(data["item_id"], output.back()["id"]);
            return output.back();
        };
        if (name == "response.output_item.added") {
            EXPECT_EQ(data["item"]["status"], "in_progress");
            output.push_back(data["item"]);
        } else if (name == "response.content_part.added") {
            latest()["content"].push_back(data["part"]);
        } else if (name == "response.output_text.delta" || name == "response.reasoning_text.delta") {
            std::string& text = latest()["content"][0]["text"].get_ref<std::string&>();
            text += data["delta"].get<std::string>();
        } else if (name == "response.function_call_arguments.delta") {
            std::string& arguments = latest()["arguments"].get_ref<std::string&>();
            arguments += data["delta"].get<std::string>();
        } else if (name == "response.output_item.done") {
            output.back()["status"] = data["item"]["status"];
            EXPECT_EQ(output.back(), data["item"]);
        } else if (data.contains("response")) {
            response = data["response"];
        }
    }
    EXPECT_EQ(response["output"], output);
    return response;
}

TEST(Responses, Text) {
    RunningServer running(answering("Hello you."));
    const HttpReply reply =
        running.post(kResponsesPath, asked_response({{"instructions", "Be brief."}, {"store", true}}));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json body = reply.json();
    EXPECT_EQ(body["object"], "response");
    EXPECT_EQ(body["status"], "completed");
    EXPECT_EQ(body["store"], false);
    EXPECT_EQ(body["instructions"], "Be brief.");
    ASSERT_EQ(body["output"].size(), 1U);
    EXPECT_EQ(body["output"][0]["role"], "assistant");
    EXPECT_EQ(body["output"][0]["status"], "completed");
    EXPECT_EQ(body["output"][0]["content"][0]["type"], "output_text");
    EXPECT_EQ(body["output"][0]["content"][0]["text"], "Hello you.");
    EXPECT_EQ(body["usage"]["total_tokens"],
              body["usage"]["input_tokens"].get<int>() + body["usage"]["output_tokens"].get<int>());
    EXPECT_EQ(body["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
    const json streamed = response_of(running.post(kResponsesPath, asked_response({{"stream", true}})).body);
    EXPECT_EQ(streamed["status"], "completed");
    EXPECT_EQ(streamed["output"][0]["content"], body["output"][0]["content"]);
    const json cut = running.post(kResponsesPath, asked_response({{"max_output_tokens", 1}})).json();
    EXPECT_EQ(cut["status"], "incomplete");
    EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
}

TEST(Responses, CallsOfTools) {
    RunningServer running(answering(std::string("I look.\n") + kCall));
    const json body = running.post(kResponsesPath, asked_response({{"tools", {kFlatFunction}}})).json();
    ASSERT_EQ(body["output"].size(), 2U) << body;
    const json& call = body["output"][1];
    EXPECT_EQ(call["type"], "function_call");
    EXPECT_EQ(call["name"], "weather");
    EXPECT_EQ(call["arguments"], R"({"city": "Oslo"})");
    EXPECT_THAT(call["call_id"].get<std::string>(), testing::StartsWith("call-"));
    EXPECT_EQ(body["tools"], json({kFlatFunction}));
    const json streamed = response_of(
        running.post(kResponsesPath, asked_response({{"tools", {kFlatFunction}}, {"stream", true}})).body);
    EXPECT_EQ(streamed["output"][1]["arguments"], call["arguments"]);
    const json forced =
        running
            .post(kResponsesPath,
                  asked_response({{"tools", {kFlatFunction}},
                                  {"tool_choice", {{"type", "function"}, {"name", "weather"}}}}))
            .json();
    EXPECT_EQ(forced["output"][0]["type"], "function_call") << forced;
}

TEST(Responses, ReasoningAndFormats) {
    RunningServer running(answering("I think.\n</think>\n\n{\"a\": 1}"));
    const json schema = {
        {"type", "object"}, {"properties", {{"a", {{"type", "integer"}}}}}, {"required", {"a"}}};
    const json body =
        running
            .post(kResponsesPath,
                  asked_response(
                      {{"chat_template_kwargs", {{"enable_thinking", true}}},
                       {"text", {{"format", {{"type", "json_schema"}, {"name", "N"}, {"schema", schema}}}}}}))
            .json();
    ASSERT_EQ(body["output"].size(), 2U) << body;
    EXPECT_EQ(body["output"][0]["type"], "reasoning");
    EXPECT_EQ(body["output"][0]["content"][0]["text"], "I think.");
    EXPECT_EQ(body["output"][1]["content"][0]["text"], R"({"a": 1})");
    EXPECT_GT(body["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
    const json streamed = response_of(
        running
            .post(kResponsesPath,
                  asked_response({{"chat_template_kwargs", {{"enable_thinking", true}}}, {"stream", true}}))
            .body);
    EXPECT_EQ(streamed["output"][0]["type"], "reasoning");
}

TEST(Responses, ItemsAsTemplatesTakeThem) {
    const ResponsesRequest r = parse_responses_request(R"({"instructions": "I",
        "input": [{"role": "developer", "content": "S"},
                  {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
                  {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
                  {"type": "message", "id": "m", "status": "completed", "role": "assistant",
                   "content": [{"type": "output_text", "text": "b", "annotations": []}]},
                  {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{\"z\": 1}"},
                  {"type": "function_call_output", "call_id": "c", "output": "d"},
                  {"role": "assistant", "content": "e"}, {"role": "user", "content": "g"}]})");
    EXPECT_EQ(r.messages, nlohmann::ordered_json::parse(R"([{"role": "system", "content": "I\n\nS"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "R", "tool_calls":
         [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"z": 1}}}]},
        {"role": "tool", "content": "d", "tool_call_id": "c", "name": "f"},
        {"role": "assistant", "content": "e"}, {"role": "user", "content": "g"}])"));
}

TEST(Responses, WhatIsNotSupportedIsNamed) {
    RunningServer running(answering("Hello"));
    const auto refused = [&](const json& more, const char* message) {
        const HttpReply reply = running.post(kResponsesPath, asked_response(more));
        EXPECT_EQ(reply.status, 400) << reply.body;
        EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), HasSubstr(message));
    };
    refused({{"input", nullptr}}, "'input': got null");
    refused({{"input", json::array()}}, "at least one item");
    refused({{"input", {5}}}, "item 0: got 5");
    refused({{"input", {{{"type", "item_reference"}, {"id", "x"}}}}}, "'item_reference'");
    refused({{"input", {{{"role", "robot"}, {"content", "a"}}}}}, "'robot'");
    refused({{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}}, "'input_image'");
    refused({{"input", {{{"type", "function_call"}, {"call_id", "c"}}}}}, "'name'");
    refused({{"previous_response_id", "resp_1"}}, "responses are not stored");
    refused({{"background", true}}, "responses are not stored");
    refused({{"truncation", "auto"}}, "expected disabled");
    refused({{"include", {"file_search_call.results"}}}, "file_search_call.results");
    refused({{"text", {{"verbosity", "low"}}}}, "'verbosity'");
    refused({{"text", {{"format", {{"type", "xml"}}}}}}, "expected text, json_object or json_schema");
    refused({{"text", {{"format", {{"type", "json_object"}, {"indent", 2}}}}}}, "'indent': got 2");
    refused({{"reasoning", {{"effort", "much"}}}}, "'much'");
    refused({{"reasoning", {{"effort", "low"}}}}, "no variable 'reasoning_effort'");
    refused({{"tools", {{{"type", "web_search"}}}}}, "'web_search'");
    refused({{"n", 2}}, "'n': got 2");
    refused({{"conversation", "c"}}, "'conversation'");
}

TEST(Responses, AStreamThatBreaksOff) {
    RunningOptions setup = answering("Hello");
    setup.engine.on_step = [](std::span<const Row>) { fail(ErrorCode::internal, "fake", "on fire"); };
    RunningServer running(setup);
    const auto events =
        named_events_of(running.post(kResponsesPath, asked_response({{"stream", true}})).body);
    EXPECT_EQ(events.back().first, "response.failed");
    EXPECT_THAT(events.back().second["response"]["error"]["message"].get<std::string>(),
                HasSubstr("on fire"));
}

}  // namespace
}  // namespace refold
