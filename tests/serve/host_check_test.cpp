#include "serve/host_check.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace refold
