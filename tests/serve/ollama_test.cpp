// Ollama's interface, over real connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "serve/ollama/requests.h"
#include "serve/running_encoder.h"
#include "serve/templates.h"

namespace refold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

json ollama_chat(const json& more = json::object()) {
    json body = {{"model", "org/fake"},
                 {"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                 {"options", {{"temperature", 0}, {"num_predict", 200}}}};
    body.update(more);
    return body;
}

json ollama_generate(const json& more = json::object()) {
    json body = {{"model", "org/fake:latest"},
                 {"prompt", "Hello"},
                 {"options", {{"temperature", 0}, {"num_predict", 200}}}};
    body.update(more);
    return body;
}

std::vector<json> lines_of(const HttpReply& reply) {
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.headers.at("content-type"), "application/x-ndjson");
    std::vector<json> lines;
    std::istringstream in(reply.body);
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
}

void expect_refused(const HttpReply& reply, const std::string& message) {
    EXPECT_EQ(reply.status, 400) << reply.body;
    ASSERT_TRUE(reply.json()["error"].is_string()) << reply.body;
    EXPECT_THAT(reply.json()["error"].get<std::string>(), HasSubstr(message));
}

TEST(Ollama, GenerateStreamsLines) {
    RunningServer running(answering("Hello you."));
    const auto lines = lines_of(running.post("/api/generate", ollama_generate()));
    std::string text;
    for (size_t i = 0; i < lines.size(); ++i) {
        EXPECT_EQ(lines[i]["model"], "org/fake");
        EXPECT_TRUE(lines[i]["created_at"].get<std::string>().ends_with("Z"));
        EXPECT_EQ(lines[i]["done"], i + 1 == lines.size());
        text += lines[i]["response"].get<std::string>();
    }
    EXPECT_EQ(text, "Hello you.");
    const json whole = running.post("/api/generate", ollama_generate({{"stream", false}})).json();
    EXPECT_EQ(whole["response"], "Hello you.");
    for (const json& last : {lines.back(), whole}) {
        EXPECT_EQ(last["done_reason"], "stop");
        EXPECT_EQ(last["eval_count"], tokenizer().encode("Hello you.", false, true).size());
        EXPECT_EQ(last["prompt_eval_count"],
                  tokenizer().encode("<|user|>Hello<|assistant|>", false, true).size());
        EXPECT_GT(last["prompt_eval_duration"], 0);
        EXPECT_GE(last["total_duration"], last["prompt_eval_duration"]);
        EXPECT_EQ(last["total_duration"],
                  last["prompt_eval_duration"].get<int64_t>() + last["eval_duration"].get<int64_t>());
        EXPECT_EQ(last["load_duration"], 0);
    }
}

TEST(Ollama, GenerateWithAndWithoutTheTemplate) {
    RunningServer running(answering("Hello."));
    const auto tokens = [&](const json& more) {
        const json reply = running.post("/api/generate", ollama_generate(more)).json();
        return reply.value("prompt_eval_count", 0);
    };
    const auto length = [](const std::string& text, bool bos) {
        return tokenizer().encode(text, bos, true).size();
    };
    EXPECT_EQ(tokens({{"stream", false}, {"raw", true}}), length("Hello", true));
    EXPECT_EQ(tokens({{"stream", false}, {"system", "Be brief."}}),
              length("<|system|>Be brief.<|user|>Hello<|assistant|>", false));
}

TEST(Ollama, ChatStreamsLines) {
    RunningServer running(answering("Hello you."));
    const auto lines = lines_of(running.post("/api/chat", ollama_chat()));
    std::string text;
    for (const json& line : lines) {
        EXPECT_EQ(line["message"]["role"], "assistant");
        text += line["message"]["content"].get<std::string>();
    }
    EXPECT_EQ(text, "Hello you.");
    EXPECT_EQ(lines.back()["done_reason"], "stop");
    const json whole = running.post("/api/chat", ollama_chat({{"stream", false}})).json();
    EXPECT_EQ(whole["message"], (json{{"role", "assistant"}, {"content", "Hello you."}}));
}

TEST(Ollama, ReasoningIsThinking) {
    RunningServer running(answering("I think.\n</think>\nHello."));
    const json whole = running.post("/api/chat", ollama_chat({{"stream", false}, {"think", true}})).json();
    EXPECT_EQ(whole["message"]["thinking"], "I think.") << whole;
    EXPECT_EQ(whole["message"]["content"], "Hello.");
    std::string thinking;
    for (const json& line : lines_of(running.post("/api/generate", ollama_generate({{"think", true}}))))
        thinking += line.value("thinking", "");
    EXPECT_EQ(thinking, "I think.");
    expect_refused(running.post("/api/chat", ollama_chat({{"think", "much"}})), "think");
}

TEST(Ollama, CallsOfTools) {
    const json tool = {
        {"type", "function"},
        {"function",
         {{"name", "weather"},
          {"parameters", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}}}};
    const json call = {{"function", {{"name", "weather"}, {"arguments", {{"city", "Oslo"}}}}}};
    RunningServer running(answering(kCall));
    const json whole = running.post("/api/chat", ollama_chat({{"stream", false}, {"tools", {tool}}})).json();
    EXPECT_EQ(whole["message"]["tool_calls"], json::array({call})) << whole;
    json told = json::array();
    for (const json& line : lines_of(running.post("/api/chat", ollama_chat({{"tools", {tool}}}))))
        for (const json& one : line["message"].value("tool_calls", json::array())) told.push_back(one);
    EXPECT_EQ(told, json::array({call}));

    // Results belong to the calls by their order.
    const OllamaChatRequest asked = parse_ollama_chat(json{
        {"messages",
         {{{"role", "user"}, {"content", "Weather?"}},
          {{"role", "assistant"}, {"tool_calls", {call, call}}},
          {{"role", "tool"}, {"content", "rain"}, {"tool_name", "weather"}},
          {{"role", "tool"}, {"content", "sun"}}}}}.dump());
    const json messages = asked.messages;
    EXPECT_EQ(messages[1]["tool_calls"][0]["id"], messages[2]["tool_call_id"]);
    EXPECT_EQ(messages[1]["tool_calls"][1]["id"], messages[3]["tool_call_id"]);
    EXPECT_NE(messages[2]["tool_call_id"], messages[3]["tool_call_id"]);
    EXPECT_EQ(messages[3]["name"], "weather");
}

TEST(Ollama, OptionsAreFollowed) {
    RunningServer running;
    const auto answer = [&](json options, const json& more = json::object()) {
        json body = ollama_generate({{"stream", false}, {"raw", true}, {"options", std::move(options)}});
        body.update(more);
        return running.post("/api/generate", body).json();
    };
    EXPECT_EQ(answer({{"num_predict", 3}, {"temperature", 0}})["eval_count"], 3);
    EXPECT_EQ(answer({{"num_predict", 3}, {"temperature", 0}})["done_reason"], "length");
    const size_t prompt = tokenizer().encode("Hello", true, true).size();
    EXPECT_EQ(answer({{"num_ctx", prompt + 4}, {"temperature", 0}, {"seed", 3}})["eval_count"], 4);
    EXPECT_EQ(answer({{"seed", 3}, {"temperature", 2}, {"num_predict", 20}})["response"],
              answer({{"seed", 3}, {"temperature", 2}, {"num_predict", 20}})["response"]);
    const json schema = {{"type", "object"},
                         {"properties", {{"city", {{"enum", {"Oslo"}}}}}},
                         {"required", {"city"}},
                         {"additionalProperties", false}};
    const json formed = answer({{"temperature", 0}, {"num_predict", 100}}, {{"format", schema}});
    EXPECT_EQ(json::parse(formed["response"].get<std::string>()), (json{{"city", "Oslo"}}));
    const json told =
        answer({{"temperature", 0}, {"num_predict", 2}}, {{"logprobs", true}, {"top_logprobs", 3}});
    ASSERT_EQ(told["logprobs"].size(), 2U) << told;
    EXPECT_EQ(told["logprobs"][0]["top_logprobs"].size(), 3U);
    // Ollama's own, and what is the server's to decide.
    const auto read = [](const json& options) {
        return parse_ollama_generate(json{{"prompt", "A"}, {"options", options}}.dump());
    };
    const OllamaGenerateRequest plain = read({{"num_thread", 3}, {"num_gpu", 99}, {"mirostat", 0}});
    EXPECT_EQ(read({{"mirostat", 2}, {"mirostat_tau", 3}}).options.sampling.mirostat_tau, 3);
    EXPECT_EQ(plain.options.sampling.temperature, 0.8);
    EXPECT_EQ(plain.options.sampling.top_k, 40);
    EXPECT_EQ(plain.options.sampling.top_p, 0.9);
    EXPECT_EQ(plain.max_tokens, std::nullopt);
    EXPECT_TRUE(plain.stream);
    EXPECT_EQ(read({{"seed", -1}, {"num_predict", -1}}).seed, std::nullopt);
    EXPECT_EQ(read({{"stop", {"a", "b"}}}).options.stop, (std::vector<std::string>{"a", "b"}));
}

TEST(Ollama, WhatIsRefusedIsNamed) {
    RunningServer running;
    const auto generate = [&](const json& more) {
        return running.post("/api/generate", ollama_generate(more));
    };
    expect_refused(generate({{"images", {"aGk="}}}), "'images'");
    expect_refused(generate({{"template", "{{ .Prompt }}"}}), "'template'");
    expect_refused(generate({{"suffix", "end"}}), "'suffix'");
    expect_refused(generate({{"context", {1, 2}}}), "'context'");
    expect_refused(generate({{"system", "A"}, {"raw", true}}), "'system'");
    expect_refused(generate({{"options", {{"mirostat", 3}}}}), "'options.mirostat'");
    expect_refused(generate({{"options", {{"top_p", 3}}}}), "'options.top_p'");
    expect_refused(generate({{"options", {{"temperatur", 1}}}}), "'options.temperatur': unknown field");
    expect_refused(generate({{"options", {{"num_ctx", 1}}}}), "'num_ctx' allows 1");
    expect_refused(generate({{"format", "xml"}}), "'format'");
    expect_refused(
        running.post("/api/chat", ollama_chat({{"messages", {{{"role", "user"}, {"images", {"aGk="}}}}}})),
        "'images' is not supported");
    expect_refused(running.post("/api/embed", {{"input", "A"}}), "is a decoder");
    const HttpReply other = generate({{"model", "other"}});
    EXPECT_EQ(other.status, 404);
    EXPECT_THAT(other.json()["error"].get<std::string>(), HasSubstr("'other'"));
    EXPECT_EQ(running.get("/api/chat").status, 405);
    EXPECT_TRUE(running.get("/api/chat").json()["error"].is_string());
    EXPECT_EQ(running.get("/api/unknown").status, 404);
    EXPECT_TRUE(running.get("/api/unknown").json()["error"].is_string());
}

TEST(Ollama, NothingToSayLoadsTheModel) {
    RunningServer running;
    const json generate =
        running.post("/api/generate", {{"model", "org/fake"}, {"keep_alive", "10m"}}).json();
    EXPECT_EQ(generate["done_reason"], "load");
    EXPECT_EQ(generate["response"], "");
    const json chat = running.post("/api/chat", {{"model", "org/fake"}, {"messages", json::array()}}).json();
    EXPECT_EQ(chat["done_reason"], "load");
    EXPECT_EQ(chat["message"]["content"], "");
}

TEST(Ollama, ModelsAreListedAndShown) {
    RunningServer running(answering("Hello."));
    const json tags = running.get("/api/tags").json()["models"];
    ASSERT_EQ(tags.size(), 1U);
    EXPECT_EQ(tags[0]["name"], "org/fake");
    EXPECT_EQ(tags[0]["modified_at"], "1970-01-01T00:00:05.000000Z");
    EXPECT_EQ(tags[0]["digest"].get<std::string>().size(), 64U);
    EXPECT_EQ(running.get("/api/ps").json()["models"][0]["context_length"], 4096);
    EXPECT_TRUE(running.get("/api/version").json()["version"].is_string());
    const json shown = running.post("/api/show", {{"model", "org/fake:latest"}}).json();
    EXPECT_EQ(shown["details"]["family"], "fake");
    EXPECT_EQ(shown["model_info"]["general.architecture"], "fake");
    EXPECT_EQ(shown["capabilities"], (json{"completion", "tools", "thinking"}));
    EXPECT_EQ(shown["template"], kTemplate);
    EXPECT_EQ(running.get("/").status, 200);
}

TEST(Ollama, Embeddings) {
    RunningEncoder running;
    const json many =
        running.post("/api/embed", {{"input", {"A text", "Another one"}}, {"keep_alive", 5}}).json();
    const json openai = running.post("/v1/embeddings", {{"input", {"A text", "Another one"}}}).json();
    ASSERT_EQ(many["embeddings"].size(), 2U) << many;
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(many["embeddings"][i], openai["data"][i]["embedding"]);
    EXPECT_EQ(many["prompt_eval_count"], openai["usage"]["prompt_tokens"]);
    EXPECT_EQ(running.post("/api/embeddings", {{"prompt", "A text"}}).json()["embedding"],
              many["embeddings"][0]);
    std::string longer;
    for (int i = 0; i < 300; ++i) longer += "text ";
    EXPECT_EQ(running.post("/api/embed", {{"input", longer}}).json()["prompt_eval_count"], 256);
    expect_refused(running.post("/api/embed", {{"input", longer}, {"truncate", false}}),
                   "the context holds 256");
    expect_refused(running.post("/api/generate", {{"prompt", "A"}}), "generates no text");
    EXPECT_EQ(running.post("/api/show", json::object()).json()["capabilities"], json{"embedding"});
}

TEST(ApplyTemplate, GivesTheText) {
    RunningServer running(answering("Hello."));
    EXPECT_EQ(running.post("/apply-template", chat()).json(),
              (json{{"prompt", "<|user|>Hello<|assistant|>"}}));
    expect_error(running.post("/apply-template", {{"messages", json::array()}}), 400, "",
                 "at least one message");
}

}  // namespace
}  // namespace refold
