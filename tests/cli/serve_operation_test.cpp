// What operates `refold serve`: systemd's sockets and notices, SIGHUP, the access log, TLS.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "cli/refold.h"
#include "serve/certificate.h"
#include "serve/http_client.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kModel = REFOLD_FIXTURES "/llama_gqa/model.gguf";

// A datagram socket that a service manager listens at.
class NotifySocket {
public:
    explicit NotifySocket(const std::string& path)
        : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path.copy(address.sun_path, sizeof address.sun_path - 1);
        EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    }
    ~NotifySocket() { close(socket_); }
    std::string next() const {
        pollfd state{socket_, POLLIN, 0};
        char text[4096];
        const ssize_t count = poll(&state, 1, 20000) > 0 ? recv(socket_, text, sizeof text, 0) : 0;
        return {text, static_cast<size_t>(std::max<ssize_t>(count, 0))};
    }

private:
    int socket_;
};

// A socket that listens, for programs that this one starts.
int listener() {
    const int out = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(out, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(out, 16), 0);
    return out;
}

int port_of(int socket) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
}

std::vector<std::string> serve(std::vector<std::string> options) {
    options.insert(options.begin(), {REFOLD_BINARY, "serve", kModel, "--threads", "1", "--context", "128"});
    return options;
}

template <typename Condition>
testing::AssertionResult soon(Condition&& condition) {
    for (int i = 0; i < 2000; ++i) {
        if (condition()) return testing::AssertionSuccess();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return testing::AssertionFailure() << "not in 20 seconds";
}

// As systemd does: the socket is descriptor 3, and LISTEN_PID is the server's process. A client that connects
// before the server runs is answered, and one that connects while it stops waits for the next server.
TEST(ServeOperation, SocketActivation) {
    TempFolder folder;
    const NotifySocket notify(folder / "notify");
    const int socket = listener();
    const std::vector<std::string> variables = {"NOTIFY_SOCKET=" + (folder / "notify"), "LISTEN_FDS=1"};
    const std::string command = "exec 3<&" + std::to_string(socket) + "; LISTEN_PID=$$ exec \"$@\"";
    const auto words = [&](const std::vector<std::string>& options) {
        std::vector<std::string> out = {"bash", "-c", command, "bash"};
        for (const std::string& word : serve(options)) out.push_back(word);
        return out;
    };
    HttpClient early(port_of(socket));
    early.send("GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n");
    {
        Process process(words({"--json", "--port", "1"}), "", variables);
        EXPECT_EQ(early.receive().status, 200);
        EXPECT_THAT(notify.next(), testing::StartsWith("READY=1\nSTATUS=Serving at http://127.0.0.1:"));
        EXPECT_EQ(json::parse(process.output())["port"], port_of(socket));
        process.send(SIGTERM);
        EXPECT_THAT(notify.next(), HasSubstr("STOPPING=1"));
        EXPECT_EQ(process.wait().code, 0);
    }
    HttpClient between(port_of(socket));
    between.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    {
        Process process(words({"--quiet"}), "", variables);
        EXPECT_EQ(between.receive().status, 200);
        process.send(SIGTERM);
        EXPECT_EQ(process.wait().code, 0);
    }
    close(socket);
    // Not for this process, and nothing that listens.
    Process other({"bash", "-c", "exec 3</dev/null; LISTEN_PID=$$ exec \"$@\"", "bash", REFOLD_BINARY,
                   "serve", kModel, "--port", "0", "--threads", "1"},
                  "", {"LISTEN_FDS=1"});
    expect_error(other.wait(), 2, {"LISTEN_FDS"});
}

TEST(ServeOperation, HangupReadsAnew) {
    TempFolder folder;
    const NotifySocket notify(folder / "notify");
    const PemFiles tls = make_certificate(folder, "server", "first");
    chmod(tls.key.c_str(), 0644);
    write_all(folder / "keys", "old name=alice\n");
    Process process(serve({"--port", "0", "--json", "--tls-cert", tls.certificate, "--tls-key", tls.key,
                           "--api-key-file", folder / "keys", "--access-log", folder / "access"}),
                    "", {"NOTIFY_SOCKET=" + (folder / "notify")});
    EXPECT_THAT(notify.next(), HasSubstr("READY=1"));
    const json start = json::parse(process.output());
    EXPECT_THAT(start["url"].get<std::string>(), testing::StartsWith("https://127.0.0.1:"));
    const auto models = [&](const std::string& key) {
        TlsClient client(start["port"]);
        client.send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: " + key +
                    "\r\nx-api-key: " + key + "\r\nConnection: close\r\n\r\n");
        return std::pair(client.subject(), client.read_until("\"owned_by\"").substr(9, 3));
    };
    using Seen = std::pair<std::string, std::string>;
    // Requests are logged after their answers, by several threads.
    const auto logged = [&](const std::string& key) {
        return soon([&] { return read_all(folder / "access").find('"' + key + '"') != std::string::npos; });
    };
    EXPECT_EQ(models("old"), Seen("first", "200"));
    ASSERT_TRUE(logged("old"));
    EXPECT_EQ(models("new"), Seen("first", "401"));
    ASSERT_TRUE(logged("new"));

    // Other files; the log is moved away as logrotate does.
    make_certificate(folder, "server", "second");
    write_all(folder / "keys", "new name=bob rpm=100\n");
    std::filesystem::rename(folder / "access", folder / "access.1");
    process.send(SIGHUP);
    EXPECT_EQ(notify.next(), "RELOADING=1");
    EXPECT_EQ(notify.next(), "READY=1");
    EXPECT_EQ(models("new"), Seen("second", "200"));
    EXPECT_EQ(models("old"), Seen("second", "401"));
    ASSERT_TRUE(logged("old"));
    const std::string before = read_all(folder / "access.1");
    const json line = json::parse(before.substr(0, before.find('\n')));
    EXPECT_EQ(line["key"], "alice");
    EXPECT_EQ(line["request_id"], "old");
    EXPECT_EQ(line["status"], 200);

    // What is wrong changes nothing.
    write_all(folder / "keys", "newest rpm=none\n");
    write_all(tls.certificate, "");
    process.send(SIGHUP);
    EXPECT_EQ(notify.next(), "RELOADING=1");
    EXPECT_EQ(notify.next(), "READY=1");
    EXPECT_EQ(models("new"), Seen("second", "200"));
    process.send(SIGTERM);
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.err, HasSubstr("every user of this machine can read the key"));
    EXPECT_THAT(outcome.err, HasSubstr("SIGHUP: read again: keys, certificates, logs"));
    EXPECT_THAT(outcome.err, HasSubstr("SIGHUP: the keys stay as they were"));
    EXPECT_THAT(outcome.err, HasSubstr("SIGHUP: the certificates stay as they were"));
    EXPECT_THAT(outcome.err, testing::Not(HasSubstr("newest")));
    EXPECT_EQ(
        (std::filesystem::status(folder / "access").permissions() & std::filesystem::perms::others_read),
        std::filesystem::perms::none);
}

TEST(ServeOperation, LimitsFromTheCommandLine) {
    Process process(serve({"--port", "0", "--json", "--max-body", "2KiB", "--max-head", "1KiB",
                           "--read-timeout", "0.2", "--idle-timeout", "0.2", "--access-log", "-"}));
    ASSERT_TRUE(soon([&] { return process.output().find('\n') != std::string::npos; }));
    const int port = json::parse(process.output().substr(0, process.output().find('\n')))["port"];
    EXPECT_EQ(HttpClient(port).post("/tokenize", json({{"prompt", std::string(3000, 'x')}}).dump()).status,
              413);
    EXPECT_EQ(HttpClient(port).get("/health", "X: " + std::string(2000, 'x') + "\r\n").status, 431);
    HttpClient slow(port), silent(port);
    slow.send("GET /heal");
    EXPECT_EQ(slow.receive().status, 408);
    EXPECT_TRUE(silent.at_end());
    process.send(SIGTERM);
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("\"status\":413"));
    const auto refused = [&](const std::vector<std::string>& options, const std::vector<std::string>& named) {
        std::vector<std::string> words = {"serve", kModel, "--port", "0"};
        words.insert(words.end(), options.begin(), options.end());
        expect_error(refold(words), 2, named);
    };
    refused({"--max-body", "lots"}, {"--max-body", "lots"});
    refused({"--max-memory", "1KiB"}, {"--max-memory", "1KiB"});
    refused({"--tls-cert", "x"}, {"--tls-key"});
    refused({"--max-connections", "0"}, {"--max-connections"});
}

}  // namespace
}  // namespace refold
