#include "serve/http_head.h"

#include <gtest/gtest.h>

namespace refold {
namespace {

int status_of(const std::string& headers, const std::string& request = "POST / HTTP/1.1") {
    const auto head = scan_head(request + "\r\n" + headers + "\r\n", 1000);
    return head ? head->status : -1;
}

TEST(HttpHead, LengthOfARequest) {
    const std::string text = "POST / HTTP/1.1\r\nHost: x\r\ncontent-LENGTH: \t12 \r\n\r\n";
    const auto head = scan_head(text + "{\"a\": 1}", 1000);
    ASSERT_TRUE(head);
    EXPECT_EQ(head->status, 0);
    EXPECT_EQ(head->bytes, text.size());
    EXPECT_EQ(head->body, 12U);
    EXPECT_FALSE(head->expects_continue);
    EXPECT_TRUE(scan_head("PUT / HTTP/1.1\r\nContent-Length: 1\r\nExpect: 100-Continue\r\n\r\n", 9)
                    ->expects_continue);
    EXPECT_EQ(scan_head("GET / HTTP/1.1\r\n\r\n", 1000)->body, 0U);
    for (size_t i = 0; i < text.size(); ++i) EXPECT_FALSE(scan_head(text.substr(0, i), 1000)) << i;
}

TEST(HttpHead, ABodyInChunks) {
    const std::string text = "POST /a?b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\nA: b\r\n\r\n";
    const auto head = scan_head(text, 1000);
    ASSERT_TRUE(head);
    EXPECT_EQ(head->status, 0);
    EXPECT_TRUE(head->chunked);
    EXPECT_EQ(text.substr(head->coding_begin, head->coding_end - head->coding_begin),
              "Transfer-Encoding: Chunked\r\n");
    EXPECT_EQ(head->path, "/a");
    EXPECT_FALSE(scan_head("GET / HTTP/1.1\r\n\r\n", 1000)->chunked);
}

TEST(HttpHead, PathOfARequest) {
    const auto path = [](const std::string& request) {
        const std::string text = request + "\r\n\r\n";
        return std::string(scan_head(text, 1000)->path);
    };
    EXPECT_EQ(path("GET /health HTTP/1.1"), "/health");
    EXPECT_EQ(path("GET /health?x=/y HTTP/1.1"), "/health");
    EXPECT_EQ(path("GET /health"), "/health");
    EXPECT_EQ(path("nonsense"), "");
    EXPECT_EQ(path(""), "");
}

TEST(HttpHead, RequestLines) {
    EXPECT_EQ(status_of("", "GET /health?x=/y HTTP/1.0"), 0);
    for (const char* line :
         {"", "nonsense", "GET /health", "GET  / HTTP/1.1", "GET / HTTP/1.1 ", " / HTTP/1.1",
          "GET /a b HTTP/1.1", "PRI * HTTP/2.0", "GET / HTTP/1.11", "GET /\x01 HTTP/1.1"})
        EXPECT_EQ(status_of("", line), 400) << line;
    EXPECT_EQ(status_of("Host: a\r\nhost: b\r\n", "GET / HTTP/1.1"), 400);
}

TEST(HttpHead, LongHeaders) {
    const std::string name = "A: ";
    EXPECT_EQ(status_of(name + std::string(kLongestHeaderLine - name.size(), 'a') + "\r\n", "GET / HTTP/1.1"),
              0);
    EXPECT_EQ(
        status_of(name + std::string(kLongestHeaderLine - name.size() + 1, 'a') + "\r\n", "GET / HTTP/1.1"),
        431);
}

TEST(HttpHead, WhatCouldBeReadInTwoWaysIsRefused) {
    EXPECT_EQ(status_of("Content-Length: 5\r\n"), 0);
    for (const char* headers :
         {"Content-Length: 5\r\nContent-Length: 5\r\n", "Content-Length: 5, 5\r\n", "Content-Length: +5\r\n",
          "Content-Length: -5\r\n", "Content-Length: 0x5\r\n", "Content-Length:\r\n",
          "Content-Length : 5\r\n", "A: b\r\n folded\r\nContent-Length: 5\r\n",
          "no colon\r\nContent-Length: 5\r\n", ": empty\r\nContent-Length: 5\r\n",
          "A: b\nContent-Length: 6\r\nContent-Length: 5\r\n"})
        EXPECT_EQ(status_of(headers), 400) << headers;
    EXPECT_EQ(status_of(std::string("A: \0\r\n", 6) + "Content-Length: 5\r\n"), 400);
    for (const char* headers :
         {"Transfer-Encoding: gzip\r\n", "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding:\r\n",
          "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
          "Content-Length: 5\r\ntransfer-encoding: chunked\r\n",
          "transfer-encoding: chunked\r\nContent-Length: 5\r\n"})
        EXPECT_EQ(status_of(headers), 400) << headers;
    EXPECT_EQ(status_of("Transfer-Encoding: chunked\r\n", "POST / HTTP/1.0"), 400);
    EXPECT_EQ(status_of(""), 411);
    EXPECT_EQ(status_of("", "GET / HTTP/1.1"), 0);
    EXPECT_EQ(status_of("Content-Length: 1001\r\n"), 413);
    EXPECT_EQ(status_of("Content-Length: 99999999999999999999999\r\n"), 413);
}

}  // namespace
}  // namespace refold
