#include "core/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "core/error_of.h"
#include "core/stored_text.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::HasSubstr;

std::string nested(size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

template <typename Value>
std::string problem_of(const std::string& text, const JsonLimits& limits = {}) {
    std::string problem;
    EXPECT_TRUE(try_parse_json<Value>(text, &problem, limits).is_discarded()) << text.substr(0, 60);
    return problem;
}

TEST(JsonText, ValuesAreThoseOfNlohmannsParser) {
    for (const char* text :
         {"null", " [1, -2, 2.5, true, \"a\\\"[{\", []] ", R"({"b": {"a": 1}, "a": [{}], "b": 2})",
          "18446744073709551615", "\"\\u00e9\\ud83d\\ude00\""}) {
        EXPECT_EQ(try_parse_json(text), json::parse(text));
        EXPECT_EQ(try_parse_json<ordered_json>(text), ordered_json::parse(text));
    }
    std::string large = "{";
    for (int i = 0; i < 100; ++i) large += "\"" + std::to_string(i % 60) + "\": " + std::to_string(i) + ",";
    large.back() = '}';
    EXPECT_EQ(try_parse_json<ordered_json>(large).dump(), ordered_json::parse(large).dump());
}

TEST(JsonText, LimitsAreExactAndSayWhere) {
    EXPECT_FALSE(try_parse_json(nested(100)).is_discarded());
    EXPECT_EQ(problem_of<json>(nested(101)), "nested too deep: more than 100 levels at byte 101");
    EXPECT_EQ(problem_of<ordered_json>(nested(101)), "nested too deep: more than 100 levels at byte 101");
    const JsonLimits five{.values = 5};
    for (const char* text : {"[1,2,3,4]", "[[],{},[],{}]", R"({"a": 1, "b": [ ]})", "[[[[[ ]]]]]"})
        EXPECT_FALSE(try_parse_json(text, nullptr, five).is_discarded()) << text;
    for (const char* text : {"[1,2,3,4,5]", "[[],{},[],{},[]]", R"({"a": 1, "b": [2]})", "[[[[[[]]]]]]"})
        EXPECT_THAT(problem_of<json>(text, five), HasSubstr("too large: more than 5 values at byte"));
    EXPECT_THAT(problem_of<json>("[1, 2]", {.bytes = 5}), HasSubstr("6 bytes"));
    // Brackets, commas and quotes within texts do not count.
    EXPECT_FALSE(
        try_parse_json(R"("[[[[[[,,,,,,\"[[[[[[,,,,")", nullptr, {.values = 1, .depth = 0}).is_discarded());
}

TEST(JsonText, WhatIsNoJsonIsSaid) {
    for (const char* text :
         {"", " ", "{", "[1,", "{\"a\"", "\"\xff\"", "nan", "[1] x", "'a'", "[1]]", "{1: 2}"})
        EXPECT_THAT(problem_of<json>(text), HasSubstr("no valid JSON at byte")) << text;
    EXPECT_EQ(problem_of<json>("[1e999]"), "a number is out of range");
    EXPECT_EQ(error_of([] { parse_json("{", "part", "'x.json'"); }),
              "[part] 'x.json' is not valid JSON: no valid JSON at byte 2");
    const JsonLimits unique{.unique_keys = true};
    EXPECT_EQ(problem_of<json>(R"({"a": {"b": 1, "b": 2}})", unique), "key 'b' is there twice");
    EXPECT_EQ(problem_of<ordered_json>(R"({"a": 1, "a": 2})", unique), "key 'a' is there twice");
}

// Quadratic time would be hours here.
TEST(JsonText, ManyKeysAreReadInLinearTime) {
    std::string text = "{";
    for (int i = 0; i < 300'000; ++i) text += "\"" + std::to_string(i) + "\":{},";
    text.back() = '}';
    EXPECT_EQ(try_parse_json(text).size(), 300'000U);
    EXPECT_EQ(try_parse_json<ordered_json>(text).size(), 300'000U);
    EXPECT_THAT(problem_of<json>(std::string(99'000'000, '[')), HasSubstr("nested too deep"));
}

// Every other use of nlohmann's parser would be one without bounds.
TEST(JsonText, IsTheOnlyParser) {
    const std::regex parser(
        R"((json|Json|JSON)::(parse|accept|sax_parse|from_\w+)|BodyValue::\w*parse|\.parser_callback_t|>>\s*\w*[jJ]son\b|\b_json\b)");
    // The messages that processes of one run send each other.
    const std::string trusted = "src/tasks/run_tasks.cpp";
    size_t files = 0;
    for (const char* folder : {"src", "cli", "python/native"}) {
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
            const std::string path = entry.path();
            if (!(path.ends_with(".cpp") || path.ends_with(".h")) || path == "src/core/json_text.cpp")
                continue;
            ++files;
            const std::string text = read_all(path);
            const auto found = std::sregex_iterator(text.begin(), text.end(), parser);
            const auto uses = std::distance(found, std::sregex_iterator());
            EXPECT_EQ(uses, path == trusted ? 1 : 0)
                << path << ": use core/json_text.h, not " << found->str();
        }
    }
    EXPECT_GT(files, 500U);
}

TEST(StoredText, OnlyRegularFilesAreRead) {
    const TempFolder folder;
    write_all(folder / "text", "grüße");
    EXPECT_EQ(read_stored_text(folder / "text"), "grüße");
    ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
    std::filesystem::create_symlink("/dev/zero", folder / "device");
    for (const std::string& path : {folder / "fifo", folder / "device"})
        EXPECT_THAT(error_of([&] { read_stored_text(path); }, ErrorCode::io),
                    HasSubstr("not a regular file"));
    EXPECT_THAT(error_of([&] { read_stored_text(folder / "."); }, ErrorCode::io),
                HasSubstr("is a directory"));
    write_all(folder / "huge", "x");
    std::filesystem::resize_file(folder / "huge", uint64_t{1} << 40);
    EXPECT_THAT(error_of([&] { read_stored_text(folder / "huge"); }), HasSubstr("expected at most"));
    write_all(folder / "empty", "");
    EXPECT_THAT(error_of([&] { read_stored_text(folder / "empty"); }), HasSubstr("is empty"));
    write_all(folder / "latin1", "gr\xfc\xdf");
    EXPECT_THAT(error_of([&] { read_stored_text(folder / "latin1"); }), HasSubstr("0xfc at offset 2"));
}

}  // namespace
}  // namespace refold
