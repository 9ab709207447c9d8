// `refold serve` as a process, on a tiny model.
#include <gmock/gmock.h>

#include "cli/serving.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kModel = REFOLD_FIXTURES "/llama_gqa/model.gguf";

TEST(Serve, AnswersAsRunContinues) {
    Serving serving({"--slots", "2"});
    EXPECT_EQ(serving.started["event"], "listening");
    EXPECT_EQ(serving.started["model"], "model");
    EXPECT_EQ(serving.started["slots"], 2);
    EXPECT_THAT(serving.started["url"].get<std::string>(), testing::StartsWith("http://127.0.0.1:"));
    for (const char* prompt : {"The quick brown fox", "Once upon a time"}) {
        const json run = refold_json({"run", kModel, "-p", prompt, "-n", "12", "--threads", "1"});
        const json body = {{"model", "model"}, {"prompt", prompt}, {"max_tokens", 12}, {"temperature", 0}};
        const HttpReply reply = serving.client().post("/v1/completions", body.dump());
        ASSERT_EQ(reply.status, 200) << reply.body;
        EXPECT_EQ(reply.json()["choices"][0]["text"], run["text"]);
        EXPECT_EQ(reply.json()["usage"]["prompt_tokens"], run["prompt_tokens"]);
    }
    const json status = serving.client().get("/status").json();
    EXPECT_EQ(status["description"]["architecture"], "llama");
    EXPECT_GT(status["description"]["stored"]["parameters"], 0);
    const Outcome outcome = serving.stop();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("POST /v1/completions 200"));
}

TEST(Serve, LoopedModelsByDepth) {
    TempFolder folder;
    const std::string looped = folder / "looped.gguf";
    ASSERT_EQ(refold({"compress", kModel, "-o", looped, "--method", "recursive", "--set", "loops=2"}).code,
              0);
    const json run = refold_json({"run", looped, "-p", "Once upon", "-n", "12", "--threads", "1"});
    const json body = {{"prompt", "Once upon"}, {"max_tokens", 12}, {"temperature", 0}};
    const auto text = [&](const std::vector<std::string>& options, json& status) {
        Serving serving(options, {}, looped);
        const HttpReply reply = serving.client().post("/v1/completions", body.dump());
        EXPECT_EQ(reply.status, 200) << reply.body;
        status = serving.client().get("/status").json();
        EXPECT_EQ(serving.stop().code, 0);
        return reply.json()["choices"][0]["text"];
    };
    json status;
    EXPECT_EQ(text({}, status), run["text"]);
    EXPECT_EQ(status["exits"], json({12}));
    EXPECT_EQ(status["description"]["loops"], 2);
    EXPECT_EQ(text({"--exit", "fixed", "--exit-loop", "2"}, status), run["text"]);
    EXPECT_EQ(status["exits"], json({0, 12}));
    EXPECT_EQ(text({"--exact", "3", "--draft-always"}, status), run["text"]);
    EXPECT_GT(status["drafted"], 0);
    EXPECT_EQ(text({"--draft-model", kModel, "--draft-always"}, status), run["text"]);
    EXPECT_GT(status["drafted"], 0);
    EXPECT_EQ(status["description"]["serving"]["draft_model"], kModel);
    EXPECT_GT(status["description"]["memory"]["draft_model_shared_bytes"],
              status["description"]["memory"]["weight_bytes"].get<int64_t>() / 2);
    EXPECT_NE(text({"--exit", "fixed", "--exit-loop", "1"}, status), run["text"]);
    EXPECT_GT(status["exits"][0], 6);
}

TEST(Serve, KnowsPromptsOfItsLastRun) {
    TempFolder folder;
    const std::vector<std::string> options{"--save-prefixes", folder / "", "--name", "org/model"};
    const json body = {{"prompt", "The quick brown fox jumps"}, {"max_tokens", 4}, {"temperature", 0}};
    const auto answer = [&](const Serving& serving) {
        return serving.client().post("/v1/completions", body.dump()).json();
    };
    Serving first(options);
    const json alone = answer(first);
    EXPECT_EQ(alone["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    Outcome stopped = first.stop();
    EXPECT_EQ(stopped.code, 0) << stopped.err;
    EXPECT_THAT(stopped.err, HasSubstr("tokens of prompts are kept"));
    EXPECT_TRUE(std::filesystem::exists(folder / "org%2fmodel.prefixes"));
    Serving second(options);
    const json known = answer(second);
    EXPECT_EQ(known["choices"], alone["choices"]);
    EXPECT_EQ(known["usage"]["prompt_tokens_details"]["cached_tokens"],
              alone["usage"]["prompt_tokens"].get<int>() - 1);
    stopped = second.stop();
    EXPECT_THAT(stopped.err, HasSubstr("tokens of earlier prompts are known"));
    // With other settings they would be wrong.
    std::vector<std::string> others = options;
    others.insert(others.end(), {"--kv", "f32"});
    Serving third(others);
    EXPECT_EQ(answer(third)["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    EXPECT_THAT(third.stop().err, HasSubstr("is of another model, other options or another version"));
}

TEST(Serve, SeveralModels) {
    TempFolder folder;
    std::filesystem::create_directory(folder / "models");
    std::filesystem::copy_file(kModel, folder / "models/other.gguf");
    write_all(folder / "models/notes.txt", "no model");
    Serving serving({"--models-dir", folder / "models"});
    EXPECT_EQ(serving.started["models"], json({"model", "other"}));
    const auto states = [&] {
        std::string out;
        const json listed = serving.client().get("/v1/models").json();
        for (const json& model : listed["data"]) out += model["status"]["value"].get<std::string>() + " ";
        return out;
    };
    EXPECT_EQ(states(), "loaded unloaded ");
    const json run = refold_json({"run", kModel, "-p", "Once upon", "-n", "12", "--threads", "1"});
    for (const char* model : {"other", "model"}) {
        const json body = {{"model", model}, {"prompt", "Once upon"}, {"max_tokens", 12}, {"temperature", 0}};
        const HttpReply reply = serving.client().post("/v1/completions", body.dump());
        ASSERT_EQ(reply.status, 200) << reply.body;
        EXPECT_EQ(reply.json()["choices"][0]["text"], run["text"]);
    }
    EXPECT_EQ(states(), "loaded loaded ");
    const Outcome outcome = serving.stop();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("loaded 'other' in"));
}

TEST(Serve, ABrokenModelIsAnErrorOfItsOwn) {
    TempFolder folder;
    std::filesystem::create_directories(folder / "models/folder");
    const std::string whole = read_all(kModel);
    write_all(folder / "models/cut.gguf", whole.substr(0, whole.size() / 2));
    write_all(folder / "models/good.gguf", whole);
    write_all(folder / "models/folder/config.json", R"({"model_type": "unheard_of"})");
    Serving serving({"--models-dir", folder / "models"});
    EXPECT_EQ(serving.started["models"], json({"model", "cut", "folder", "good"}));
    const auto ask = [&](const std::string& model) {
        const json body = {{"model", model}, {"prompt", "Once upon"}, {"max_tokens", 2}};
        return serving.client().post("/v1/completions", body.dump());
    };
    for (const auto& [model, file, what] : {std::tuple{"cut", "models/cut.gguf", "tensor"},
                                            {"folder", "models/folder", "'unheard_of' is not supported"}}) {
        const HttpReply reply = ask(model);
        EXPECT_EQ(reply.status, 503) << reply.body;
        const std::string message = reply.json()["error"]["message"];
        EXPECT_THAT(message, testing::AllOf(HasSubstr(std::string("'") + model + "'"), HasSubstr(file),
                                            HasSubstr(what)));
        EXPECT_EQ(ask("good").status, 200);
    }
    EXPECT_EQ(serving.stop().code, 0);
}

TEST(Serve, KeyFromTheEnvironmentOrAFile) {
    TempFolder folder;
    write_all(folder / "keys", "# comment\n\nsecond-key\n");
    Serving serving({"--api-key-file", folder / "keys", "--name", "served/as", "--quiet"},
                    {"REFOLD_API_KEY=first-key"});
    EXPECT_EQ(serving.started["api_key"], true);
    EXPECT_EQ(serving.client().get("/v1/models").status, 401);
    for (const char* key : {"first-key", "second-key"}) {
        const HttpReply reply =
            serving.client().get("/v1/models", std::string("Authorization: Bearer ") + key + "\r\n");
        EXPECT_EQ(reply.json()["data"][0]["id"], "served/as");
    }
    const Outcome outcome = serving.stop();
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.err, "");
}

TEST(Serve, StopsUnderLoad) {
    Serving serving({"--slots", "2", "--grace", "0.05"});
    std::vector<HttpClient> clients;
    for (int i = 0; i < 8; ++i) {
        clients.push_back(serving.client());
        const json body = {
            {"prompt", "a"}, {"max_tokens", 120}, {"ignore_eos", true}, {"stream", i % 2 == 0}, {"n", 40}};
        clients.back().send(post_text("/v1/completions", body.dump()));
    }
    ASSERT_TRUE(clients[0].wait_for("data: "));
    EXPECT_EQ(serving.stop().code, 0);
    for (HttpClient& client : clients) {
        const HttpReply reply = client.receive();
        EXPECT_TRUE(reply.complete) << reply.status;
        EXPECT_THAT(reply.status, testing::AnyOf(200, 503));
    }
}

TEST(Serve, WrongUsage) {
    expect_error(refold({"serve", kModel, "--exit", "fixed", "--exit-loop", "1", "--port", "0"}), 2,
                 {"loop"});
    expect_error(refold({"serve", kModel, "--exact", "4", "--port", "0"}), 2, {"loop"});
    expect_error(refold({"serve", kModel, "--port", "70000"}), 2, {"--port"});
    expect_error(refold({"serve", kModel, "--slots", "0"}), 2, {"--slots"});
    expect_error(refold({"serve", kModel, kModel}), 2, {"two models have the name 'model'", "--name"});
    expect_error(refold({"serve", kModel, "--name", "a", "--name", "b"}), 2, {"2 names for 1 models"});
    expect_error(refold({"serve", kModel, "--memory", "1KiB"}), 2, {"--memory allows 1.0 KiB"});
    expect_error(refold({"serve", kModel, "--memory", "much"}), 2, {"--memory", "expected a size"});
    expect_error(refold({"serve", "--models-dir", REFOLD_FIXTURES "/hf/no-such"}), 2, {"no-such"});
    expect_error(refold({"serve"}), 2, {"no model", "--models-dir"});
    expect_error(refold({"serve", kModel, "--api-key", "two words", "--port", "0"}), 2, {"API key"});
    expect_error(refold({"serve", kModel, "--host", "no.such.host.invalid", "--port", "0"}), 1, {"--host"});
    Serving serving;
    expect_error(refold({"serve", kModel, "--threads", "1", "--port",
                         std::to_string(serving.started["port"].get<int>())}),
                 1, {"--port"});
}

}  // namespace
}  // namespace refold
