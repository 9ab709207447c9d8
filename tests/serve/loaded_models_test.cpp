// Models that are loaded on demand: sources of fake engines, each of which takes 100 bytes.
#include "serve/loaded_models.h"

#include <future>

#include "engine/devices.h"
#include "serve/gate.h"
#include "serve/running_server.h"

namespace refold {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr uint64_t kBytes = 100;

struct FakeModel {
    explicit FakeModel(const std::string& name, const FakeEngineOptions& options)
        : engine(options),
          scheduler(engine, tokenizer(), {}),
          served(&scheduler, tokenizer(),
                 {.name = name,
                  .context = options.context,
                  .n_vocab = tokenizer().size(),
                  .created = 5,
                  .memory_bytes = kBytes,
                  .description = {}}) {}
    FakeEngine engine;
    Scheduler scheduler;
    ServedModel served;
};

// `adapted` is the name of the model with adapter 3.
ModelSource source_with_adapter(const std::string& name, const std::string& adapted) {
    return {.name = name,
            .adapters = {adapted},
            .needs = [] { return kBytes; },
            .load = [=]() -> std::shared_ptr<ServedModel> {
                FakeEngineOptions options;
                options.n_vocab = tokenizer().size();
                const auto made = std::make_shared<FakeModel>(name, options);
                made->served.adapted.push_back(std::make_unique<ServedModel>(made->served, adapted, 3));
                return {made, &made->served};
            }};
}

struct Script {
    uint64_t needs = kBytes;
    std::function<void()> on_load = {};   // may wait, or throw what a loader could
    std::function<void()> on_needs = {};  // the same
    std::function<void()> on_step = {};   // may throw what an engine could
};

ModelSource source(const std::string& name, const Script& script = {}) {
    return {.name = name,
            .needs =
                [script] {
                    if (script.on_needs) script.on_needs();
                    return script.needs;
                },
            .load = [=]() -> std::shared_ptr<ServedModel> {
                if (script.on_load) script.on_load();
                FakeEngineOptions options;
                options.n_vocab = tokenizer().size();
                if (script.on_step) options.on_step = [script](std::span<const Row>) { script.on_step(); };
                const auto made = std::make_shared<FakeModel>(name, options);
                return {made, &made->served};
            }};
}

std::shared_ptr<ServedModel> find(LoadedModels& models, const std::string& name) {
    return models.find(name, [] {});
}

std::future<std::shared_ptr<ServedModel>> find_later(LoadedModels& models, const std::string& name) {
    return std::async(std::launch::async, [&models, name] { return find(models, name); });
}

std::string states(LoadedModels& models) {
    std::string out;
    for (const ListedModel& model : models.list())
        out += fmt::format("{}:{} ", model.info.name, model_state_name(model.state));
    return out;
}

void expect_api_error(const std::function<void()>& call, int status, const std::string& message) {
    try {
        call();
        ADD_FAILURE() << "no error, expected: " << message;
    } catch (const ApiError& error) {
        EXPECT_EQ(error.status, status) << error.message;
        EXPECT_THAT(error.message, HasSubstr(message));
    }
}

TEST(LoadedModels, TheLeastRecentlyUsedOneMakesRoom) {
    LoadedModels models({source("a"), source("b"), source("c")}, {.memory_bytes = 2 * kBytes});
    EXPECT_EQ(states(models), "a:unloaded b:unloaded c:unloaded ");
    EXPECT_EQ(find(models, "")->info.name, "a");
    EXPECT_EQ(find(models, "b")->info.name, "b");
    EXPECT_EQ(find(models, "a")->info.name, "a");
    EXPECT_EQ(states(models), "a:loaded b:loaded c:unloaded ");
    EXPECT_EQ(find(models, "c")->info.name, "c");
    EXPECT_EQ(states(models), "a:loaded b:unloaded c:loaded ");
    EXPECT_EQ(models.list()[0].loads, 1U);
    EXPECT_EQ(models.list()[1].info.context, 256) << "what is known of a model stays";
    expect_api_error([&] { find(models, "d"); }, 404, "'d' is not served here; served: 'a', 'b', 'c'");
}

TEST(LoadedModels, WithoutABoundAllStay) {
    LoadedModels models({source("a", {.needs = 1 << 30}), source("b", {.needs = 1 << 30})}, {});
    find(models, "a");
    find(models, "b");
    EXPECT_EQ(states(models), "a:loaded b:loaded ");
}

// A model that a request holds is not unloaded. It takes no new requests while another one waits for its
// memory.
TEST(LoadedModels, ABusyModelKeepsNoOtherOut) {
    LoadedModels models({source("a"), source("b")}, {.memory_bytes = kBytes});
    auto held = find(models, "a");
    auto b = find_later(models, "b");
    while (models.list()[1].state != ModelState::loading) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(b.wait_for(250ms), std::future_status::timeout);
    auto again = find_later(models, "a");
    EXPECT_EQ(again.wait_for(250ms), std::future_status::timeout);
    EXPECT_EQ(models.list()[0].state, ModelState::loaded);
    held.reset();
    EXPECT_EQ(b.get()->info.name, "b");
    EXPECT_EQ(again.get()->info.name, "a");
    EXPECT_EQ(models.list()[0].loads, 2U);
}

// The model that was to make room goes on when nobody wants the other one any more.
TEST(LoadedModels, NobodyWaitsAnyMore) {
    std::atomic<int> loads = 0;
    LoadedModels models({source("a"), source("b", {.on_load = [&] { ++loads; }})}, {.memory_bytes = kBytes});
    const auto held = find(models, "a");
    std::atomic<bool> leave = false;
    auto b = std::async(std::launch::async, [&] {
        return models.find("b", [&] {
            if (leave) throw timeout_error();
        });
    });
    while (models.list()[1].state != ModelState::loading) std::this_thread::sleep_for(1ms);
    leave = true;
    expect_api_error([&] { b.get(); }, 504, "took longer");
    EXPECT_EQ(find(models, "a"), held);
    EXPECT_EQ(states(models), "a:loaded b:unloaded ");
    EXPECT_EQ(loads, 0);
}

TEST(LoadedModels, TwoRequestsLoadOnceAndOthersGoOn) {
    Gate gate;
    LoadedModels models({source("a"), source("b", {.on_load = [&] { gate.pass(); }})}, {});
    models.load("a");
    auto first = find_later(models, "b"), second = find_later(models, "b");
    gate.wait_until_reached();
    EXPECT_TRUE(models.loading());
    EXPECT_EQ(states(models), "a:loaded b:loading ");
    EXPECT_EQ(find(models, "a")->info.name, "a");
    // This one does not wait until the model is there.
    expect_api_error([&] { models.find("b", [] { throw timeout_error(); }); }, 504, "took longer");
    gate.open();
    EXPECT_EQ(first.get(), second.get());
    EXPECT_EQ(models.list()[1].loads, 1U);
    EXPECT_FALSE(models.loading());
}

TEST(LoadedModels, OnlySoManyWait) {
    Gate gate;
    LoadedModels models({source("a", {.on_load = [&] { gate.pass(); }})}, {.most_waiting = 1});
    auto first = find_later(models, "a");
    gate.wait_until_reached();
    expect_api_error([&] { find(models, "a"); }, 429, "too many requests wait for the model 'a'");
    gate.open();
    first.get();
}

TEST(LoadedModels, AFailureIsToldAndTriedAgain) {
    std::atomic<bool> broken = true;
    const auto on_load = [&] {
        if (broken) fail(ErrorCode::input, "gguf", "b.gguf: truncated");
    };
    std::vector<std::string> lines;
    LoadedModels models(
        {source("a"), source("b", {.on_load = on_load})},
        {.memory_bytes = 2 * kBytes, .log = [&](const std::string& line) { lines.push_back(line); }});
    const auto held = find(models, "a");
    expect_api_error([&] { find(models, "b"); }, 503,
                     "the model 'b' cannot be loaded: [gguf] b.gguf: truncated");
    EXPECT_EQ(find(models, "a"), held);
    broken = false;
    EXPECT_EQ(find(models, "b")->info.name, "b");
    EXPECT_THAT(lines, testing::ElementsAre(HasSubstr("loaded 'a'"), HasSubstr("cannot be loaded"),
                                            HasSubstr("loaded 'b'")));
}

TEST(LoadedModels, OneThatHasLostItsDeviceIsLoadedAgain) {
    std::atomic<int> loads = 0;
    std::atomic<bool> fails = true, lost = false;
    LoadedModels models({source("a", {.on_load = [&] { ++loads; },
                                      .on_step =
                                          [&] {
                                              if (loads != 1 || !fails) return;
                                              if (lost) throw LostDevice(ErrorCode::io, "gone");
                                              fail(ErrorCode::io, "fake", "no step");
                                          }})},
                        {});
    ServerOptions options;
    options.port = 0;
    Server server(models, options);
    const auto status = [&] {
        return HttpClient(server.port()).post("/v1/completions", completion({{"model", "a"}}).dump()).status;
    };
    EXPECT_EQ(status(), 500);
    fails = false;
    EXPECT_EQ(status(), 200);
    EXPECT_EQ(loads, 1);
    fails = lost = true;
    auto held = find(models, "a");
    EXPECT_EQ(status(), 500);
    EXPECT_TRUE(held->lost());
    auto again = find_later(models, "a");
    EXPECT_EQ(again.wait_for(100ms), std::future_status::timeout);
    held.reset();
    EXPECT_FALSE(again.get()->lost());
    EXPECT_EQ(status(), 200);
    EXPECT_EQ(loads, 2);
    EXPECT_TRUE(server.shutdown(1000ms));
}

TEST(LoadedModels, AModelThatNeverFits) {
    LoadedModels models({source("a"), source("b", {.needs = 5 << 20})}, {.memory_bytes = 4 << 20});
    const auto held = find(models, "a");
    expect_api_error([&] { find(models, "b"); }, 503,
                     "it needs 5.0 MiB for weights and KV cache, and --memory "
                     "allows 4.0 MiB");
    EXPECT_EQ(find(models, "a"), held);
    try {
        models.load("b");
        ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::usage);
        EXPECT_THAT(error.what(), HasSubstr("it needs 5.0 MiB"));
    }
}

TEST(LoadedModels, ShutdownWhileAModelLoads) {
    Gate gate;
    LoadedModels models({source("a", {.on_load = [&] { gate.pass(); }})}, {});
    auto waits = find_later(models, "a");
    gate.wait_until_reached();
    models.shutdown(0ms);
    expect_api_error([&] { waits.get(); }, 503, "shutting down");
    EXPECT_TRUE(models.loading());
    gate.open();
}

TEST(LoadedModels, OverHttp) {
    LoadedModels models({source("a"), source("b"),
                         source("broken", {.on_needs = [] { fail(ErrorCode::io, "gguf", "no such file"); }})},
                        {.memory_bytes = kBytes});
    models.load("a");
    ServerOptions options;
    options.port = 0;
    options.models = 3;
    Server server(models, options);
    const auto client = [&] { return HttpClient(server.port()); };
    const auto ask = [&](const char* model) {
        return client().post("/v1/completions", completion({{"model", model}}).dump());
    };
    const auto status_of = [&](const char* model) {
        return client().get(std::string("/v1/models/") + model).json()["status"]["value"];
    };
    EXPECT_EQ(client().get("/v1/models").json()["data"].size(), 3U);
    EXPECT_EQ(status_of("a"), "loaded");
    EXPECT_EQ(status_of("b"), "unloaded");
    EXPECT_FALSE(client().get("/v1/models/b").json().contains("max_model_len"));
    const HttpReply answer = ask("b");
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.json()["model"], "b");
    EXPECT_EQ(status_of("a"), "unloaded");
    EXPECT_EQ(status_of("b"), "loaded");
    EXPECT_EQ(client().get("/v1/models/b").json()["max_model_len"], 256);
    expect_error(ask("broken"), 503, "model_not_loaded", "no such file");
    EXPECT_EQ(status_of("b"), "loaded") << "a broken file costs no other model its place";
    expect_error(ask("c"), 404, "model_not_found", "'c' is not served here; served: 'a', 'b'");

    const json shown = client().get("/status").json();
    EXPECT_EQ(shown["model"], "b") << "the one that is loaded";
    EXPECT_EQ(shown["generated_tokens"], 8);
    EXPECT_EQ(shown["models"][0]["state"], "unloaded");
    EXPECT_EQ(shown["models"][1]["memory_bytes"], kBytes);
    EXPECT_EQ(client().get("/status?model=a").json()["slots"], 0);
    expect_error(client().get("/status?model=c"), 404, "model_not_found", "'c' is not served here");
    const std::string metrics = client().get("/metrics").body;
    for (const char* line :
         {"refold_generated_tokens_total{model_name=\"b\"} 8",
          "refold_model_memory_bytes{model_name=\"a\"} 0", "refold_model_memory_bytes{model_name=\"b\"} 100",
          "refold_model_loads_total{model_name=\"a\"} 1",
          "refold_requests_finished_total{model_name=\"b\",reason=\"length\"} 1"})
        EXPECT_THAT(metrics, HasSubstr(std::string("\n") + line + "\n"));
    EXPECT_THAT(metrics, testing::Not(HasSubstr("refold_slots{model_name=\"a\"")));
    EXPECT_TRUE(server.shutdown(1000ms));
}

TEST(LoadedModels, AdaptersAreModelsOfTheirOwn) {
    LoadedModels models({source_with_adapter("base", "adapted"), source("other")}, {.memory_bytes = kBytes});
    ServerOptions options;
    options.port = 0;
    Server server(models, options);
    const auto client = [&] { return HttpClient(server.port()); };
    const auto ask = [&](const char* model) {
        return client().post("/v1/completions", completion({{"model", model}}).dump()).json();
    };
    const json unloaded = client().get("/v1/models/adapted").json();
    EXPECT_EQ(unloaded["parent"], "base");
    EXPECT_EQ(unloaded["status"]["value"], "unloaded");
    const json adapted = ask("adapted"), base = ask("base");
    EXPECT_EQ(adapted["model"], "adapted");
    EXPECT_EQ(base["model"], "base");
    EXPECT_NE(adapted["choices"][0]["text"], base["choices"][0]["text"]);
    EXPECT_EQ(ask("adapted")["choices"], adapted["choices"]);
    const json listed = client().get("/v1/models").json()["data"];
    ASSERT_EQ(listed.size(), 3U);
    EXPECT_EQ(listed[1]["id"], "adapted");
    EXPECT_EQ(listed[1]["status"]["value"], "loaded");
    EXPECT_FALSE(listed[0].contains("parent"));
    const std::string metrics = client().get("/metrics").body;
    EXPECT_THAT(metrics, HasSubstr("refold_generated_tokens_total{model_name=\"base\"} 24\n"));
    EXPECT_THAT(metrics, testing::Not(HasSubstr("model_name=\"adapted\"")));
    // It is held as its model is, and goes with it.
    auto held = find(models, "adapted");
    EXPECT_EQ(held->info.parent, "base");
    auto other = find_later(models, "other");
    EXPECT_EQ(other.wait_for(250ms), std::future_status::timeout);
    held.reset();
    other.get();
    EXPECT_EQ(states(models), "base:unloaded adapted:unloaded other:loaded ");
    EXPECT_TRUE(server.shutdown(1000ms));
}

}  // namespace
}  // namespace refold
