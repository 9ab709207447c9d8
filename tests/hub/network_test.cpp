// Tokens, redirects and network failures.
#include <sys/file.h>

#include <chrono>
#include <thread>

#include "hub/hub_fixture.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

std::string range_of(const HubServer::Request& request) { return request.header("range"); }

TEST_F(Hub, TokenIsThatOfTheEnvironmentOrOfAFile) {
    server_.files = sharded_repo();
    const auto sent = [&] {
        pull();
        return server_.requests().back().header("authorization");
    };
    EXPECT_EQ(sent(), "");
    fs::create_directory(folder_ / "home");
    write_all(folder_ / "home/token", "hf_home\n");
    EXPECT_EQ(sent(), "Bearer hf_home");
    write_all(folder_ / "path", " hf_path ");
    const Environment path("HF_TOKEN_PATH", folder_ / "path");
    EXPECT_EQ(sent(), "Bearer hf_path");
    const Environment variable("HF_TOKEN", "hf_variable");
    EXPECT_EQ(sent(), "Bearer hf_variable");
    const Environment evil("HF_TOKEN", "a\r\nX-Evil: 1");
    EXPECT_EQ(pull_error(), ErrorCode::usage);
    EXPECT_THAT(text_, Not(HasSubstr("Evil")));
}

TEST_F(Hub, TokenStaysOnItsHost) {
    server_.files = sharded_repo();
    HubServer other;
    other.hook = [&](const HubServer::Request& request) -> std::optional<HubServer::Reply> {
        for (const auto& [path, file] : server_.files) {
            if (request.path == "/" + file.etag()) return other.file_reply(request, file);
        }
        return HubServer::Reply{.status = 404};
    };
    server_.large_files_at = other.url();
    const Environment token("HF_TOKEN", "hf_secret");
    for (const bool describes : {true, false}) {
        server_.describes = describes;
        fs::remove_all(folder_ / "cache");
        pull();
        EXPECT_EQ(read_all(snapshot(kShard)), server_.files[kShard].content);
    }
    EXPECT_THAT(other.requests(), SizeIs(6));
    for (const auto& request : other.requests()) EXPECT_EQ(request.header("authorization"), "");
    for (const auto& request : server_.requests()) {
        EXPECT_EQ(request.header("authorization"), "Bearer hf_secret") << request.path;
    }
}

TEST_F(Hub, RelativeRedirectKeepsTheToken) {
    server_.files = sharded_repo();
    misbehave("/main", 1, {.status = 307, .headers = {{"Location", "/api/models/org/name/revision/main"}}});
    const Environment token("HF_TOKEN", "hf_secret");
    EXPECT_EQ(pull().path, snapshot());
    EXPECT_EQ(server_.requests()[1].header("authorization"), "Bearer hf_secret");

    misbehave("/main", 99, {.status = 302, .headers = {{"Location", "/x/main"}}});
    EXPECT_EQ(pull_error(), ErrorCode::input);
    EXPECT_THAT(text_, HasSubstr("redirects more than"));
    misbehave("/main", 1, {.status = 302, .headers = {{"Location", "file:///etc/passwd"}}});
    EXPECT_EQ(pull_error(), ErrorCode::input);
    misbehave("/main", 1, {.status = 302});
    EXPECT_EQ(pull_error(), ErrorCode::input);
}

TEST_F(Hub, FilesThatTheListingDoesNotDescribeAreAskedFor) {
    server_.files = sharded_repo();
    server_.describes = false;
    EXPECT_EQ(pull().path, snapshot());
    EXPECT_EQ(server_.requests("/config.json").front().method, "HEAD");
    EXPECT_EQ(read_all(blob(kShard)), server_.files[kShard].content);
}

TEST_F(Hub, ProxyIsUsed) {
    server_.files = sharded_repo();
    const Environment endpoint("HF_ENDPOINT", "http://hub.invalid/"), proxy("http_proxy", server_.url());
    EXPECT_EQ(pull().path, snapshot());
    EXPECT_EQ(server_.requests().front().header("host"), "hub.invalid");
}

TEST_F(Hub, IncompleteFileIsContinued) {
    server_.files = sharded_repo();
    leave_incomplete(kShard, server_.files[kShard].content.substr(0, 1000));
    pull();
    EXPECT_EQ(range_of(server_.requests(kShard).front()), "bytes=1000-");
    EXPECT_EQ(read_all(snapshot(kShard)), server_.files[kShard].content);
    EXPECT_FALSE(has_incomplete());
}

TEST_F(Hub, ServerWithoutRangesMeansToStartOver) {
    server_.files = sharded_repo();
    server_.ranges = false;
    leave_incomplete(kShard, "zzz");
    pull();
    EXPECT_EQ(read_all(snapshot(kShard)), server_.files[kShard].content);

    // The server sends another range than requested.
    fs::remove(blob(kShard));
    leave_incomplete(kShard, "zzz");
    misbehave(kShard, 1, {.status = 206, .headers = {{"Content-Range", "bytes 7-9/300000"}}, .body = "yyy"});
    pull();
    EXPECT_EQ(read_all(snapshot(kShard)), server_.files[kShard].content);
}

TEST_F(Hub, WhatIsAllThereIsOnlyChecked) {
    server_.files = sharded_repo();
    leave_incomplete(kShard, server_.files[kShard].content);
    pull();
    EXPECT_THAT(server_.requests(kShard), IsEmpty());
    // A file that is too long is downloaded again.
    fs::remove(blob(kShard));
    leave_incomplete(kShard, server_.files[kShard].content + "x");
    pull();
    EXPECT_EQ(range_of(server_.requests(kShard).front()), "");
    EXPECT_EQ(read_all(snapshot(kShard)), server_.files[kShard].content);
}

TEST_F(Hub, RefusedRangeIsChecked) {
    server_.files = {{"config.json", {"{}", false}}, {"model.safetensors", {"weights", true}}};
    server_.describes = false;
    // Only the refused range tells the size.
    const auto no_size = [&](const HubServer::Request& request) -> std::optional<HubServer::Reply> {
        if (request.method != "HEAD" || !request.path.ends_with("model.safetensors")) return {};
        return HubServer::Reply{.status = 302,
                                .headers = {{"Location", "http://127.0.0.1:1/"},
                                            {"X-Linked-Etag", server_.files["model.safetensors"].etag()}}};
    };
    for (const std::string left : {"weights", "weights and more"}) {
        fs::remove_all(folder_ / "cache");
        leave_incomplete("model.safetensors", left);
        server_.hook = no_size;
        pull();
        EXPECT_EQ(read_all(snapshot("model.safetensors")), "weights");
    }
    EXPECT_EQ(range_of(server_.requests("model.safetensors").back()), "");
}

TEST_F(Hub, BodyThatEndsEarlyIsContinued) {
    server_.files = sharded_repo();
    HubServer::Reply half = server_.file_reply({}, server_.files[kShard]);
    half.sent = 1000;
    misbehave(kShard, 1, half);
    pull();
    ASSERT_THAT(server_.requests(kShard), SizeIs(2));
    EXPECT_EQ(range_of(server_.requests(kShard)[1]), "bytes=1000-");
    EXPECT_EQ(read_all(snapshot(kShard)), server_.files[kShard].content);
}

TEST_F(Hub, ServerThatIsBusyIsAskedAgain) {
    server_.files = sharded_repo();
    for (const int status : {500, 502, 503, 504, 429}) {
        for (const std::string& end : {std::string("/main"), std::string("/") + kShard}) {
            fs::remove_all(folder_ / "cache");
            misbehave(end, 4, {.status = status});
            EXPECT_EQ(pull().path, snapshot()) << status;
        }
    }
    const size_t before = server_.requests().size();
    misbehave("/main", 99, {.status = 503});
    EXPECT_EQ(pull_error(), ErrorCode::io);
    EXPECT_THAT(text_, HasSubstr("HTTP 503"));
    EXPECT_THAT(text_, HasSubstr("5 attempts"));
    EXPECT_EQ(server_.requests().size(), before + 5);
}

TEST_F(Hub, RetryAfterIsRespected) {
    server_.files = sharded_repo();
    misbehave("/main", 1, {.status = 429, .headers = {{"Retry-After", "1"}}});
    const auto start = std::chrono::steady_clock::now();
    pull();
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
    misbehave("/main", 1, {.status = 429, .headers = {{"Retry-After", "100000"}}});
    EXPECT_EQ(pull_error(), ErrorCode::io) << "nobody waits for a day";
}

TEST_F(Hub, ConnectionErrorsAreRetriedAndSaid) {
    const Environment nobody("HF_ENDPOINT", "http://127.0.0.1:1");
    EXPECT_EQ(pull_error(), ErrorCode::io);
    EXPECT_THAT(text_, HasSubstr("5 attempts"));
    EXPECT_THAT(text_, HasSubstr("127.0.0.1"));
    const Environment wrong("HF_ENDPOINT", "ftp://127.0.0.1");
    EXPECT_EQ(pull_error(), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("HF_ENDPOINT"));
}

TEST_F(Hub, SilentServerIsGivenUp) {
    server_.files = sharded_repo();
    HubServer::Reply silent = server_.file_reply({}, server_.files[kShard]);
    silent.sent = 1000;
    silent.stall = true;
    misbehave(kShard, 1, silent);
    EXPECT_EQ(pull("org/name", {.attempts = 2, .stall_seconds = 1}).path, snapshot());
    EXPECT_EQ(range_of(server_.requests(kShard)[1]), "bytes=1000-");
}

TEST_F(Hub, MissingRightsSayWhatToDo) {
    for (const int status : {401, 403}) {
        misbehave("/main", 1, {.status = status});
        EXPECT_EQ(pull_error(), ErrorCode::io);
        EXPECT_THAT(text_, HasSubstr("without an access token"));
        EXPECT_THAT(text_, HasSubstr("set HF_TOKEN"));
        misbehave("/main", 1, {.status = status, .headers = {{"X-Error-Code", "GatedRepo"}}});
        EXPECT_EQ(pull_error(), ErrorCode::io);
        EXPECT_THAT(text_, HasSubstr("accept its terms on " + server_.url() + "/org/name"));
        const Environment token("HF_TOKEN", "hf_secret");
        misbehave("/main", 1, {.status = status});
        EXPECT_EQ(pull_error(), ErrorCode::io);
        EXPECT_THAT(text_, HasSubstr("with this access token"));
        EXPECT_THAT(text_, Not(HasSubstr("hf_secret")));
    }
    EXPECT_THAT(server_.requests(), SizeIs(6)) << "no is no";
}

TEST_F(Hub, WhatDoesNotExistIsNamed) {
    server_.files = sharded_repo();
    EXPECT_EQ(pull_error("other/model"), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("'other/model'"));
    EXPECT_EQ(pull_error("org/name@v9"), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("'v9'"));
    misbehave(kShard, 1, {.status = 404});
    EXPECT_EQ(pull_error(), ErrorCode::usage);
    EXPECT_THAT(text_, HasSubstr("model-00001-of-00002.safetensors"));
    EXPECT_THAT(text_, HasSubstr("'org/name' with a revision 'main'"));
    misbehave("/main", 1, {.status = 418, .headers = {{"X-Error-Message", "a \033[31mteapot"}}});
    EXPECT_EQ(pull_error(), ErrorCode::io);
    EXPECT_THAT(text_, HasSubstr("HTTP 418"));
    EXPECT_THAT(text_, HasSubstr("a  [31mteapot"));
}

TEST_F(Hub, DamagedFileIsDeleted) {
    for (const std::string path : {kShard, "config.json"}) {
        server_.files = sharded_repo();
        std::string wrong = server_.files[path].content;
        wrong.back() = '?';
        fs::remove_all(folder_ / "cache");
        misbehave("/" + path, 1, {.body = wrong});
        EXPECT_EQ(pull_error(), ErrorCode::input) << path;
        EXPECT_THAT(text_, HasSubstr("'" + path + "' is damaged and was deleted"));
        EXPECT_FALSE(has_incomplete());
        EXPECT_FALSE(fs::exists(blob(path)));
        EXPECT_FALSE(fs::exists(cached("refs/main")));
        EXPECT_EQ(pull().path, snapshot()) << "the next time it is right";
    }
    fs::remove_all(folder_ / "cache");
    misbehave(kShard, 1, {.body = server_.files[kShard].content + "x"});
    EXPECT_EQ(pull_error(), ErrorCode::input);
    EXPECT_THAT(text_, HasSubstr("more than the 300,000 bytes"));
    EXPECT_FALSE(has_incomplete());
}

TEST_F(Hub, BlobOfAnotherSizeIsFetchedAgain) {
    server_.files = sharded_repo();
    pull();
    fs::resize_file(blob(kShard), 10);
    pull();
    EXPECT_EQ(read_all(snapshot(kShard)), server_.files[kShard].content);
}

TEST_F(Hub, WaitsForWhoFetchesTheSameBlob) {
    server_.files = sharded_repo();
    const std::string locks = folder_ / "cache/.locks/models--org--name";
    fs::create_directories(locks);
    fs::create_directories(cached("blobs"));
    const std::string name = locks + "/" + server_.files[kShard].etag() + ".lock";
    const auto locked = [&] {
        const int file = open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664);
        EXPECT_EQ(flock(file, LOCK_EX | LOCK_NB), 0);
        return file;
    };
    const int first = locked();
    std::thread other([&] {
        constexpr auto kMoment = std::chrono::milliseconds(300);
        while (server_.requests("/tokenizer_config.json").empty()) std::this_thread::yield();
        std::this_thread::sleep_for(kMoment);
        // Some tools remove the lock file, and the next process then creates another one.
        fs::remove(name);
        const int second = locked();
        close(first);
        std::this_thread::sleep_for(kMoment);
        write_all(blob(kShard), server_.files[kShard].content);
        close(second);
    });
    EXPECT_EQ(pull().path, snapshot());
    other.join();
    EXPECT_THAT(server_.requests(kShard), IsEmpty());
    EXPECT_EQ(read_all(snapshot(kShard)), server_.files[kShard].content);
}

}  // namespace
}  // namespace refold
