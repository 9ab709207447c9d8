#include "serve/host_check.h"

#include <gtest/gtest.h>

#include <string>

namespace refold {
namespace {

TEST(HostCheck, NamesOfThisMachine) {
    for (const char* host : {"", "localhost", "localhost:8080", "LocalHost", "localhost.", "localhost.:80",
                             "app.localhost:1", "127.0.0.1", "127.0.0.1:8080", "192.168.1.5:80", "[::1]",
                             "[::1]:8080", "own.example", "Own.Example:8080"})
        EXPECT_TRUE(is_own_host(host, "own.example")) << host;
    for (const char* host :
         {"evil.example", "evil.example:8080", "localhost.evil.example", "notlocalhost",
          "127.0.0.1.evil.example", "x", "[evil.example]:80", "[", ":", "own.example.evil", "127.1"})
        EXPECT_FALSE(is_own_host(host, "own.example")) << host;
}

// What is no host and port (RFC 3986) is no name of this machine, whatever it ends with.
TEST(HostCheck, OnlyWhatTheGrammarAllows) {
    for (const char* host : {"localhost:", "localhost:65535", "a-b.c_d.localhost", "127.0.0.1.",
                             "LOCALHOST.:1", "[::FFFF:127.0.0.1]:80"})
        EXPECT_TRUE(is_own_host(host, "own.example")) << host;
    const std::string label(64, 'a');
    for (const std::string host : {"evil.example/.localhost",
                                   "evil.example\\.localhost",
                                   "evil.example?.localhost",
                                   "evil.example#.localhost",
                                   "evil.example@localhost",
                                   "localhost@evil.example",
                                   "user:pass@localhost",
                                   "evil.example%2f.localhost",
                                   "localhost%00",
                                   "evil.example:80.localhost",
                                   "evil.example:.localhost",
                                   "localhost:80:80",
                                   "localhost:x",
                                   "localhost:-1",
                                   "localhost:65536",
                                   "localhost: 80",
                                   " localhost",
                                   "localhost ",
                                   "local host",
                                   "localhost\t",
                                   "localhost,evil.example",
                                   "evil.example,localhost",
                                   "localhost;",
                                   "..localhost",
                                   ".localhost",
                                   "a..localhost",
                                   "localhost..",
                                   ".",
                                   "[::1",
                                   "::1",
                                   "::1]",
                                   "[::1]x",
                                   "[::1].localhost",
                                   "[::1]:80:80",
                                   "[127.0.0.1]",
                                   "[]",
                                   "[::1%25lo]",
                                   "\u043elocalhost",
                                   "evil\u3002localhost",
                                   "http://localhost",
                                   "*.localhost",
                                   "0x7f.1",
                                   "127.0.1",
                                   "own.example/",
                                   "own.example@evil"})
        EXPECT_FALSE(is_own_host(host, "own.example")) << host;
    EXPECT_FALSE(is_own_host(label + ".localhost", "own.example"));
    EXPECT_FALSE(is_own_host(std::string("evil\0.localhost", 15), "own.example"));
    EXPECT_FALSE(is_own_host("x/y", "x/y"));
}

}  // namespace
}  // namespace refold
