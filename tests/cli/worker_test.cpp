// Models on workers of this machine: the results of one process, what is said about addresses and workers
// that are no such thing, and workers that vanish.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>
#include <utility>

#include "cli/serving.h"
#include "core/code_of.h"
#include "core/memory.h"
#include "engine/compare.h"
#include "engine/devices.h"
#include "engine/looped_models.h"
#include "engine/rpc_worker.h"
#include "model/load.h"

namespace refold {
namespace {

// A socket at a port of its own on the loopback.
class Listener {
public:
    Listener() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
        getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(address.sin_port);
    }
    ~Listener() { close(socket_); }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    int socket_id() const { return socket_; }
    std::string address() const { return fmt::format("127.0.0.1:{}", port_); }

private:
    int socket_;
    uint16_t port_ = 0;
};

std::string free_address() { return Listener().address(); }

// Answers one client with these bytes: all at once, or one per `pause`.
class FakeWorker {
public:
    explicit FakeWorker(std::string answer, std::chrono::milliseconds pause = {}) {
        EXPECT_EQ(listen(listener_.socket_id(), 1), 0);
        thread_ = std::thread([this, pause, answer = std::move(answer)] {
            const int client = accept(listener_.socket_id(), nullptr, nullptr);
            std::array<char, 33> hello{};
            EXPECT_EQ(recv(client, hello.data(), hello.size(), MSG_WAITALL), 33);
            greeted_ = true;
            const size_t most = pause.count() > 0 ? 1 : answer.size();
            for (size_t at = 0; at < answer.size(); at += most) {
                std::this_thread::sleep_for(pause);
                if (send(client, answer.data() + at, most, MSG_NOSIGNAL) != static_cast<ssize_t>(most)) break;
            }
            close(client);
        });
    }
    ~FakeWorker() { thread_.join(); }
    std::string address() const { return listener_.address(); }
    bool greeted() const { return greeted_; }

private:
    Listener listener_;
    std::atomic<bool> greeted_ = false;
    std::thread thread_;
};

class Worker {
public:
    explicit Worker(std::string address = free_address())
        : address_(std::move(address)), process_({REFOLD_BINARY, "worker", address_, "--threads", "1"}) {
        for (int i = 0; i < 600 && !answers(); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    const std::string& address() const { return address_; }
    void kill() {
        process_.send(SIGKILL);
        process_.wait();
    }
    // It answers nothing from now on; its machine does.
    void hang() const { signal_all(SIGSTOP); }
    // Ends the processes of its clients as a fault would.
    void crash_clients() const { signal_all(SIGSEGV, 1); }
    // Standard output so far.
    std::string said() const { return process_.output(); }
    int end(int signal) {
        process_.send(signal);
        return process_.wait().code;
    }

private:
    bool answers() const {
        try {
            connect_worker(address_);
            return true;
        } catch (const Error& error) {
            return error.code() != ErrorCode::io;
        }
    }

    // To its processes: first the one that waits for clients, then theirs.
    void signal_all(int signal, size_t first = 0) const {
        std::vector<pid_t> own;
        for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
            const std::string name = entry.path().filename();
            if (name.find_first_not_of("0123456789") != std::string::npos) continue;
            std::string words;
            std::getline(std::ifstream(entry.path() / "cmdline"), words);  // it may have ended
            if (words.find("worker") != std::string::npos && words.find(address_) != std::string::npos)
                own.push_back(std::stoi(name));
        }
        std::ranges::sort(own);
        ASSERT_GT(own.size(), first);
        for (size_t i = first; i < own.size(); ++i) ::kill(own[i], signal);
    }

    std::string address_;
    Process process_;
};

// False in builds with a llama.cpp of their own.
bool has_module() {
    try {
        connect_worker(free_address());
    } catch (const Error& error) {
        return error.code() != ErrorCode::unsupported;
    }
    return true;
}

class Workers : public testing::Test {
protected:
    void SetUp() override {
        if (!has_module()) GTEST_SKIP() << "without ggml's module for workers";
    }
};

EngineOptions options_on(const std::string& device) {
    return {.threads = 1, .context = 48, .f32 = true, .device = device};
}

TEST_F(Workers, ResultsOfOneProcess) {
    const Worker one, two;
    const std::string both = fmt::format("rpc:{},{}", one.address(), two.address());
    const auto expect_same = [&](const std::string& name, const Model& model) {
        const auto tokens = random_tokens(20, model.config.n_vocab, 1);
        const auto expected = all_logits(model, tokens, options_on(std::string(kPlainCpu)));
        for (const std::string& device : {both, both + ",cpu", "cpu,rpc:" + two.address()})
            EXPECT_LE(scaled_difference(all_logits(model, tokens, options_on(device)), expected), 1e-5)
                << name << ", " << device;
    };
    expect_same("GQA", load_model(std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf"));
    expect_same("loops", looped_model("llama"));
    ExpressionBuilder shared("gpt2");
    shared.at(1, Slot::attn_q) = shared.heads(1, Slot::attn_q);
    shared.tie(2, 0, Slot::ffn_up);
    shared.share_kv(3, 2);
    expect_same("shared weights, keys and values", shared.finish());
}

TEST_F(Workers, ProgramAnswersTheSame) {
    const Worker one, two;
    const auto text = [](const std::string& device) {
        return refold({"run", std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf", "-p", "a b",
                       "--max-tokens", "12", "--temperature", "0", "--threads", "1", "--f32", "--device",
                       device});
    };
    const Outcome here = text("cpu"), there = text(fmt::format("rpc:{},{}", one.address(), two.address()));
    EXPECT_EQ(here.code, 0) << here.err;
    EXPECT_EQ(there.code, 0) << there.err;
    EXPECT_EQ(there.out, here.out);
}

TEST_F(Workers, LostOneEndsInAnError) {
    Worker first;
    const Worker other;
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf");
    const EngineOptions options = options_on(fmt::format("rpc:{},{}", first.address(), other.address()));
    const auto tokens = random_tokens(8, model.config.n_vocab, 1);
    {
        SingleSequence sequence(model, options);
        EXPECT_FALSE(sequence.evaluate(tokens).empty());
        first.kill();
        for (int i = 0; i < 2; ++i)
            EXPECT_EQ(code_of([&] { sequence.evaluate(std::span(tokens).first(1)); }, "is lost"),
                      ErrorCode::io);
    }
    EXPECT_EQ(code_of([&] { make_engine(model, options); }, "nothing answers"), ErrorCode::io);
    // Back again, at the same address.
    const Worker again(first.address());
    SingleSequence sequence(model, options);
    EXPECT_EQ(sequence.evaluate(tokens).size(), static_cast<size_t>(model.config.n_vocab));
}

TEST_F(Workers, PatienceEnds) {
    Worker worker;
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf");
    EngineOptions options = options_on("rpc:" + worker.address());
    options.workers.patience = std::chrono::seconds(1);
    SingleSequence sequence(model, options);
    const auto tokens = random_tokens(8, model.config.n_vocab, 1);
    EXPECT_FALSE(sequence.evaluate(tokens).empty());
    worker.hang();
    EXPECT_EQ(code_of([&] { sequence.evaluate(tokens); }, "is lost"), ErrorCode::io);
    worker.kill();
}

// A connection that sends these bytes and reads nothing.
class Connection {
public:
    Connection(const std::string& worker, const std::string& bytes)
        : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to.sin_port = htons(static_cast<uint16_t>(std::stoi(worker.substr(worker.find(':') + 1))));
        EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
        EXPECT_EQ(send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(bytes.size()));
    }
    Connection(Connection&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
    Connection& operator=(Connection&&) = delete;
    ~Connection() {
        if (socket_ >= 0) close(socket_);
    }
    // Whether the worker ends it within seconds, whatever it says before.
    bool is_ended() const {
        std::array<char, 256> bytes{};
        pollfd wanted{socket_, POLLIN, 0};
        while (poll(&wanted, 1, 20000) > 0)
            if (recv(socket_, bytes.data(), bytes.size(), 0) <= 0) return true;
        return false;
    }

private:
    int socket_;
};

std::string greeting() { return std::string("\x0e\x18\0\0\0\0\0\0\0", 9) + std::string(24, '\0'); }

std::string answer_of(const std::string& device) {
    return refold({"run", std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf", "-p", "a b", "--max-tokens",
                   "12", "--temperature", "0", "--threads", "1", "--f32", "--device", device})
        .out;
}

TEST_F(Workers, HostileClientsEndAlone) {
    const Worker worker;
    const std::string expected = answer_of("cpu");
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf");
    SingleSequence honest(model, options_on("rpc:" + worker.address()));
    const auto tokens = random_tokens(8, model.config.n_vocab, 1);
    const std::string huge("\0\0\0\0\0\0\0\x80", 8);
    for (const bool greets : {false, true})
        for (int command = 0; command < 20; ++command) {
            const Connection hostile(
                worker.address(),
                (greets ? greeting() : "") + static_cast<char>(command) + huge + std::string(512, '\0'));
            EXPECT_TRUE(hostile.is_ended()) << command;
        }
    EXPECT_FALSE(honest.evaluate(tokens).empty());
    EXPECT_EQ(answer_of("rpc:" + worker.address()), expected);
    // What ends a client's process ends no other client's.
    worker.crash_clients();
    EXPECT_EQ(code_of([&] { honest.evaluate(std::span(tokens).first(1)); }, "is lost"), ErrorCode::io);
    EXPECT_EQ(answer_of("rpc:" + worker.address()), expected);
}

TEST_F(Workers, SilentClientsLockNobodyOut) {
    const Worker worker;
    const std::string expected = answer_of("cpu");
    std::vector<Connection> silent;
    for (int i = 0; i < 100; ++i)
        silent.emplace_back(worker.address(), i % 2 == 0 ? "" : greeting().substr(0, 20));
    EXPECT_EQ(answer_of("rpc:" + worker.address()), expected);
    // More than there are places for clients, one of which has memory and is quiet.
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf");
    SingleSequence honest(model, options_on("rpc:" + worker.address()));
    const auto tokens = random_tokens(8, model.config.n_vocab, 1);
    EXPECT_FALSE(honest.evaluate(tokens).empty());
    for (int i = 0; i < 20; ++i) silent.emplace_back(worker.address(), greeting());
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_EQ(answer_of("rpc:" + worker.address()), expected);
    EXPECT_FALSE(honest.evaluate(std::span(tokens).first(1)).empty());
}

// Says what a worker would, but for the answers to one command.
class LyingWorker {
public:
    enum class Lie { zeros, ones, drip, silence, short_answer };
    enum Command {
        alloc = 0,
        alignment,
        largest,
        base,
        set = 6,
        hash,
        get,
        copy,
        compute,
        memory,
        init,
        size,
        hello,
        count
    };

    LyingWorker(int about, Lie lie) : about_(about), lie_(lie) {
        EXPECT_EQ(listen(listener_.socket_id(), 8), 0);
        thread_ = std::thread([this] {
            for (int client = 0; (client = accept(listener_.socket_id(), nullptr, nullptr)) >= 0;
                 close(client))
                serve(client);
        });
    }
    ~LyingWorker() {
        stop_ = true;
        shutdown(listener_.socket_id(), SHUT_RDWR);
        thread_.join();
    }
    std::string address() const { return listener_.address(); }

private:
    static bool read(int client, std::string& out, size_t size) {
        out.resize(size);
        return size == 0 || recv(client, out.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size);
    }
    static std::string number(uint64_t value, size_t size = 8) {
        return std::string(reinterpret_cast<const char*>(&value), size);
    }
    static uint64_t number_in(const std::string& text) {
        uint64_t out = 0;
        std::memcpy(&out, text.data() + text.size() - 8, 8);
        return out;
    }

    std::string answer(int command, const std::string& request) const {
        constexpr uint64_t kAddress = uint64_t{1} << 44;
        switch (command) {
            case alloc: return number(1) + number(number_in(request));
            case alignment: return number(64);
            case largest: return number(uint64_t{1} << 40);
            case base: return number(kAddress);
            case hash: return std::string(1, '\0');
            case get: return std::string(number_in(request), '\0');
            case copy: return std::string(1, '\1');
            case memory: return number(uint64_t{1} << 30) + number(uint64_t{1} << 30);
            case size: return number(4096);
            case hello: return std::string("\x07\0\0", 3) + std::string(25, '\0');
            case count: return number(1, 4);
            default: return "";
        }
    }

    void serve(int client) {
        for (std::string first, request; read(client, first, 9);) {
            const int command = first[0];
            if (!read(client, request, number_in(first))) return;
            std::string said = answer(command, request);
            if (said.empty()) continue;
            std::string length = number(said.size());
            if (command == about_) {
                if (lie_ == Lie::silence) continue;
                if (lie_ == Lie::zeros) std::ranges::fill(said, '\0');
                if (lie_ == Lie::ones) std::ranges::fill(said, '\xff');
                if (lie_ == Lie::short_answer) length = number(said.size() - 1);
            }
            said = length + said;
            const bool drips = command == about_ && lie_ == Lie::drip;
            const size_t piece = drips ? 1 : said.size();
            for (size_t at = 0; at < said.size() && !stop_; at += piece) {
                if (drips) std::this_thread::sleep_for(std::chrono::milliseconds(200));
                if (send(client, said.data() + at, piece, MSG_NOSIGNAL) <= 0) return;
            }
        }
    }

    Listener listener_;
    const int about_;
    const Lie lie_;
    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

// An error or, where any numbers would do, an answer - within the time of an answer.
TEST_F(Workers, LyingOnesAreNotBelieved) {
    using Lie = LyingWorker::Lie;
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf");
    const auto tokens = random_tokens(8, model.config.n_vocab, 1);
    for (const int about : {LyingWorker::alloc, LyingWorker::alignment, LyingWorker::largest,
                            LyingWorker::base, LyingWorker::get, LyingWorker::memory, LyingWorker::count})
        for (const Lie lie : {Lie::zeros, Lie::ones, Lie::drip, Lie::silence, Lie::short_answer}) {
            // A drip takes as long; two are enough.
            if (lie == Lie::silence && about != LyingWorker::get && about != LyingWorker::count) continue;
            const LyingWorker worker(about, lie);
            EngineOptions options = options_on("rpc:" + worker.address());
            options.workers.patience = std::chrono::seconds(1);
            const auto begin = std::chrono::steady_clock::now();
            bool failed = false;
            try {
                SingleSequence sequence(model, options);
                sequence.evaluate(tokens);
            } catch (const Error& error) {
                failed = true;
                EXPECT_NE(error.code(), ErrorCode::internal) << error.what();
            }
            // Any logits, as large a buffer as can be, and no memory that is known.
            const bool possible = (about == LyingWorker::get && (lie == Lie::zeros || lie == Lie::ones)) ||
                                  (about == LyingWorker::largest && lie == Lie::ones) ||
                                  (about == LyingWorker::memory && lie == Lie::zeros);
            EXPECT_TRUE(failed || possible) << about << ", " << static_cast<int>(lie);
            EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20))
                << about << ", " << static_cast<int>(lie);
        }
}

TEST_F(Workers, ServeLoadsItsModelAgain) {
    Worker first;
    Serving serving({"--device", "rpc:" + first.address()});
    const auto ask = [&] {
        const nlohmann::json body = {{"prompt", "a b"}, {"max_tokens", 8}, {"temperature", 0}};
        return serving.client().post("/v1/completions", body.dump());
    };
    const HttpReply before = ask();
    ASSERT_EQ(before.status, 200) << before.body;
    first.kill();
    const HttpReply lost = ask(), away = ask();
    EXPECT_EQ(lost.status, 500);
    EXPECT_THAT(lost.body, testing::HasSubstr("is lost"));
    EXPECT_EQ(away.status, 503);
    EXPECT_THAT(away.body, testing::HasSubstr("nothing answers there"));
    const Worker again(first.address());
    const HttpReply after = ask();
    ASSERT_EQ(after.status, 200) << after.body;
    EXPECT_EQ(after.json()["choices"][0]["text"], before.json()["choices"][0]["text"]);
    const Outcome ended = serving.stop();
    EXPECT_EQ(ended.code, 0);
    EXPECT_THAT(ended.err, testing::HasSubstr("as one of its workers is lost"));
}

// That of both workers, each of which has what this machine has.
TEST_F(Workers, SeveralModelsHaveTheirMemory) {
    const Worker one, two;
    Serving serving({std::string(REFOLD_FIXTURES) + "/llama/model.gguf", "--name", "one", "--name", "two",
                     "--device", fmt::format("rpc:{},{}", one.address(), two.address())});
    EXPECT_GT(serving.started["memory"].get<uint64_t>(), memory_of().available);
    EXPECT_EQ(serving.stop().code, 0);
}

// Passes connections on to a worker and counts them.
class Counter {
public:
    explicit Counter(const std::string& worker) : worker_(worker) {
        EXPECT_EQ(listen(listener_.socket_id(), 8), 0);
        thread_ = std::thread([this] {
            for (;;) {
                const int client = accept(listener_.socket_id(), nullptr, nullptr);
                if (client < 0) return;
                ++count_;
                pass_on(client);
            }
        });
    }
    ~Counter() {
        shutdown(listener_.socket_id(), SHUT_RDWR);
        thread_.join();
    }
    std::string address() const { return listener_.address(); }
    int count() const { return count_; }

private:
    // Until either side ends it.
    void pass_on(int client) const {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to.sin_port = htons(static_cast<uint16_t>(std::stoi(worker_.substr(worker_.find(':') + 1))));
        const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        EXPECT_EQ(connect(server, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
        std::array<pollfd, 2> ends = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}};
        std::vector<char> bytes(1 << 16);
        for (bool open = true; open && poll(ends.data(), ends.size(), -1) > 0;) {
            for (size_t i = 0; i < ends.size() && open; ++i) {
                if (ends[i].revents == 0) continue;
                const ssize_t got = recv(ends[i].fd, bytes.data(), bytes.size(), 0);
                open = got > 0 &&
                       send(ends[1 - i].fd, bytes.data(), static_cast<size_t>(got), MSG_NOSIGNAL) == got;
            }
        }
        close(client);
        close(server);
    }

    Listener listener_;
    const std::string worker_;
    std::atomic<int> count_ = 0;
    std::thread thread_;
};

TEST_F(Workers, OneConnectionForAModel) {
    const Worker worker;
    const Model model = load_model(std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf");
    const Counter counter(worker.address());
    for (const int expected : {1, 2}) {
        SingleSequence sequence(model, options_on("rpc:" + counter.address()));
        EXPECT_FALSE(sequence.evaluate(random_tokens(8, model.config.n_vocab, 1)).empty());
        EXPECT_EQ(counter.count(), expected);
    }
}

// The CPU has the first layers; and more than a worker's memory is refused with what fits.
TEST_F(Workers, SomeLayers) {
    const Worker worker;
    const std::string model = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";
    const auto run = [&](std::vector<std::string> more) {
        std::vector<std::string> words = {"run", model,           "-p", "a b",       "-n",
                                          "12",  "--temperature", "0",  "--threads", "1"};
        words.insert(words.end(), more.begin(), more.end());
        return refold(words);
    };
    const Outcome here = run({"--f32"});
    for (const char* layers : {"0", "1"}) {
        const Outcome there = run({"--f32", "--device", "rpc:" + worker.address(), "--gpu-layers", layers});
        EXPECT_EQ(there.code, 0) << there.err;
        EXPECT_EQ(there.out, here.out) << layers;
    }
    const Model loaded = load_model(model);
    const int64_t layer_token = 2 * loaded.config.n_head_kv * loaded.config.head_dim * 2,  // bytes, F16
        layers = static_cast<int64_t>(loaded.topology.layers.size());
    const auto free = static_cast<int64_t>(connect_worker(worker.address()).front().free);
    const int64_t context = free / layer_token / layers + free / layer_token / layers / (2 * layers);
    if (context > std::numeric_limits<int32_t>::max() / 2) GTEST_SKIP() << "too much memory";
    expect_error(run({"--device", "rpc:" + worker.address(), "--context", std::to_string(context)}), 1,
                 {"of free memory, and its part of the model needs",
                  fmt::format("--gpu-layers {} of {} fits", layers - 1, layers)});
}

TEST_F(Workers, Addresses) {
    const auto connect = [](const std::string& address, bool anywhere = false) {
        return [=] { connect_worker(address, {.anywhere = anywhere}); };
    };
    for (const char* address :
         {"", "here", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:x", ":1", "127.0.0.1:65536"})
        EXPECT_EQ(code_of(connect(address), "HOST:PORT"), ErrorCode::usage) << address;
    for (const char* address : {"[::1]:50052", "::1:50052"})
        EXPECT_EQ(code_of(connect(address), "no IPv6"), ErrorCode::usage) << address;
    for (const char* address : {"8.8.8.8:1", "172.32.0.1:1", "11.0.0.1:1", "0.0.0.0:1"})
        EXPECT_EQ(code_of(connect(address), "--rpc-anywhere"), ErrorCode::usage) << address;
    EXPECT_EQ(code_of(connect(free_address()), "nothing answers there"), ErrorCode::io);
    EXPECT_EQ(code_of(connect(free_address(), true), "nothing answers there"), ErrorCode::io);
    expect_error(refold({"worker", "0.0.0.0:1"}), 2, {"--rpc-anywhere"});
    const Listener taken;
    ASSERT_EQ(listen(taken.socket_id(), 1), 0);
    expect_error(refold({"worker", taken.address()}), 1, {"cannot listen on", taken.address()});
    expect_error(refold({"run", std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf", "-p", "a", "--device",
                         "rpc:" + free_address()}),
                 1, {"nothing answers there"});
}

TEST_F(Workers, SayWhereTheyAreAndEndBySignals) {
    for (const int signal : {SIGINT, SIGTERM}) {
        Worker worker;
        EXPECT_THAT(worker.said(), testing::HasSubstr(worker.address()));
        EXPECT_EQ(worker.end(signal), 130);
    }
}

// A greeting that comes byte by byte, half a minute in all.
TEST_F(Workers, SlowGreetings) {
    const std::string greeting(36, '\x1c');
    const std::chrono::seconds pause(1);
    const FakeWorker slow(greeting, pause), interrupted(greeting, pause);
    Process waiting({REFOLD_BINARY, "run", REFOLD_FIXTURES "/llama_gqa/model.gguf", "-p", "a", "--device",
                     "rpc:" + interrupted.address()});
    for (int i = 0; i < 600 && !interrupted.greeted(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    waiting.send(SIGINT);
    EXPECT_EQ(waiting.wait().code, 130);
    EXPECT_EQ(code_of([&] { connect_worker(slow.address()); }, "does not answer"), ErrorCode::io);
}

TEST_F(Workers, OthersThanWorkersOfThisVersion) {
    const auto error_of = [](const std::string& answer) {
        const FakeWorker fake(answer);
        try {
            connect_worker(fake.address());
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    const std::string size("\x1c\0\0\0\0\0\0\0", 8), rest(25, '\0');
    EXPECT_THAT(error_of(size + std::string("\x06\x01\0", 3) + rest),
                testing::HasSubstr("speaks ggml's protocol 6.1"));
    EXPECT_THAT(error_of(""), testing::HasSubstr("is no worker, or one of another version"));
    EXPECT_THAT(error_of("HTTP/1.1 400 Bad Request\r\n\r\n0123456789"), testing::HasSubstr("is no worker"));
}

}  // namespace
}  // namespace refold
