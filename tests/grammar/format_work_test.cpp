// Formats that would take hours or all memory, from a generator as well: each one is compiled or refused
// within its steps, and compiling can be ended from outside.
#include "grammar/format_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "grammar/nasty_formats.h"
#include "grammar/small_vocabulary.h"

namespace refold {
namespace {

using testing::HasSubstr;
using Kind = OutputFormat::Kind;

const std::vector<OutputFormat> kSlow = {
    {.kind = Kind::json_schema, .text = R"({"type": "string", "pattern": "(\\w{1,50}\\s?){1,50}"})"},
    {.kind = Kind::json_schema, .text = R"({"type": "string", "pattern": "(.*a){100}"})"},
    {.kind = Kind::json_schema, .text = R"({"type": "string", "minLength": 5000, "maxLength": 90000})"},
    {.kind = Kind::regex, .text = "(\\w{1,100}\\s?){1,100}"},
    {.kind = Kind::regex, .text = "(((a{1,100}){1,100}){1,100}){1,100}"},
    {.kind = Kind::regex, .text = "[\\s\\S]{1,100000}x"},
    {.kind = Kind::grammar, .text = "root ::= (\"a\" | \"aa\"? [a-z]{1,90}){1,90}"}};

TEST(FormatWork, EndsWhatTakesTooManySteps) {
    for (const OutputFormat& format : kSlow) {
        GrammarCompiler own(tokenizer(), kVocab);
        const FormatWork bounded({}, 1'000'000);
        try {
            own.compile(format);
            ADD_FAILURE() << format.text << " is compiled";
        } catch (const FormatError& error) {
            EXPECT_THAT(error.what(), HasSubstr("takes too long")) << format.text;
        }
    }
}

struct Left {
};  // what a check throws; no std::exception, so that nothing takes it for an error of the format

TEST(FormatWork, ACheckEndsIt) {
    for (const OutputFormat& format : kSlow) {
        GrammarCompiler own(tokenizer(), kVocab);
        const FormatWork work([] { throw Left(); });
        EXPECT_THROW(own.compile(format), Left) << format.text;
    }
    // The same for errors, which are not those of the format.
    GrammarCompiler own(tokenizer(), kVocab);
    const FormatWork work([] { throw std::runtime_error("the client left"); });
    try {
        own.compile(kSlow[0]);
        ADD_FAILURE() << "it is compiled";
    } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "the client left");
        EXPECT_EQ(dynamic_cast<const Error*>(&error), nullptr);
    }
}

TEST(FormatWork, IsCountedForThisThreadAndTheInnermost) {
    EXPECT_FALSE(FormatWork::active());
    FormatWork::count(1'000'000'000'000);  // nobody counts
    const FormatWork outer({}, 100);
    {
        const FormatWork inner({}, 10);
        EXPECT_NO_THROW(FormatWork::count(10));
        EXPECT_FALSE(FormatWork::ended());
        EXPECT_THROW(FormatWork::count(1), FormatError);
        EXPECT_TRUE(FormatWork::ended());
    }
    EXPECT_TRUE(FormatWork::active());
    EXPECT_FALSE(FormatWork::ended());
    EXPECT_NO_THROW(FormatWork::count(100));
}

// Whatever is compiled, the check is called again and again.
TEST(FormatWork, NastyFormatsEnd) {
    std::map<std::string, int> ends;
    for (uint32_t seed = 0; seed < 150; ++seed) {
        const OutputFormat format = nasty_format(seed);
        GrammarCompiler own(tokenizer(), kVocab);
        const FormatWork bounded({}, 20'000'000);
        try {
            own.compile(format);
            ++ends["compiled"];
        } catch (const FormatError&) {
            ++ends["too long"];
        } catch (const Error& error) {
            ++ends["refused"];
        }
    }
    EXPECT_GT(ends["compiled"], 20);
    EXPECT_GT(ends["too long"], 20);
}

// One token of a text can take as long as compiling.
TEST(FormatWork, EndsTextsWhoseTokensTakeTooLong) {
    GrammarCompiler own(tokenizer(), kVocab);
    GrammarState state(
        own.compile({.kind = Kind::grammar, .text = "root ::= s\ns ::= s s s | s s | \"a\" | \"\""}));
    const int32_t token = tokenizer().encode("a", false, false).front();
    EXPECT_THROW(
        {
            for (int i = 0; i < 3000; ++i)
                if (state.allows(token)) state.accept(token);
        },
        FormatError);
}

}  // namespace
}  // namespace refold
