#include "serve/chunked_body.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace refold {
namespace {

using State = ChunkedBody::State;

constexpr const char* kBody = "5\r\nhello\r\nA;name=value\r\n, chunks\r\n\r\n0\r\nTrailer: x\r\n\r\n";
constexpr const char* kDecoded = "hello, chunks\r\n";

TEST(ChunkedBody, WholeAtOnce) {
    std::string text = std::string("head") + kBody + "next";
    ChunkedBody body;
    EXPECT_EQ(body.decode(text, 4, 100), State::complete);
    EXPECT_EQ(body.size(), 15U);
    EXPECT_EQ(text, std::string("head") + kDecoded + "next");
}

// However it is cut, and without keeping the framing.
TEST(ChunkedBody, InPieces) {
    const std::string all = kBody;
    for (size_t piece = 1; piece < all.size(); ++piece) {
        std::string text = "head";
        ChunkedBody body;
        State state = State::incomplete;
        for (size_t at = 0; at < all.size(); at += piece) {
            ASSERT_EQ(state, State::incomplete);
            text += all.substr(at, piece);
            state = body.decode(text, 4, 100);
        }
        EXPECT_EQ(state, State::complete) << piece;
        EXPECT_EQ(text, std::string("head") + kDecoded) << piece;
    }
}

State decoded(std::string text, size_t most = 100) { return ChunkedBody().decode(text, 0, most); }

TEST(ChunkedBody, Limits) {
    EXPECT_EQ(decoded("5\r\nhello\r\n0\r\n\r\n", 5), State::complete);
    EXPECT_EQ(decoded("5\r\nhello\r\n0\r\n\r\n", 4), State::too_large);
    EXPECT_EQ(decoded("3\r\nhel\r\n3\r\n", 5), State::too_large);
    EXPECT_EQ(decoded("ffffffffffffffff\r\n"), State::too_large);
    EXPECT_EQ(decoded("fffffffffffffffff\r\n"), State::too_large);
    EXPECT_EQ(decoded(std::string(1000, '0')), State::malformed);
    EXPECT_EQ(decoded("0\r\nA: " + std::string(9000, 'a')), State::malformed);
    std::string trailers = "0\r\n";
    for (int i = 0; i < 1000; ++i) trailers += "A: aaaaaaaaaa\r\n";
    EXPECT_EQ(decoded(trailers), State::malformed);
}

// Anybody may send chunks of some bytes.
TEST(ChunkedBody, MuchFramingForLittle) {
    const auto chunks = [](int count, const std::string& data) {
        std::string text;
        for (int i = 0; i < count; ++i) text += fmt::format("{:x}\r\n{}\r\n", data.size(), data);
        return text + "0\r\n\r\n";
    };
    constexpr size_t kMost = 8 << 20;
    EXPECT_EQ(decoded(chunks(10'000, "1"), kMost), State::complete);
    EXPECT_EQ(decoded(chunks(30'000, "1"), kMost), State::malformed);
    EXPECT_EQ(decoded(chunks(100'000, "1234"), kMost), State::complete);
}

TEST(ChunkedBody, Malformed) {
    for (const char* text : {"\r\n", "x\r\n", "-1\r\n", "+1\r\n", "0x1\r\n", " 5\r\n", "5 \r\nhello",
                             "5\nhello\r\n", "5\r\nhello!\r\n", "5\r\nhello\n0\r\n\r\n", "0\r\n\n"})
        EXPECT_EQ(decoded(text), State::malformed) << text;
    EXPECT_EQ(decoded("5\r\nhell"), State::incomplete);
    EXPECT_EQ(decoded(""), State::incomplete);
}

}  // namespace
}  // namespace refold
