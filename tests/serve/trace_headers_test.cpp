#include "serve/trace_headers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace refold {
namespace {

using testing::StartsWith;

TEST(TraceHeaders, RequestIds) {
    EXPECT_EQ(request_id("a-B_9.x:/+="), "a-B_9.x:/+=");
    EXPECT_EQ(request_id(std::string(128, 'a')), std::string(128, 'a'));
    const std::string made = request_id("");
    EXPECT_THAT(made, StartsWith("req-"));
    EXPECT_NE(request_id(""), made);
    for (const std::string& wrong : {std::string(129, 'a'), std::string("a b"), std::string("a\"b"),
                                     std::string("a\nb"), std::string("\xc3\xa4"), std::string("a\0b", 3)})
        EXPECT_THAT(request_id(wrong), StartsWith("req-"));
}

TEST(TraceHeaders, Traceparents) {
    const std::string good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    EXPECT_EQ(checked_traceparent(good), good);
    const std::string later = "01" + good.substr(2) + "-what-comes";
    EXPECT_EQ(checked_traceparent(later), later);
    const std::string zeros(32, '0');
    for (const std::string& wrong : std::vector<std::string>{
             std::string(), good.substr(1), good + "-", good + "0", "ff" + good.substr(2),
             "01" + good.substr(2) + "x", "00-" + zeros + good.substr(35),
             good.substr(0, 36) + zeros.substr(0, 16) + "-01",
             "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
             "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", later + "\n",
             later + std::string(60, 'x')})
        EXPECT_EQ(checked_traceparent(wrong), "") << wrong;
}

}  // namespace
}  // namespace refold
