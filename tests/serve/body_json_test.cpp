#include "serve/body_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/api_error.h"

namespace refold {
namespace {

using testing::HasSubstr;

TEST(BodyJson, IsWhatNlohmannReads) {
    for (const char* text :
         {R"({"a": [1, -2, 2.5, "t\u00e9xt", null, true, {"b": {}, "c": []}], "": false, "a ": [[[]]]})",
          "[]", "{}", "5", "\"text\"", "null", R"({"twice": 1, "twice": {"other": [2]}})",
          "18446744073709551615"})
        EXPECT_EQ(BodyJson(text).value(), BodyValue::parse(text)) << text;
}

TEST(BodyJson, CountsBeforeItReads) {
    const std::string text = R"({"a": [1, 2, "xyz"], "bc": {}})";
    const BodyCost cost = count_body(text);
    EXPECT_EQ(cost.body, text.size());
    EXPECT_EQ(cost.values, 8U);  // two objects, an array, three in it, and two keys
    EXPECT_EQ(cost.text, 6U);
    EXPECT_GT(cost.to_read(), cost.to_keep());
}

std::string refused(const std::string& text) {
    std::string message;
    for (const bool count : {true, false}) {
        try {
            count ? static_cast<void>(count_body(text)) : static_cast<void>(BodyJson(text));
            ADD_FAILURE() << "taken: " << text.substr(0, 60);
        } catch (const ApiError& error) {
            EXPECT_EQ(error.status, 400);
            EXPECT_TRUE(message.empty() || message == error.message);
            message = error.message;
        }
    }
    return message;
}

TEST(BodyJson, Limits) {
    const auto nested = [](int levels) {
        return std::string(static_cast<size_t>(levels), '[') + std::string(static_cast<size_t>(levels), ']');
    };
    EXPECT_NO_THROW(BodyJson(nested(kDeepestBody)));
    EXPECT_THAT(refused(nested(kDeepestBody + 1)), HasSubstr("nested too deep"));
    EXPECT_THAT(refused(std::string(1'000'000, '{')), HasSubstr("nested too deep"));
    std::string many = "[1";
    for (size_t i = 2; i < kMostBodyValues; ++i) many += ",1";
    EXPECT_NO_THROW(BodyJson(many + "]"));  // the array is a value, too
    EXPECT_THAT(refused(many + ",1]"), HasSubstr("more than 1048576 values"));
    EXPECT_THAT(refused("{\"a\": 1e999}"), HasSubstr("out of range"));
    EXPECT_THAT(refused("{\"a\": \"\xFF\"}"), HasSubstr("no valid JSON at byte"));
}

}  // namespace
}  // namespace refold
