// HTTPS over real connections, with OpenSSL's own client.
#include "serve/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/error.h"
#include "serve/certificate.h"
#include "serve/running_server.h"

namespace refold {
namespace {

using namespace std::chrono_literals;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

// As make_certificate().
TlsFiles tls_files(const TempFolder& folder, const std::string& name, const std::string& subject) {
    const PemFiles files = make_certificate(folder, name, subject);
    return {files.certificate, files.key};
}

class TlsTest : public testing::Test {
protected:
    static RunningOptions with(const TlsFiles& files) {
        RunningOptions setup;
        setup.server.tls = files;
        return setup;
    }
    TempFolder folder_;
    TlsFiles files_ = tls_files(folder_, "server", "localhost");
};

const std::string kHealth = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
const std::string kOk = "{\"status\":\"ok\"}\n";

TEST_F(TlsTest, AnswersAndStreams) {
    RunningServer running(with(files_));
    EXPECT_THAT(running.server().url(), StartsWith("https://127.0.0.1:"));
    TlsClient client(running.server().port());
    ASSERT_TRUE(client.connected());
    EXPECT_EQ(client.version(), "TLSv1.3");
    EXPECT_EQ(client.subject(), "localhost");
    for (int i = 0; i < 2; ++i) {  // the connection is used again
        ASSERT_TRUE(client.send(kHealth));
        EXPECT_THAT(client.read_until(kOk), StartsWith("HTTP/1.1 200 OK"));
    }
    // A body of many records, and a stream.
    const json body = completion({{"stream", true}, {"user", std::string(100000, 'x')}});
    ASSERT_TRUE(client.send(post_text("/v1/completions", body.dump())));
    EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("text/event-stream"));
    ASSERT_TRUE(running.soon([&] { return running.log().size() == 1; }));
    EXPECT_EQ(running.log()[0].completion_tokens, 8);
}

TEST_F(TlsTest, NothingOlderThan12) {
    RunningServer running(with(files_));
    TlsClient older(running.server().port(), TLS1_2_VERSION);
    EXPECT_EQ(older.version(), "TLSv1.2");
    EXPECT_TRUE(older.send(kHealth));
    EXPECT_THAT(older.read_until(kOk), EndsWith(kOk));
    EXPECT_FALSE(TlsClient(running.server().port(), TLS1_1_VERSION).connected());
    // The client may not ask for other keys again and again.
    ASSERT_EQ(SSL_renegotiate(older.ssl()), 1);
    SSL_do_handshake(older.ssl());
    EXPECT_FALSE(older.send(kHealth) && SSL_renegotiate_pending(older.ssl()) == 0 &&
                 older.read_until(kOk + "HTTP").ends_with(kOk) && older.end() != SSL_ERROR_SSL);
    EXPECT_TRUE(TlsClient(running.server().port()).connected());
}

TEST_F(TlsTest, PlainHttpIsTold) {
    RunningServer running(with(files_));
    const HttpReply reply = running.get("/health");
    EXPECT_EQ(reply.status, 400);
    EXPECT_TRUE(reply.complete);
    EXPECT_THAT(reply.body, HasSubstr("https://"));
    HttpClient garbage = running.client();
    garbage.send(std::string(1000, '\x7f'));
    EXPECT_TRUE(garbage.at_end());
    EXPECT_TRUE(TlsClient(running.server().port()).connected());
}

// Whoever does not go on with the handshake, or stops within a record, costs no thread and is left in time.
TEST_F(TlsTest, SlowHandshakes) {
    RunningOptions setup = with(files_);
    setup.server.read_timeout = 2s;
    setup.server.idle_timeout = 2s;
    RunningServer running(setup);
    std::vector<HttpClient> silent;
    for (int i = 0; i < 200; ++i) {
        silent.push_back(running.client());
        if (i % 2 == 0) silent.back().send(std::string("\x16\x03\x01\x02", 4));  // the start of a hello
    }
    TlsClient within(running.server().port());
    ASSERT_TRUE(within.connected());
    static_cast<void>(!::send(within.ssl() == nullptr ? -1 : SSL_get_fd(within.ssl()), "\x17\x03\x03", 3, 0));
    TlsClient client(running.server().port());
    ASSERT_TRUE(client.send(kHealth));
    EXPECT_THAT(client.read_until(kOk), EndsWith(kOk));
    for (HttpClient& one : silent) EXPECT_TRUE(one.at_end());
    within.read_until("never");
    EXPECT_EQ(client.end(), SSL_ERROR_ZERO_RETURN);  // closed for its silence, and told so
}

TEST_F(TlsTest, ConnectionsCountAsMemory) {
    RunningOptions setup = with(files_);
    setup.server.most_memory = 1 << 20;
    RunningServer running(setup);
    std::vector<HttpClient> clients;
    int refused = 0;
    for (int i = 0; i < 100; ++i) clients.push_back(running.client());
    for (HttpClient& client : clients) {
        client.send("GET / HTTP/1.1\r\n\r\n");
        refused += client.receive().status == 0;
    }
    EXPECT_GE(refused, 50);
    EXPECT_LT(refused, 70);
}

TEST_F(TlsTest, ReloadsAndKeepsWhatItHad) {
    RunningServer running(with(files_));
    const int port = running.server().port();
    TlsClient before(port);
    make_certificate(folder_, "server", "renewed");
    running.server().reload_certificate();
    EXPECT_EQ(TlsClient(port).subject(), "renewed");
    write_all(files_.certificate, "no certificate");
    EXPECT_THROW(running.server().reload_certificate(), Error);
    EXPECT_EQ(TlsClient(port).subject(), "renewed");
    // The key of another certificate.
    const TlsFiles other = tls_files(folder_, "other", "other");
    write_all(files_.certificate, read_all(other.certificate));
    EXPECT_THROW(running.server().reload_certificate(), Error);
    EXPECT_EQ(TlsClient(port).subject(), "renewed");
    ASSERT_TRUE(before.send(kHealth));
    EXPECT_THAT(before.read_until(kOk), EndsWith(kOk));
}

TEST_F(TlsTest, FilesThatAreWrong) {
    const auto expect = [&](const TlsFiles& files, const char* named) {
        try {
            const Tls tls(files);
            FAIL() << named;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::input);
            EXPECT_THAT(error.what(), HasSubstr(named));
        }
    };
    expect({folder_ / "missing", files_.key}, "missing");
    expect({files_.certificate, folder_ / "missing"}, "missing");
    expect({files_.key, files_.certificate}, "server.key");
    expect({files_.certificate, make_certificate(folder_, "other", "other").key}, "other.key");
    chmod(files_.key.c_str(), 0640);
    EXPECT_EQ(key_file_note(files_.key), "");
    chmod(files_.key.c_str(), 0644);
    EXPECT_THAT(key_file_note(files_.key), HasSubstr("every user"));
}

}  // namespace
}  // namespace refold
