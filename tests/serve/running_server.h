// A server over real connections, with a fake engine.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "serve/fake_engine.h"
#include "serve/http_client.h"
#include "serve/one_model.h"
#include "serve/server.h"

namespace refold {

using nlohmann::json;

inline const Tokenizer& tokenizer() {
    static const Tokenizer instance(REFOLD_FIXTURES "/llama_gqa/model.gguf");
    return instance;
}

struct RunningOptions {
    FakeEngineOptions engine;
    SchedulerOptions scheduler;
    ServerOptions server;
    std::string chat_template;
    std::string answer;  // of the engine to every prompt; empty: hashes
};

class RunningServer {
public:
    explicit RunningServer(RunningOptions setup = {}) {
        setup.engine.n_vocab = tokenizer().size();
        setup.engine.max_rows = std::max<int64_t>(setup.engine.max_rows, setup.scheduler.slots);
        setup.server.version = "0";
        setup.server.port = 0;
        setup.server.slots = setup.scheduler.slots;
        setup.server.queue = setup.scheduler.queue;
        setup.server.timeout = setup.scheduler.timeout;
        if (!setup.answer.empty()) setup.engine.script = tokenizer().encode(setup.answer, false, true);
        setup.engine.script_end = tokenizer().eos().value();
        engine_ = std::make_unique<FakeEngine>(setup.engine);
        scheduler_ = std::make_unique<Scheduler>(*engine_, tokenizer(), setup.scheduler);
        const ModelInfo info{.name = "org/fake",
                             .context = setup.engine.context,
                             .n_vocab = tokenizer().size(),
                             .created = 5,
                             .description = {{"architecture", "fake"}},
                             .chat_template = setup.chat_template};
        models_ =
            std::make_unique<OneModel>(std::make_shared<ServedModel>(scheduler_.get(), tokenizer(), info));
        server_ = std::make_unique<Server>(*models_, setup.server, [this](const ServedRequest& request) {
            const std::lock_guard lock(mutex_);
            log_.push_back(request);
        });
    }
    ~RunningServer() { server_.reset(); }  // before the members that its log needs

    HttpClient client(int receive_buffer = 0) const { return HttpClient(server_->port(), receive_buffer); }
    HttpReply get(const std::string& path, const std::string& headers = "") const {
        return client().get(path, headers);
    }
    HttpReply post(const std::string& path, const json& body, const std::string& headers = "") const {
        return client().post(path, body.dump(), headers);
    }
    Server& server() { return *server_; }
    Scheduler& scheduler() { return *scheduler_; }
    FakeEngine& engine() { return *engine_; }
    std::vector<ServedRequest> log() {
        const std::lock_guard lock(mutex_);
        return log_;
    }
    template <typename Condition>
    testing::AssertionResult soon(Condition&& condition) {
        for (int i = 0; i < 12000; ++i) {
            if (condition()) return testing::AssertionSuccess();
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return testing::AssertionFailure() << "not in a minute";
    }

private:
    std::mutex mutex_;
    std::vector<ServedRequest> log_;
    std::unique_ptr<FakeEngine> engine_;
    std::unique_ptr<Scheduler> scheduler_;
    std::unique_ptr<OneModel> models_;
    std::unique_ptr<Server> server_;
};

inline json completion(const json& more = json::object()) {
    json body = {{"model", "org/fake"},
                 {"prompt", {5, 6, 7}},
                 {"max_tokens", 8},
                 {"temperature", 0},
                 {"ignore_eos", true}};
    body.update(more);
    return body;
}

inline json chat(const json& more = json::object()) {
    json body = {{"model", "org/fake"},
                 {"messages", {{{"role", "user"}, {"content", "Hello"}}}},
                 {"max_tokens", 8},
                 {"temperature", 0},
                 {"ignore_eos", true}};
    body.update(more);
    return body;
}

inline void expect_error(const HttpReply& reply, int status, const std::string& code,
                         const std::string& message) {
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_TRUE(reply.complete);
    EXPECT_EQ(reply.headers.at("content-type"), "application/json");
    const json error = reply.json()["error"];
    EXPECT_EQ(error["code"], code.empty() ? json() : json(code)) << reply.body;
    EXPECT_THAT(error["message"].get<std::string>(), testing::HasSubstr(message));
    EXPECT_TRUE(error["type"].is_string() && error.contains("param"));
}

}  // namespace refold
