// refold pull: the catalogue, and interrupted downloads from a hub.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/refold.h"
#include "hub/hub_server.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Pull, ListsTheCatalogue) {
    EXPECT_THAT(refold({"pull"}).out, HasSubstr("smollm2-135m-instruct"));
    expect_keys(refold_json({"pull"})["models"][0],
                {"name", "description", "bytes", "download_bytes", "sha256"});
}

class PullFromHub : public testing::Test {
protected:
    Process start(std::vector<std::string> words) const {
        words.insert(words.begin(), REFOLD_BINARY);
        return Process(
            std::move(words), "",
            {"HF_ENDPOINT=" + server_.url(), "HF_HUB_CACHE=" + (folder_ / "cache"),
             "HF_HOME=" + (folder_ / "home"), "HF_TOKEN=", "HF_HUB_OFFLINE=", "no_proxy=127.0.0.1"});
    }
    Outcome refold(std::vector<std::string> words) const { return start(std::move(words)).wait(); }
    std::string cached(const std::string& path) const {
        return folder_ / ("cache/models--org--name/" + path);
    }

    TempFolder folder_;
    HubServer server_;
};

TEST_F(PullFromHub, PrintsWhereTheModelIs) {
    server_.files = sharded_repo();
    const std::string snapshot = cached(std::string("snapshots/") + HubServer::kCommit);
    const Outcome text = refold({"pull", "org/name"});
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_EQ(text.out, snapshot + "\n");
    const Outcome outcome = refold({"pull", "org/name", "--revision", "main", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json j = json::parse(outcome.out);
    EXPECT_EQ(j["path"], snapshot);
    EXPECT_EQ(j["repo"], "org/name");
    EXPECT_EQ(j["revision"], "main");
    EXPECT_EQ(j["commit"], HubServer::kCommit);
    EXPECT_EQ(j["files"], 8);
    EXPECT_GT(j["bytes"], 505'000);
}

TEST_F(PullFromHub, PulledModelIsAModelArgument) {
    const std::string model = read_all(REFOLD_FIXTURES "/llama_gqa/model.gguf");
    server_.files = {{"small-F32.gguf", {model, true}}};
    const Outcome before = refold({"inspect", "org/name"});
    EXPECT_EQ(before.code, 2);
    EXPECT_THAT(before.err, HasSubstr("`refold pull org/name`"));
    EXPECT_EQ(refold({"pull", "org/name:F32"}).code, 0);
    const size_t asked = server_.requests().size();
    const Outcome after = refold({"inspect", "org/name:F32", "--json"});
    ASSERT_EQ(after.code, 0) << after.err;
    EXPECT_EQ(json::parse(after.out)["file_bytes"], model.size());
    EXPECT_EQ(server_.requests().size(), asked) << "the network is for pull";
}

TEST_F(PullFromHub, WrongUsageSaysWhatIsRight) {
    for (const auto& words : std::vector<std::vector<std::string>>{
             {"pull", "org/name/x"},
             {"pull", "org/name@v1", "--revision", "v2"},
             {"pull", "org/name", "--revision", "../x"},
             {"pull", "smollm2-135m-instruct", "--revision", "main"},
             {"pull", "org/name", "--revision", "v9"},
         }) {
        const Outcome outcome = refold(words);
        EXPECT_EQ(outcome.code, 2) << testing::PrintToString(words) << outcome.err;
        EXPECT_THAT(outcome.err, HasSubstr("refold: error: "));
        EXPECT_THAT(outcome.out, IsEmpty());
    }
}

TEST_F(PullFromHub, InterruptKeepsWhatHasCome) {
    const std::string content(3'000'000, 'x');
    server_.files = {{"name.gguf", {content, true}}};
    server_.hook = [&, stalled = false](const HubServer::Request& request) mutable {
        std::optional<HubServer::Reply> reply;
        if (request.path.ends_with(".gguf") && !std::exchange(stalled, true)) {
            reply = server_.file_reply(request, server_.files.at("name.gguf"));
            reply->sent = 2'000'000;
            reply->stall = true;
        }
        return reply;
    };
    const std::string blob = cached("blobs/" + server_.files.at("name.gguf").etag());
    Process process = start({"pull", "org/name"});
    std::error_code missing;
    for (int i = 0; i < 6000 && fs::file_size(blob + ".incomplete", missing) != 2'000'000; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    process.send(SIGINT);
    const Outcome stopped = process.wait();
    EXPECT_EQ(stopped.code, 130) << stopped.err;
    ASSERT_EQ(fs::file_size(blob + ".incomplete", missing), 2'000'000U);
    EXPECT_FALSE(fs::exists(blob));
    EXPECT_FALSE(fs::exists(cached("refs/main")));

    EXPECT_EQ(refold({"pull", "org/name"}).code, 0);
    EXPECT_EQ(server_.requests("name.gguf").back().header("range"), "bytes=2000000-");
    EXPECT_EQ(read_all(blob), content);
}

}  // namespace
}  // namespace refold
