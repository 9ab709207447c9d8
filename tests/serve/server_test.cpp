// The server over real connections, with a fake engine.
#include "serve/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <thread>

#include "core/error.h"
#include "serve/chat_prompt.h"
#include "serve/gate.h"
#include "serve/page.h"
#include "serve/running_server.h"

namespace refold {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// As `curl -d` sends them.
TEST(Server, BodiesOfOthersThanBrowsersAreJsonWhateverTheyAreCalled) {
    RunningServer running;
    const std::string body = completion({{"max_tokens", 2}, {"user", std::string(20000, '&')}}).dump();
    for (const char* type :
         {"Content-Type: application/x-www-form-urlencoded\r\n", "Content-Type: text/plain\r\n", ""}) {
        HttpClient client = running.client();
        client.send(fmt::format("POST /v1/completions HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n{}", type,
                                body.size(), body));
        const HttpReply reply = client.receive();
        EXPECT_EQ(reply.status, 200) << type << reply.body;
    }
}

TEST(Server, Completion) {
    RunningServer running;
    const HttpReply reply = running.post("/v1/completions", completion());
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json body = reply.json();
    EXPECT_EQ(body["object"], "text_completion");
    EXPECT_EQ(body["model"], "org/fake");
    EXPECT_TRUE(body["id"].get<std::string>().starts_with("cmpl-"));
    EXPECT_GT(body["created"], 1'600'000'000);
    ASSERT_EQ(body["choices"].size(), 1U);
    EXPECT_EQ(body["choices"][0]["index"], 0);
    EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
    EXPECT_TRUE(body["choices"][0]["logprobs"].is_null());
    EXPECT_FALSE(body["choices"][0]["text"].get<std::string>().empty());
    EXPECT_EQ(body["usage"], json({{"prompt_tokens", 3},
                                   {"completion_tokens", 8},
                                   {"total_tokens", 11},
                                   {"prompt_tokens_details", {{"cached_tokens", 0}}}}));
    // The model's name may be left out; log and metrics record the request.
    json without = completion();
    without.erase("model");
    EXPECT_EQ(running.post("/v1/completions", without).json()["choices"], body["choices"]);
    ASSERT_TRUE(running.soon([&] { return running.log().size() == 2; }));
    const ServedRequest logged = running.log()[0];
    EXPECT_EQ(logged.method + " " + logged.path, "POST /v1/completions");
    EXPECT_EQ(logged.status, 200);
    EXPECT_EQ(logged.prompt_tokens, 3);
    EXPECT_EQ(logged.completion_tokens, 8);
    EXPECT_THAT(logged.client, testing::StartsWith("127.0.0.1:"));
}

TEST(Server, ChoicesOfSeveralPromptsAreInOrder) {
    RunningOptions setup;
    setup.scheduler.slots = 2;
    setup.scheduler.queue = 1;  // choices of one request wait for room in the queue
    RunningServer running(setup);
    std::vector<std::string> alone;
    json prompts = json::array();
    for (int i = 0; i < 6; ++i) {
        const json prompt = {5 + i, 9, 11};
        prompts.push_back(prompt);
        alone.push_back(
            running.post("/v1/completions", completion({{"prompt", prompt}})).json()["choices"][0]["text"]);
    }
    const HttpReply reply = running.post("/v1/completions", completion({{"prompt", prompts}, {"n", 2}}));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json body = reply.json();
    ASSERT_EQ(body["choices"].size(), 12U);
    for (size_t i = 0; i < 12; ++i) {
        EXPECT_EQ(body["choices"][i]["index"], i);
        EXPECT_EQ(body["choices"][i]["text"], alone[i / 2]);
    }
    EXPECT_EQ(body["usage"]["prompt_tokens"], 18);
    EXPECT_EQ(body["usage"]["completion_tokens"], 96);
    // The same as a stream.
    const auto events = events_of(
        running.post("/v1/completions", completion({{"prompt", prompts}, {"n", 2}, {"stream", true}})).body);
    std::vector<std::string> texts(12);
    for (size_t i = 0; i + 1 < events.size(); ++i)
        texts[events[i]["choices"][0]["index"].get<size_t>()] +=
            events[i]["choices"][0]["text"].get<std::string>();
    for (size_t i = 0; i < 12; ++i) EXPECT_EQ(texts[i], alone[i / 2]);
}

TEST(Server, SeedsDecideSamples) {
    RunningServer running;
    const auto texts = [&](json more) {
        more["temperature"] = 1.5;
        std::vector<std::string> out;
        const HttpReply reply = running.post("/v1/completions", completion(more));
        EXPECT_EQ(reply.status, 200) << reply.body;
        const json body = reply.json();  // iterating over part of a temporary would dangle
        for (const json& choice : body["choices"]) out.push_back(choice["text"]);
        return out;
    };
    const auto first = texts({{"seed", 3}, {"n", 3}});
    ASSERT_EQ(first.size(), 3U);
    EXPECT_EQ(texts({{"seed", 3}, {"n", 3}}), first);
    EXPECT_NE(first[0], first[1]);
    EXPECT_NE(first[1], first[2]);
    EXPECT_NE(texts({{"seed", 4}})[0], first[0]);
    EXPECT_NE(texts(json::object()), texts(json::object()));
    EXPECT_NE(texts({{"seed", 3 + (int64_t{1} << 32)}})[0], first[0]);  // all 64 bits count
    EXPECT_EQ(texts({{"seed", 3}, {"prompt", {{5, 6, 7}, {5, 6, 7}}}}), (std::vector{first[0], first[0]}));
}

// The requests of lm-evaluation-harness's local-completions, and the fields that it reads.
TEST(Server, EchoedPromptsAreScored) {
    RunningServer running;
    const json body = running
                          .post("/v1/completions", completion({{"prompt", {{5, 6, 7, 8}, {9, 10}}},
                                                               {"max_tokens", 1},
                                                               {"logprobs", 1},
                                                               {"echo", true},
                                                               {"ignore_eos", false},
                                                               {"seed", 1234}}))
                          .json();
    for (const auto& [index, length] : {std::pair<size_t, size_t>{0, 4}, {1, 2}}) {
        const json& choice = body["choices"][index];
        const json& logprobs = choice["logprobs"];
        for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
            ASSERT_EQ(logprobs[list].size(), length + 1) << list;
        EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
        EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
        for (size_t i = 1; i <= length; ++i) {
            const double own = logprobs["token_logprobs"][i];
            EXPECT_LT(own, 0);
            const json& top = logprobs["top_logprobs"][i];
            double most = -1e9;
            for (const auto& [token, value] : top.items()) most = std::max(most, value.get<double>());
            EXPECT_EQ(top[logprobs["tokens"][i].get<std::string>()].get<double>(), own);
            EXPECT_GE(most, own);
            if (i == length) {
                EXPECT_EQ(most, own);  // generated, greedily
            }
        }
    }
    // Scored alone, the same result; without echo, only the generated tokens.
    const json none =
        running.post("/v1/completions", completion({{"max_tokens", 0}, {"logprobs", 0}, {"echo", true}}))
            .json();
    EXPECT_EQ(none["choices"][0]["logprobs"]["tokens"].size(), 3U);
    EXPECT_TRUE(none["choices"][0]["logprobs"]["top_logprobs"][2].is_null());
    EXPECT_EQ(none["usage"]["completion_tokens"], 0);
    EXPECT_EQ(none["choices"][0]["text"], tokenizer().decode(std::vector<int32_t>{5, 6, 7}, true));
    const json plain = running.post("/v1/completions", completion({{"logprobs", 2}})).json();
    EXPECT_EQ(plain["choices"][0]["logprobs"]["tokens"].size(), 8U);
    EXPECT_EQ(plain["choices"][0]["logprobs"]["text_offset"][0], 0);
}

TEST(Server, TheEchoedTextIsThePrompt) {
    RunningServer running;
    for (const char* prompt : {"One sentence, and another.", "Ünïcödé 漢字 🙂", " space first"}) {
        const json asked = completion({{"prompt", prompt}, {"echo", true}, {"logprobs", 1}});
        const json body = running.post("/v1/completions", asked).json();
        const std::string text = body["choices"][0]["text"];
        EXPECT_TRUE(text.starts_with(prompt)) << text;
        const json& logprobs = body["choices"][0]["logprobs"];
        int64_t before = 0;
        for (const json& offset : logprobs["text_offset"]) {
            EXPECT_GE(offset.get<int64_t>(), before);
            before = offset;
        }
        json streamed = asked;
        streamed["stream"] = true;
        std::string joined;
        json tokens = json::array();
        const auto events = events_of(running.post("/v1/completions", streamed).body);
        for (size_t i = 0; i + 1 < events.size(); ++i) {
            const json& choice = events[i]["choices"][0];
            joined += choice["text"].get<std::string>();
            for (const json& token : choice["logprobs"]["tokens"]) tokens.push_back(token);
        }
        EXPECT_EQ(joined, text);
        EXPECT_EQ(tokens, logprobs["tokens"]);
    }
}

TEST(Server, LongPromptsLogprobsComeInOnePieceOfAStream) {
    RunningOptions setup;
    setup.scheduler.prefill_rows = 5;
    setup.engine.step_time = 3ms;  // so that texts would arrive in parts
    RunningServer running(setup);
    std::vector<int32_t> prompt;
    for (int32_t i = 0; i < 40; ++i) prompt.push_back(5 + i);
    const auto events = events_of(
        running
            .post("/v1/completions",
                  completion({{"prompt", prompt}, {"echo", true}, {"logprobs", 1}, {"stream", true}}))
            .body);
    EXPECT_GE(events[0]["choices"][0]["logprobs"]["tokens"].size(), 41U);
    EXPECT_TRUE(events[0]["choices"][0]["logprobs"]["token_logprobs"][0].is_null());
    EXPECT_FALSE(events[0]["choices"][0]["logprobs"]["token_logprobs"][39].is_null());
}

TEST(Server, Chat) {
    RunningServer running;
    const HttpReply reply =
        running.post("/v1/chat/completions", chat({{"logprobs", true}, {"top_logprobs", 2}}));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json body = reply.json();
    EXPECT_EQ(body["object"], "chat.completion");
    EXPECT_TRUE(body["id"].get<std::string>().starts_with("chatcmpl-"));
    const json& choice = body["choices"][0];
    EXPECT_EQ(choice["message"]["role"], "assistant");
    EXPECT_FALSE(choice["message"]["content"].get<std::string>().empty());
    EXPECT_EQ(choice["finish_reason"], "length");
    ASSERT_EQ(choice["logprobs"]["content"].size(), 8U);
    for (const json& token : choice["logprobs"]["content"]) {
        ASSERT_EQ(token["top_logprobs"].size(), 2U);
        EXPECT_EQ(token["top_logprobs"][0]["logprob"], token["logprob"]);
        EXPECT_TRUE(token["bytes"].is_array());
    }
    // Parts of a content are joined, and developer is the new name of system.
    const json parts = {{{"role", "developer"}, {"content", "S"}},
                        {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Hello"}}}}}};
    const json whole = {{{"role", "system"}, {"content", "S"}}, {{"role", "user"}, {"content", "Hello"}}};
    EXPECT_EQ(running.post("/v1/chat/completions", chat({{"messages", parts}})).json()["choices"],
              running.post("/v1/chat/completions", chat({{"messages", whole}})).json()["choices"]);
    // Without a limit, generation fills the context.
    json endless = chat();
    endless.erase("max_tokens");
    const json filled = running.post("/v1/chat/completions", endless).json();
    EXPECT_EQ(filled["usage"]["total_tokens"], 256);
}

TEST(Server, StreamedChat) {
    RunningOptions setup;
    setup.engine.step_time = 2ms;
    RunningServer running(setup);
    const std::string whole =
        running.post("/v1/chat/completions", chat()).json()["choices"][0]["message"]["content"];
    const HttpReply reply = running.post(
        "/v1/chat/completions",
        chat({{"stream", true}, {"stream_options", {{"include_usage", true}}}, {"logprobs", true}}));
    ASSERT_EQ(reply.status, 200);
    EXPECT_TRUE(reply.complete);
    EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream");
    const auto events = events_of(reply.body);
    ASSERT_GE(events.size(), 3U);
    EXPECT_EQ(events.back(), "[DONE]");
    const json& usage = events[events.size() - 2];
    EXPECT_EQ(usage["choices"], json::array());
    EXPECT_EQ(usage["usage"]["completion_tokens"], 8);
    std::string text;
    size_t tokens = 0;
    for (size_t i = 0; i + 2 < events.size(); ++i) {
        EXPECT_EQ(events[i]["object"], "chat.completion.chunk");
        EXPECT_EQ(events[i]["id"], events[0]["id"]);
        EXPECT_TRUE(events[i]["usage"].is_null());
        const json& choice = events[i]["choices"][0];
        EXPECT_EQ(choice["delta"].contains("role"), i == 0);
        text += choice["delta"].value("content", "");
        if (!choice["logprobs"].is_null()) tokens += choice["logprobs"]["content"].size();
        EXPECT_EQ(choice["finish_reason"], i + 3 == events.size() ? json("length") : json());
    }
    EXPECT_EQ(text, whole);
    EXPECT_EQ(tokens, 8U);
}

// Of every token, those of texts that are held back included.
TEST(Server, ExitsOfTokens) {
    RunningOptions setup;
    setup.engine.loops = 3;
    setup.engine.step_time = 2ms;
    setup.scheduler.exit = {.rule = ExitRule::fixed, .loop = 2};
    RunningServer running(setup);
    const json expected = {3, 2, 2, 2, 2, 2, 2, 2};  // the prompt's last token runs all loops
    const json more = {{"return_exits", true}, {"logit_bias", {{"40", 100}}}};
    EXPECT_EQ(running.post("/v1/completions", completion(more)).json()["choices"][0]["exits"], expected);
    std::string nearly;
    for (int i = 0; i < 6; ++i) nearly += tokenizer().piece(40, false);
    json streamed = more;
    streamed.update({{"stream", true}, {"stop", nearly + "\x01"}});
    json exits = json::array();
    size_t without_text = 0;
    const auto events = events_of(running.post("/v1/chat/completions", chat(streamed)).body);
    for (size_t i = 0; i + 1 < events.size(); ++i) {
        const json& choice = events[i]["choices"][0];
        for (const json& loop : choice["exits"]) exits.push_back(loop);
        without_text += choice["delta"].value("content", "").empty();
    }
    EXPECT_EQ(exits, expected);
    EXPECT_EQ(without_text, 0U);
    EXPECT_FALSE(running.post("/v1/chat/completions", chat()).json()["choices"][0].contains("exits"));
}

TEST(Server, AnswersHaveTheirFormat) {
    RunningServer running;
    const json schema =
        json::parse(R"({"type": "object", "required": ["kind", "count"], "additionalProperties": false,
        "properties": {"kind": {"enum": ["a", "b"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}}})");
    const json format = {{"type", "json_schema"}, {"json_schema", {{"name", "thing"}, {"schema", schema}}}};
    const json asked = {{"max_tokens", 200}, {"temperature", 1}, {"n", 3}, {"response_format", format}};
    const HttpReply reply = running.post("/v1/chat/completions", chat(asked));
    ASSERT_EQ(reply.status, 200) << reply.body;
    const json answer = reply.json();
    for (const json& choice : answer["choices"]) {
        const json document = json::parse(choice["message"]["content"].get<std::string>());
        EXPECT_TRUE(document["kind"] == "a" || document["kind"] == "b") << document;
        EXPECT_TRUE(document["count"].is_number_integer());
        EXPECT_EQ(choice["finish_reason"], "stop");
    }
    // Properties come in the client's order, which JSON libraries may sort.
    const HttpReply ordered = running.client().post(
        "/v1/completions",
        R"({"prompt": [5, 6], "max_tokens": 200, "json_schema": {"type": "object", "required": ["z", "a"],
            "properties": {"z": {"const": 1}, "a": {"const": 2}}}})");
    const std::string text = ordered.json()["choices"][0]["text"];
    EXPECT_LT(text.find("\"z\""), text.find("\"a\"")) << ordered.body;
    // One that the length ends is incomplete, and says so.
    const json cut =
        running.post("/v1/completions", completion({{"max_tokens", 2}, {"guided_regex", "a{50}"}})).json();
    EXPECT_EQ(cut["choices"][0]["finish_reason"], "length");
    expect_error(running.post("/v1/completions", completion({{"json_schema", {{"uniqueItems", true}}}})), 400,
                 "invalid_format", "'uniqueItems' cannot be enforced");
    expect_error(running.post("/v1/completions", completion({{"grammar", "root ::= missing"}})), 400,
                 "invalid_format", "missing");
}

// A format that takes longer and longer to follow is its client's fault.
TEST(Server, FormatsThatTakeTooLong) {
    RunningOptions setup;
    setup.engine.context = setup.engine.kv_tokens = 12000;
    setup.answer = std::string(11000, 'a');
    RunningServer running(setup);
    json body = completion({{"max_tokens", 11000}, {"guided_regex", "(((a{1,100}){1,100}){1,100}){1,100}"}});
    expect_error(running.post("/v1/completions", body), 400, "invalid_format", "takes too long");
    body["stream"] = true;
    EXPECT_THAT(running.post("/v1/completions", body).body, HasSubstr("takes too long"));
}

TEST(Server, StopTexts) {
    RunningServer running;
    const std::string whole =
        running.post("/v1/completions", completion({{"max_tokens", 40}})).json()["choices"][0]["text"];
    size_t at = whole.size() / 2;
    while ((static_cast<unsigned char>(whole[at]) & 0xC0) == 0x80) ++at;
    size_t end = at + 1;
    while (end < whole.size() && (static_cast<unsigned char>(whole[end]) & 0xC0) == 0x80) ++end;
    const std::string stop = whole.substr(at, end - at);
    for (const json& given : {json(stop), json({"\x01never", stop})}) {
        const json choice = running.post("/v1/completions", completion({{"max_tokens", 40}, {"stop", given}}))
                                .json()["choices"][0];
        EXPECT_EQ(choice["text"], whole.substr(0, whole.find(stop)));
        EXPECT_EQ(choice["finish_reason"], "stop");
    }
}

TEST(Server, BiasPenaltiesAndStopTokens) {
    RunningServer running;
    // A bias that outweighs all logits makes every token the same; a penalty makes the next one another.
    const json biased = running.post("/v1/completions", completion({{"logit_bias", {{"40", 100}}}})).json();
    const std::string one = tokenizer().piece(40, false);
    std::string eight;
    for (int i = 0; i < 8; ++i) eight += one;
    EXPECT_EQ(biased["choices"][0]["text"], eight);
    const json penalized =
        running
            .post("/v1/completions", completion({{"logit_bias", {{"40", 12}}}, {"repetition_penalty", 50}}))
            .json();
    EXPECT_NE(penalized["choices"][0]["text"], eight);
    const HttpReply all =
        running.post("/v1/completions",
                     completion({{"presence_penalty", 2}, {"frequency_penalty", 2}, {"repeat_last_n", -1}}));
    EXPECT_EQ(all.status, 200) << all.body;
    const json stopped =
        running.post("/v1/completions", completion({{"logit_bias", {{"40", 100}}}, {"stop_token_ids", {40}}}))
            .json();
    EXPECT_EQ(stopped["choices"][0]["text"], "");
    EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
    EXPECT_EQ(stopped["usage"]["completion_tokens"], 0);
    expect_error(running.post("/v1/completions", completion({{"logit_bias", {{"99999", 1}}}})), 400, "",
                 "the vocabulary has");
    EXPECT_EQ(running.post("/v1/chat/completions", chat({{"min_p", 0.1}, {"stop_token_ids", {5}}})).status,
              200);
}

TEST(Server, ErrorsNameTheField) {
    RunningServer running;
    const auto expect_field = [&](const char* path, const json& body, const char* field) {
        const HttpReply reply = running.post(path, body);
        EXPECT_EQ(reply.status, 400) << reply.body;
        EXPECT_EQ(reply.json()["error"]["param"], field) << reply.body;
    };
    const char *const completions = "/v1/completions", *const chats = "/v1/chat/completions";
    expect_field(completions, completion({{"logit_bias", {{"1000000", 1}}}}), "logit_bias");
    expect_field(completions, completion({{"stop_token_ids", {1000000}}}), "stop_token_ids");
    expect_field(completions, completion({{"prompt", std::vector<int>(256, 5)}}), "prompt");
    expect_field(completions, completion({{"grammar", "root ::= ("}}), "grammar");
    expect_field(completions, completion({{"guided_regex", "("}}), "guided_regex");
    const json long_text = {{{"role", "user"}, {"content", std::string(100000, 'a')}}};
    expect_field(chats, {{"messages", long_text}}, "messages");
    expect_field("/v1/responses", {{"input", std::string(100000, 'a')}}, "input");
}

TEST(Server, WrongRequests) {
    RunningServer running;
    expect_error(running.client().post("/v1/completions", "{"), 400, "invalid_json", "not JSON");
    expect_error(running.post("/v1/completions", completion({{"model", "gpt-4"}})), 404, "model_not_found",
                 "gpt-4");
    expect_error(running.post("/v1/chat/completions", chat({{"model", "gpt-4"}})), 404, "model_not_found",
                 "gpt-4");
    expect_error(running.post("/v1/completions", completion({{"prompt", json::array({json::array()})}})), 400,
                 "empty_prompt", "empty");
    expect_error(running.post("/v1/completions", completion({{"prompt", {1'000'000'000}}})), 400, "",
                 "1000000000");
    expect_error(running.post("/v1/completions", completion({{"prompt", std::vector<int>(256, 5)}})), 400,
                 "context_length_exceeded", "256");
    EXPECT_EQ(running.post("/v1/completions", completion({{"prompt", std::vector<int>(255, 5)}})).status,
              200);
    EXPECT_EQ(running
                  .post("/v1/completions",
                        completion({{"prompt", std::vector<int>(256, 5)}, {"max_tokens", 0}, {"echo", true}}))
                  .status,
              200);
    const json function = {{"type", "function"}, {"function", {{"name", "f"}}}};
    expect_error(running.post("/v1/chat/completions", chat({{"tools", {function}}})), 400,
                 "unsupported_parameter", "no place for tools");
    // Results whose calls the template leaves out would say something else.
    const json call = {{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
    const json called = {{{"role", "user"}, {"content", "A"}},
                         {{"role", "assistant"}, {"tool_calls", {call}}},
                         {{"role", "tool"}, {"tool_call_id", "c"}, {"content", "B"}}};
    expect_error(running.post("/v1/chat/completions", chat({{"messages", called}})), 400,
                 "unsupported_parameter", "template does not write");
    expect_error(running.post("/v1/chat/completions", chat({{"reasoning_effort", "low"}})), 400,
                 "unsupported_parameter", "'reasoning_effort'");
    expect_error(running.post("/v1/completions", completion({{"suffix", "b"}})), 400, "unsupported_parameter",
                 "no tokens for filling in the middle");
    expect_error(running.get("/nothing"), 404, "unknown_url", "/nothing");
    expect_error(running.get("/v1/models/other"), 404, "model_not_found", "other");
    const HttpReply get = running.get("/v1/completions");
    expect_error(get, 405, "method_not_allowed", "POST");
    EXPECT_EQ(get.headers.at("allow"), "POST");
    expect_error(running.post("/health", json::object()), 405, "method_not_allowed", "GET");
    for (const char* browsers : {"Origin: http://a", "Sec-Fetch-Site: cross-site"}) {
        HttpClient form = running.client();
        form.send(
            fmt::format("POST /v1/completions HTTP/1.1\r\nContent-Type: text/plain\r\n{}\r\n"
                        "Content-Length: 2\r\n\r\n{{}}",
                        browsers));
        expect_error(form.receive(), 415, "unsupported_media_type", "application/json");
    }
    expect_error(running.client().post("/v1/completions", "{}", "Content-Encoding: gzip\r\n"), 415,
                 "unsupported_media_type", "Content-Encoding");
    // After all that the server still answers, also on connections with well-formed requests.
    HttpClient client = running.client();
    EXPECT_EQ(client.post("/v1/completions", "{").status, 400);
    EXPECT_EQ(client.post("/v1/completions", completion().dump()).status, 200);
}

TEST(Server, MalformedHttp) {
    RunningServer running;
    const auto answer = [&](const std::string& text) {
        HttpClient client = running.client();
        client.send(text);
        HttpReply reply = client.receive();
        EXPECT_TRUE(client.at_end()) << "open after: " << text.substr(0, 60);
        return reply;
    };
    expect_error(answer("POST /v1/completions HTTP/1.1\r\n\r\n"), 411, "", "Content-Length");
    expect_error(answer("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"), 400,
                 "", "both");
    expect_error(answer("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}}\r\n"), 400, "",
                 "chunk");
    expect_error(answer("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n900000\r\n"), 413, "", "large");
    expect_error(answer("GET / HTTP/1.1\r\nA: " + std::string(9000, 'a') + "\r\n\r\n"), 431, "", "header");
    expect_error(answer("POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"), 413, "",
                 "large");
    expect_error(answer("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n"), 400, "",
                 "Length");
    expect_error(answer("GET / HTTP/1.1\r\nA: " + std::string(100'000, 'a')), 431, "", "headers");
    for (const char* text :
         {"nonsense\r\nConnection: close\r\n\r\n", "GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
          "\x16\x03\x01\x02 TLS\r\nConnection: close\r\n\r\n"}) {
        HttpClient client = running.client();
        client.send(text);
        expect_error(client.receive(), 400, "", "HTTP");
    }
    EXPECT_EQ(running.get("/health").status, 200);
}

TEST(Server, HttpAsItIsSpoken) {
    RunningServer running;
    HttpClient client = running.client();
    // Two requests at once, the second in pieces.
    const std::string second = post_text("/v1/completions", completion().dump());
    client.send("GET /health HTTP/1.1\r\n\r\n" + second.substr(0, 30));
    EXPECT_EQ(client.receive().json(), json({{"status", "ok"}}));
    for (size_t i = 30; i < second.size(); i += 50) client.send(second.substr(i, 50));
    EXPECT_EQ(client.receive().status, 200);
    // A client that sends Expect: 100-continue.
    const std::string body = completion().dump();
    client.send(
        "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json; charset=utf-8\r\nExpect: "
        "100-continue\r\nContent-Length: " +
        std::to_string(body.size()) + "\r\n\r\n");
    ASSERT_TRUE(client.wait_for("HTTP/1.1 100"));
    client.send(body);
    EXPECT_EQ(client.receive().status, 200);
    const HttpReply head = [&] {
        HttpClient asking = running.client();
        asking.send("HEAD /health HTTP/1.1\r\nConnection: close\r\n\r\n");
        HttpReply reply;
        EXPECT_TRUE(asking.wait_for("200 OK"));
        EXPECT_TRUE(asking.at_end());
        return reply;
    }();
    // An HTTP/1.0 client gets no chunks.
    HttpClient old = running.client();
    const std::string asked = completion({{"stream", true}}).dump();
    old.send("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
             std::to_string(asked.size()) + "\r\n\r\n" + asked);
    const HttpReply streamed = old.receive();
    EXPECT_FALSE(streamed.headers.contains("transfer-encoding"));
    EXPECT_EQ(events_of(streamed.body).back(), "[DONE]");
}

TEST(Server, BodiesInChunks) {
    RunningServer running;
    const std::string body = completion().dump();
    const std::string expected = running.client().post("/v1/completions", body).json()["choices"][0]["text"];
    std::string chunks;
    for (size_t at = 0; at < body.size(); at += 7)
        chunks += fmt::format("{:x}\r\n{}\r\n", std::min<size_t>(7, body.size() - at), body.substr(at, 7));
    const std::string head =
        "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: "
        "chunked\r\nHost: "
        "localhost\r\n";
    const std::string request = head + "\r\n" + chunks + "0\r\n\r\n";
    // Whole and in pieces, on one connection, the next request behind it.
    HttpClient client = running.client();
    client.send(request + request);
    EXPECT_EQ(client.receive().json()["choices"][0]["text"], expected);
    EXPECT_EQ(client.receive().json()["choices"][0]["text"], expected);
    for (size_t i = 0; i < request.size(); i += 40) client.send(request.substr(i, 40));
    EXPECT_EQ(client.receive().json()["choices"][0]["text"], expected);
    client.send(head + "Expect: 100-continue\r\n\r\n");
    ASSERT_TRUE(client.wait_for("HTTP/1.1 100"));
    client.send(chunks + "0\r\n\r\nGET /health HTTP/1.1\r\n\r\n");
    EXPECT_EQ(client.receive().json()["choices"][0]["text"], expected);
    EXPECT_EQ(client.receive().json(), json({{"status", "ok"}}));
}

// Whatever a page resolves to this machine stands in the header Host.
TEST(Server, OnlyOwnNamesWithoutAKey) {
    const auto get = [](const RunningServer& running, const std::string& host) {
        HttpClient client = running.client();
        client.send("GET /v1/models HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
        return client.receive();
    };
    {
        RunningServer running;
        expect_error(get(running, "evil.example:8080"), 403, "host_not_allowed", "Host");
        for (const char* host : {"localhost:8080", "127.0.0.1", "[::1]:8080"})
            EXPECT_EQ(get(running, host).status, 200) << host;
    }
    RunningOptions setup;
    setup.server.api_keys = {{"key"}};
    RunningServer running(setup);
    EXPECT_EQ(get(running, "evil.example").status, 401);
}

TEST(Server, Models) {
    RunningServer running;
    const json list = running.get("/v1/models").json();
    ASSERT_EQ(list["data"].size(), 1U);
    EXPECT_EQ(list["data"][0]["id"], "org/fake");
    EXPECT_EQ(running.get("/v1/models/org/fake").json(), list["data"][0]);
    EXPECT_EQ(running.get("/v1/models/org%2Ffake").status, 200);
}

TEST(Server, Tokens) {
    RunningServer running;
    const std::string text = "Some text, 漢字.";
    const json tokens =
        running.post("/tokenize", {{"prompt", text}, {"add_special_tokens", false}}).json()["tokens"];
    EXPECT_EQ(tokens.get<std::vector<int32_t>>(), tokenizer().encode(text, false, true));
    for (const char* name : {"prompt", "content"})
        EXPECT_EQ(running.post("/detokenize", {{"tokens", tokens}}).json()[name], text);
    // As llama.cpp's server.
    EXPECT_EQ(running.post("/tokenize", {{"content", text}}).json()["tokens"], tokens);
    const json pieces =
        running.post("/tokenize", {{"content", "Some"}, {"with_pieces", true}}).json()["tokens"];
    EXPECT_EQ(pieces[0]["id"], tokenizer().encode("Some", false, true).front());
    EXPECT_EQ(pieces[0]["piece"], tokenizer().piece(pieces[0]["id"].get<int32_t>(), true));
    expect_error(running.post("/tokenize", {{"content", "a"}, {"prompt", "b"}}), 400, "", "either");
    expect_error(running.post("/detokenize", {{"tokens", {1'000'000'000}}}), 400, "", "1000000000");
    EXPECT_TRUE(running.get("/tokenizer_info").json().contains("eos_token"));
}

TEST(Server, KeysAreAskedFor) {
    RunningOptions setup;
    setup.server.api_keys = {{"first-key"}, {"second-key"}};
    RunningServer running(setup);
    for (const char* header : {"", "Authorization: Bearer \r\n", "Authorization: Bearer first-ke\r\n",
                               "Authorization: Bearer first-key2\r\n", "Authorization: Basic first-key\r\n",
                               "Authorization: first-key\r\n"}) {
        for (const char* path : {"/v1/models", "/metrics", "/status", "/nothing", "/tokenizer_info"})
            expect_error(running.get(path, header), 401, "invalid_api_key", "Bearer");
        expect_error(running.post("/v1/completions", completion(), header), 401, "invalid_api_key", "Bearer");
        EXPECT_EQ(running.get("/health", header).status, 200);
        EXPECT_EQ(running.get("/", header).status, 200);
    }
    for (const char* key : {"first-key", "second-key"})
        for (const char* scheme : {"Bearer ", "bearer ", "BEARER "})
            EXPECT_EQ(
                running.get("/v1/models", "Authorization: " + (scheme + std::string(key)) + "\r\n").status,
                200);
    setup.server.api_keys = {{"with space"}};
    EXPECT_THROW(RunningServer{setup}, Error);
}

TEST(Server, OtherOriginsOnlyWhenAllowed) {
    EXPECT_FALSE(RunningServer().get("/health").headers.contains("access-control-allow-origin"));
    const auto preflight = [](const RunningServer& running, const std::string& origin,
                              const std::string& headers) {
        HttpClient client = running.client();
        client.send("OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin + "\r\n" +
                    headers + "\r\n");
        return client.receive();
    };
    RunningOptions setup;
    setup.server.cors_origin = "https://example.org";
    setup.server.api_keys = {{"key"}};
    RunningServer running(setup);
    EXPECT_EQ(running.get("/health").headers.at("access-control-allow-origin"), "https://example.org");
    const HttpReply plain = preflight(running, "https://example.org", "");
    EXPECT_EQ(plain.status, 204);
    EXPECT_THAT(plain.headers.at("access-control-allow-headers"), HasSubstr("Authorization"));
    // OpenAI's client sends headers of its own.
    const std::string asked = "authorization,content-type,x-stainless-os";
    const std::string asks = "Access-Control-Request-Headers: " + asked + "\r\n";
    EXPECT_EQ(preflight(running, "https://example.org", asks).headers.at("access-control-allow-headers"),
              asked);
    EXPECT_FALSE(
        preflight(running, "https://evil.example", asks).headers.contains("access-control-allow-headers"));
    RunningOptions any;
    any.server.cors_origin = "*";
    EXPECT_EQ(preflight(RunningServer(any), "https://evil.example", asks)
                  .headers.at("access-control-allow-headers"),
              asked);
}

TEST(Server, Page) {
    RunningServer running;
    const HttpReply reply = running.get("/");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("content-type"), "text/html; charset=utf-8");
    EXPECT_EQ(reply.body, kPage);
    const std::string policy = reply.headers.at("content-security-policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
    EXPECT_THAT(policy, testing::Not(HasSubstr("unsafe")));
    // The page loads nothing from elsewhere, and nothing that its policy forbids.
    for (const char* text : {"src=", "@import", "url(", "style=\"", "onclick", "innerHTML", "https://"})
        EXPECT_EQ(reply.body.find(text), std::string::npos) << text;
    EXPECT_EQ(reply.body.find("http://", reply.body.find("http://www.w3.org/2000/svg") + 10),
              std::string::npos);
}

TEST(Server, StatusAndMetrics) {
    RunningOptions setup;
    setup.engine.loops = 3;
    setup.scheduler.exit = {.rule = ExitRule::fixed, .loop = 2};
    RunningServer running(setup);
    running.post("/v1/completions", completion());
    running.get("/nothing");
    ASSERT_TRUE(running.soon([&] { return running.log().size() == 2; }));
    const json status = running.get("/status").json();
    EXPECT_EQ(status["model"], "org/fake");
    EXPECT_EQ(status["description"]["architecture"], "fake");
    EXPECT_EQ(status["generated_tokens"], 8);
    EXPECT_EQ(status["exits"], json({0, 7, 1}));  // the prompt's last token runs all loops
    EXPECT_EQ(status["last_rows_at"].size(), 3U);
    const HttpReply metrics = running.get("/metrics");
    EXPECT_EQ(metrics.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    const std::string model = "{model_name=\"org/fake\"";
    for (const std::string& line :
         {std::string("refold_http_requests_total{endpoint=\"/v1/completions\",status=\"200\"} 1"),
          std::string("refold_http_requests_total{endpoint=\"other\",status=\"404\"} 1"),
          "refold_prompt_tokens_total" + model + "} 3", "refold_generated_tokens_total" + model + "} 8",
          "refold_exit_tokens_total" + model + ",loop=\"2\"} 7",
          "refold_requests_finished_total" + model + ",reason=\"length\"} 1", "refold_slots" + model + "} 8",
          "refold_time_to_first_token_seconds_count" + model + "} 1",
          "refold_time_between_tokens_seconds_count" + model + "} 7",
          "refold_time_between_tokens_seconds_bucket" + model + ",le=\"+Inf\"} 7",
          std::string("refold_build_info{version=\"0\"}")})
        EXPECT_THAT(metrics.body, HasSubstr("\n" + line));
    // Every line is a comment or "name{labels} value", and every name has a TYPE line.
    std::set<std::string> introduced;
    std::istringstream lines(metrics.body);
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("# TYPE ")) introduced.insert(line.substr(7, line.find(' ', 7) - 7));
        if (line.starts_with('#')) continue;
        std::string name = line.substr(0, line.find_first_of("{ "));
        for (const char* suffix : {"_bucket", "_sum", "_count"})
            if (name.ends_with(suffix) && !introduced.contains(name))
                name.resize(name.size() - std::string_view(suffix).size());
        EXPECT_TRUE(introduced.contains(name)) << line;
        EXPECT_NO_THROW(std::stod(line.substr(line.rfind(' ')))) << line;
    }
}

TEST(Server, FullQueue) {
    Gate gate;
    RunningOptions setup;
    setup.engine.on_step = gate.hook();
    setup.scheduler.slots = 1;
    setup.scheduler.queue = 1;
    RunningServer running(setup);
    HttpClient first = running.client(), second = running.client();
    first.send(post_text("/v1/completions", completion().dump()));
    ASSERT_TRUE(running.soon([&] { return running.engine().open_sequences() == 1; }));
    second.send(post_text("/v1/completions", completion().dump()));
    ASSERT_TRUE(running.soon([&] { return running.scheduler().status().waiting == 1; }));
    for (const bool stream : {false, true}) {
        const HttpReply third = running.post("/v1/completions", completion({{"stream", stream}}));
        expect_error(third, 429, "queue_full", "queue is full");
        EXPECT_EQ(third.headers.at("retry-after"), "1");
    }
    EXPECT_EQ(running.get("/health").status, 200);
    gate.open();
    EXPECT_EQ(first.receive().status, 200);
    EXPECT_EQ(second.receive().status, 200);
}

// When a client leaves, the next one gets its slot.
TEST(Server, ClientsThatLeaveAreForgotten) {
    for (const bool stream : {false, true}) {
        RunningOptions setup;
        setup.engine.step_time = 1ms;
        setup.engine.context = setup.engine.kv_tokens = 100'000;
        setup.scheduler.slots = 1;
        RunningServer running(setup);
        {
            HttpClient leaving = running.client();
            leaving.send(post_text("/v1/completions",
                                   completion({{"max_tokens", 90'000}, {"stream", stream}}).dump()));
            if (stream) {
                ASSERT_TRUE(leaving.wait_for("data: "));
            }
            ASSERT_TRUE(running.soon([&] { return running.scheduler().status().generated_tokens > 2; }));
        }
        EXPECT_EQ(running.post("/v1/completions", completion()).status, 200);
        EXPECT_EQ(running.scheduler().status().finished[FinishReason::cancelled], 1U);
        ASSERT_TRUE(running.soon([&] { return running.log().size() == 2; }));
        EXPECT_EQ(running.log()[0].status, 499);
    }
}

TEST(Server, RequestsThatTakeTooLong) {
    RunningOptions setup;
    setup.engine.step_time = 2ms;
    setup.engine.context = setup.engine.kv_tokens = 100'000;
    setup.scheduler.timeout = 60ms;
    RunningServer running(setup);
    const json endless = completion({{"max_tokens", 90'000}});
    expect_error(running.post("/v1/completions", endless), 504, "timeout", "longer");
    json streamed = endless;
    streamed["stream"] = true;
    const auto events = events_of(running.post("/v1/completions", streamed).body);
    EXPECT_EQ(events.back()["error"]["code"], "timeout");
}

// Also while a step of the engine takes longer than the request may.
TEST(Server, StepsThatTakeTooLong) {
    Gate gate;
    RunningOptions setup;
    setup.engine.on_step = gate.hook();
    setup.scheduler.timeout = 50ms;
    RunningServer running(setup);
    expect_error(running.post("/v1/completions", completion()), 504, "timeout", "longer");
    const auto events = events_of(running.post("/v1/completions", completion({{"stream", true}})).body);
    EXPECT_EQ(events.back()["error"]["code"], "timeout");
    gate.open();
}

// The time of a request is that of all its choices.
TEST(Server, ManyChoicesTakeTooLong) {
    Gate gate;
    RunningOptions setup;
    std::atomic<int> steps = 0;
    setup.engine.step_time = 20ms;
    setup.engine.on_step = [&](std::span<const Row>) { ++steps; };
    setup.scheduler.timeout = 300ms;
    setup.scheduler.slots = 1;
    RunningServer running(setup);
    // Each choice takes about 160 ms, all of them minutes.
    const json prompts(1000, {5, 6, 7});
    expect_error(running.post("/v1/completions", completion({{"prompt", prompts}})), 504, "timeout",
                 "longer");
    EXPECT_LT(steps, 100);
    const auto events =
        events_of(running.post("/v1/completions", completion({{"prompt", prompts}, {"stream", true}})).body);
    EXPECT_EQ(events.back()["error"]["code"], "timeout");
    EXPECT_LT(steps, 200);
}

// Clients that do not take their answers hold all workers; health and metrics have one of their own.
TEST(Server, HealthWhileAllWorkersAreBusy) {
    RunningOptions setup;
    setup.scheduler.slots = 1;
    setup.scheduler.queue = 0;
    setup.server.most_memory = size_t{4} << 30;
    RunningServer running(setup);
    // More text than the system's buffers hold for a client that does not read.
    int32_t longest = 0;
    for (int32_t id = 0; id < tokenizer().size(); ++id)
        if (tokenizer().piece(id, true).size() > tokenizer().piece(longest, true).size()) longest = id;
    const size_t count = (4 << 20) / tokenizer().piece(longest, true).size();
    const std::string request =
        post_text("/detokenize", json({{"tokens", std::vector<int32_t>(count, longest)}}).dump());
    std::vector<HttpClient> lazy;
    for (int i = 0; i < 17; ++i) {  // as many as there are workers
        lazy.push_back(running.client(1024));
        lazy.back().send(request);
    }
    ASSERT_TRUE(running.soon([&] {
        // When this one has to wait, all workers are held.
        HttpClient other = running.client();
        other.send("GET /v1/models HTTP/1.1\r\n\r\n");
        return !other.wait_for("HTTP/1.1", 500ms);
    }));
    EXPECT_EQ(running.get("/health").status, 200);
    EXPECT_EQ(running.get("/metrics").status, 200);
    EXPECT_EQ(running.get("/status").status, 200);
}

TEST(Server, HealthIsNotLogged) {
    RunningServer running;
    EXPECT_EQ(running.get("/health").status, 200);
    EXPECT_EQ(running.get("/v1/models").status, 200);
    ASSERT_TRUE(running.soon([&] { return !running.log().empty(); }));
    EXPECT_EQ(running.log()[0].path, "/v1/models");
}

// Bodies that would take long to read, or long to cut into tokens, are refused before that.
TEST(Server, BodiesThatCannotFit) {
    RunningServer running;
    std::string values = "1";
    for (int i = 0; i < 1'100'000; ++i) values += ",1";
    expect_error(running.client().post("/v1/completions", R"({"prompt": "a", "metadata": [)" + values + "]}"),
                 400, "invalid_json", "values");
    size_t longest = 0;
    for (int32_t id = 0; id < tokenizer().size(); ++id)
        longest = std::max(longest, tokenizer().piece(id, true).size());
    const std::string text((256 + 1) * longest, 'a');
    expect_error(running.post("/v1/completions", completion({{"prompt", text}})), 400,
                 "context_length_exceeded", "bytes");
    expect_error(
        running.post("/v1/chat/completions", chat({{"messages", {{{"role", "user"}, {"content", text}}}}})),
        400, "context_length_exceeded", "bytes");
    const json messages(257, {{"role", "user"}, {"content", ""}});
    expect_error(running.post("/v1/chat/completions", chat({{"messages", messages}})), 400,
                 "context_length_exceeded", "257 messages");
    expect_error(running.post("/tokenize", {{"prompt", std::string((1 << 20) + 1, 'a')}}), 400, "", "bytes");
    RunningOptions setup;
    setup.engine.context = setup.engine.kv_tokens = 100'000;
    const json more(4097, {{"role", "user"}, {"content", ""}});
    expect_error(RunningServer(setup).post("/v1/chat/completions", chat({{"messages", more}})), 400, "",
                 "4097 messages");
}

// Objects with many keys are read in linear time: with a search over all of them this takes minutes.
TEST(Server, ManyKeys) {
    RunningServer running;
    std::string keys = "\"0\":{}";
    for (int i = 1; i < 400'000; ++i) keys += fmt::format(",\"{}\":{{}}", i);
    HttpClient client = running.client();
    client.send(
        post_text("/v1/completions", R"({"prompt": [5], "max_tokens": 1, "metadata": {)" + keys + "}}"));
    EXPECT_EQ(client.receive().status, 200);
}

// An answer that is collected takes memory; one that is streamed does not.
TEST(Server, MemoryOfAnswersIsBounded) {
    RunningOptions setup;
    setup.server.most_memory = 4 << 20;
    RunningServer running(setup);
    json many = completion({{"n", 16}, {"max_tokens", 200}, {"logprobs", 5}, {"ignore_eos", true}});
    expect_error(running.post("/v1/completions", many), 413, "out_of_memory", "fewer choices");
    many["stream"] = true;
    EXPECT_EQ(running.post("/v1/completions", many).status, 200);
    EXPECT_EQ(running.post("/v1/completions", completion({{"max_tokens", 200}, {"logprobs", 5}})).status,
              200);
}

TEST(Server, MemoryOfBodiesIsShared) {
    Gate gate;
    RunningOptions setup;
    setup.engine.on_step = gate.hook();
    setup.server.most_memory = 1 << 20;
    RunningServer running(setup);
    // Its text is kept while the request runs.
    const json large = completion({{"user", std::string(200'000, 'a')}});
    HttpClient first = running.client();
    first.send(post_text("/v1/completions", large.dump()));
    ASSERT_TRUE(running.soon([&] { return running.engine().open_sequences() == 1; }));
    const HttpReply second = running.post("/v1/completions", large);
    expect_error(second, 503, "out_of_memory", "memory");
    EXPECT_EQ(second.headers.at("retry-after"), "1");
    const HttpReply larger =
        running.post("/v1/completions", completion({{"user", std::string(600'000, 'a')}}));
    expect_error(larger, 413, "out_of_memory", "memory");
    gate.open();
    EXPECT_EQ(first.receive().status, 200);
    // Its memory is free soon after its answer.
    EXPECT_TRUE(running.soon([&] { return running.post("/v1/completions", large).status == 200; }));
}

TEST(Server, TheAssistantsLastMessageIsContinued) {
    RunningServer running;
    const json messages = {{{"role", "user"}, {"content", "Hello"}},
                           {{"role", "assistant"}, {"content", "It is well known that "}}};
    const json continued = running.post("/v1/chat/completions", chat({{"messages", messages}})).json();
    // The same as the text that the template writes up to there.
    const nlohmann::ordered_json user = {{"role", "user"}, {"content", "Hello"}};
    const std::string begun =
        ChatPrompt(tokenizer()).text({.messages = {user}, .tools = {}, .variables = {}}, [] {});
    const json prompt = tokenizer().encode(begun + "It is well known that ", false, true);
    const json completed = running.post("/v1/completions", completion({{"prompt", prompt}})).json();
    EXPECT_EQ(continued["usage"]["total_tokens"], completed["usage"]["total_tokens"]);
    EXPECT_EQ(continued["choices"][0]["message"]["content"], completed["choices"][0]["text"]);
}

TEST(Server, AnEngineThatFails) {
    RunningOptions setup;
    std::atomic<bool> failing = true;
    setup.engine.on_step = [&](std::span<const Row>) {
        if (failing) fail(ErrorCode::internal, "fake", "the machine is on fire");
    };
    RunningServer running(setup);
    expect_error(running.post("/v1/completions", completion()), 500, "", "on fire");
    const auto events = events_of(running.post("/v1/chat/completions", chat({{"stream", true}})).body);
    EXPECT_THAT(events.back()["error"]["message"].get<std::string>(), HasSubstr("on fire"));
    failing = false;
    EXPECT_EQ(running.post("/v1/completions", completion()).status, 200);
}

TEST(Server, SlowAndSilentClients) {
    RunningOptions setup;
    setup.server.read_timeout = 1000ms;
    setup.server.idle_timeout = 2000ms;
    setup.scheduler.slots = 1;
    setup.scheduler.queue = 0;  // few workers
    RunningServer running(setup);
    std::vector<HttpClient> slow;
    for (int i = 0; i < 60; ++i) {  // more than there are workers
        slow.push_back(running.client());
        slow.back().send(i % 2 == 0 ? "POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{\"pro"
                                    : "GET /health HTTP/1.1\r\nA:");
    }
    HttpClient silent = running.client();
    EXPECT_EQ(running.post("/v1/completions", completion()).status, 200);
    for (HttpClient& client : slow) expect_error(client.receive(), 408, "", "in time");
    EXPECT_TRUE(silent.at_end());
}

// A client that does not read its answer holds a worker only until its time is up.
TEST(Server, ClientsThatDoNotRead) {
    RunningOptions setup;
    setup.server.write_timeout = 200ms;
    setup.engine.context = setup.engine.kv_tokens = 1 << 20;
    RunningServer running(setup);
    HttpClient lazy = running.client(1024);
    // Far more than the system's buffers hold.
    lazy.send(post_text("/v1/completions",
                        completion({{"max_tokens", 200'000}, {"stream", true}, {"logprobs", 20}}).dump()));
    ASSERT_TRUE(running.soon([&] { return !running.log().empty(); }));
    EXPECT_EQ(running.log()[0].status, 499);
    EXPECT_EQ(running.post("/v1/completions", completion()).status, 200);
}

TEST(Server, ManyConnections) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < 3000) GTEST_SKIP() << "the system allows " << limit.rlim_max << " open files";
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    RunningOptions setup;
    setup.scheduler.queue = 100;
    RunningServer running(setup);
    const std::string expected = running.post("/v1/completions", completion()).json()["choices"][0]["text"];
    std::vector<HttpClient> clients;
    for (int i = 0; i < 1000; ++i) clients.push_back(running.client());
    for (const HttpClient& client : clients) {
        ASSERT_TRUE(client.connected());
        client.send(post_text("/v1/completions", completion().dump()));
    }
    int answered = 0, refused = 0;
    for (HttpClient& client : clients) {
        const HttpReply reply = client.receive();
        if (reply.status == 200) {
            EXPECT_EQ(reply.json()["choices"][0]["text"], expected);
            ++answered;
        } else {
            EXPECT_EQ(reply.status, 429);
            ++refused;
        }
    }
    EXPECT_EQ(answered + refused, 1000);
    EXPECT_GE(answered, 100);
    // All connections are still open, and the next request is served at once.
    EXPECT_EQ(clients[500].get("/health").status, 200);
    EXPECT_EQ(running.get("/health").status, 200);
}

TEST(Server, ConnectionsThatOnlyWaitMakeRoomForOthers) {
    RunningOptions setup;
    setup.server.connections = 20;
    RunningServer running(setup);
    const auto begun = [&] {
        HttpClient client = running.client();
        client.send(
            "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\nExpect: "
            "100-continue\r\n\r\n");
        EXPECT_TRUE(client.wait_for("100 Continue"));
        return client;
    };
    std::vector<HttpClient> idle, slow;
    for (int i = 0; i < 10; ++i) slow.push_back(begun());
    for (int i = 0; i < 50; ++i) {
        idle.push_back(running.client());
        EXPECT_EQ(running.get("/health").status, 200);
    }
    // Those that have begun a request stay longer.
    slow[0].send("{}");
    EXPECT_EQ(slow[0].receive().status, 400);
    for (int i = 0; i < 50; ++i) {
        slow.push_back(begun());
        EXPECT_EQ(running.get("/health").status, 200);
    }
}

TEST(Server, LongBodiesThatNeverEndDoNotKeepShortRequestsOut) {
    RunningOptions setup;
    setup.server.most_memory = 4 << 20;
    RunningServer running(setup);
    std::vector<HttpClient> slow;
    for (int i = 0; i < 20; ++i) {
        slow.push_back(running.client());
        slow.back().send("POST /v1/completions HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n" +
                         std::string(400000, ' '));
        EXPECT_EQ(running.post("/v1/completions", completion()).status, 200);
    }
}

TEST(Server, ShutdownLetsRunningRequestsFinish) {
    Gate gate;
    RunningOptions setup;
    setup.engine.on_step = gate.hook();
    RunningServer running(setup);
    HttpClient whole = running.client(), streamed = running.client(), idle = running.client(),
               partial = running.client();
    EXPECT_EQ(idle.get("/health").status, 200);
    partial.send("POST /v1/completions HTTP/1.1\r\nContent-Le");
    whole.send(post_text("/v1/completions", completion({{"max_tokens", 60}}).dump()));
    ASSERT_TRUE(running.soon([&] { return running.engine().open_sequences() == 1; }));
    streamed.send(post_text("/v1/completions", completion({{"max_tokens", 60}, {"stream", true}}).dump()));
    ASSERT_TRUE(running.soon([&] { return running.scheduler().status().waiting == 1; }));
    std::thread opener([&] {
        std::this_thread::sleep_for(50ms);
        gate.open();
    });
    running.server().shutdown(60s);
    opener.join();
    const HttpReply reply = whole.receive();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.headers.at("connection"), "close");
    EXPECT_EQ(events_of(streamed.receive().body).back(), "[DONE]");
    EXPECT_TRUE(idle.at_end());
    EXPECT_EQ(partial.receive().status, 503);
    EXPECT_FALSE(running.client().connected());
}

TEST(Server, ShutdownEndsWhatTakesLonger) {
    RunningOptions setup;
    setup.engine.step_time = 2ms;
    setup.engine.context = 100'000;
    setup.engine.kv_tokens = 200'000;
    setup.scheduler.slots = 2;
    RunningServer running(setup);
    std::vector<HttpClient> clients;
    for (int i = 0; i < 6; ++i) {
        clients.push_back(running.client());
        clients.back().send(
            post_text("/v1/completions", completion({{"max_tokens", 90'000}, {"stream", i == 0}}).dump()));
        if (i == 0) {
            ASSERT_TRUE(clients[0].wait_for("data: "));
        }
    }
    ASSERT_TRUE(running.soon([&] { return running.scheduler().status().waiting == 4; }));
    running.server().shutdown(30ms);
    const HttpReply streamed = clients[0].receive();
    EXPECT_TRUE(streamed.complete);
    EXPECT_EQ(events_of(streamed.body).back()["error"]["code"], "shutting_down");
    for (size_t i = 1; i < clients.size(); ++i)
        expect_error(clients[i].receive(), 503, "shutting_down", "shutting down");
}

// Whoever ends the process learns of it.
TEST(Server, ShutdownDoesNotWaitForAThreadThatWorksOn) {
    FakeEngine engine({});
    Scheduler scheduler(engine, tokenizer(), {});
    std::atomic<bool> working = false, works = true;
    ServerOptions options;
    options.port = 0;
    OneModel models(std::make_shared<ServedModel>(&scheduler, tokenizer(), ModelInfo{}));
    Server server(models, options, [&](const ServedRequest&) {
        working = true;
        while (works) std::this_thread::sleep_for(1ms);
    });
    HttpClient client(server.port());
    EXPECT_EQ(client.get("/v1/models").status, 200);
    while (!working) std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(server.shutdown(0ms));
    works = false;
    EXPECT_TRUE(server.shutdown(0ms));
}

TEST(Server, AddressThatIsTaken) {
    RunningServer running;
    FakeEngine engine({});
    Scheduler scheduler(engine, tokenizer(), {});
    ServerOptions options;
    options.port = running.server().port();
    OneModel models(std::make_shared<ServedModel>(&scheduler, tokenizer(), ModelInfo{}));
    try {
        Server second(models, options);
        ADD_FAILURE() << "two servers at one port";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        EXPECT_THAT(error.what(), HasSubstr("--port"));
    }
}

}  // namespace
}  // namespace refold
