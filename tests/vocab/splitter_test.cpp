#include "vocab/splitter.h"

#include <gtest/gtest.h>

#include "core/code_of.h"
#include "core/temp_folder.h"
#include "vocab/pre_tokenizers.h"
#include "vocab/regex.h"
#include "vocab/unicode.h"

namespace refold {
namespace {

const Json& golden() {
    static const Json json = Json::parse(read_all(REFOLD_FIXTURES "/tokenizers/pre_tokenizers.json"));
    return json;
}

TEST(Splitter, GivesThePartsOfHuggingFace) {
    const Json& texts = golden()["texts"];
    ASSERT_GT(texts.size(), 80U);
    for (const auto& [name, split] : golden()["splits"].items()) {
        const Splitter splitter(JsonView(split["pre_tokenizer"], name));
        for (size_t i = 0; i < texts.size(); ++i) {
            const auto parts = split["parts"][i].get<std::vector<std::string>>();
            EXPECT_EQ(splitter({texts[i], true}), parts) << name << ": " << texts[i];
        }
    }
}

TEST(Splitter, RefusesUnknownSteps) {
    const Json json{{"type", "UnicodeScripts"}};
    EXPECT_EQ(code_of([&] { (void)Splitter(JsonView(json, "file")); }, "UnicodeScripts"),
              ErrorCode::unsupported);
}

TEST(PreTokenizers, HaveTheNamesOfLibllama) {
    const auto name = [](const char* split, bool ignore_merges) {
        const Json& json = golden()["splits"][split]["pre_tokenizer"];
        const PreTokenizer found = recognize_pre_tokenizer(JsonView(json, split), ignore_merges);
        return found.name + (found.exact ? "" : " (own)");
    };
    EXPECT_EQ(name("o200k", false), "gpt-4o (own)");
    EXPECT_EQ(name("o200k", true), "gpt-4o (own)");
    EXPECT_EQ(name("llama3", true), "llama-bpe");
    EXPECT_EQ(name("llama3", false), "smaug-bpe");
    EXPECT_EQ(name("qwen2", false), "qwen2");
    EXPECT_EQ(name("qwen2", true), "qwen2 (own)");
    EXPECT_EQ(name("qwen35", false), "qwen35 (own)");
    EXPECT_EQ(name("tekken", true), "tekken (own)");
    EXPECT_EQ(name("bailing", false), "bailingmoe (own)");
    EXPECT_EQ(name("seed-coder", false), "seed-coder (own)");
    EXPECT_EQ(name("deepseek-v3", false), "deepseek-v3");
    EXPECT_EQ(name("falcon", false), "falcon (own)");
    EXPECT_EQ(name("starcoder", false), "smollm");
    EXPECT_EQ(name("clip", false), "refold (own)");
}

TEST(PreTokenizers, ComeBackFromTheirNames) {
    for (const char* name :
         {"gpt-4o", "llama4", "tekken", "qwen35", "seed-coder", "bailingmoe", "falcon", "hunyuan-dense"}) {
        const NamedPreTokenizer named = pre_tokenizer_named(name);
        const Json again = named.pre_tokenizer;
        const std::string found = recognize_pre_tokenizer(JsonView(again, name), named.ignore_merges).name;
        EXPECT_EQ(pre_tokenizer_named(found).pre_tokenizer, again) << name;
        const std::string text = "It's 12345 Größe, e\u0301!\r\n  x";
        std::string joined;
        for (const auto& part : Splitter(JsonView(again, name))({text, true})) joined += part;
        EXPECT_FALSE(joined.empty());
    }
}

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
    const Regex regex(pattern);
    const std::u32string points = to_code_points(text);
    Regex::Search search(regex, points);
    std::vector<std::string> out;
    size_t at = 0;
    while (const auto found = search.find(at)) {
        out.emplace_back();
        for (at = found->first; at < found->second; ++at) append_utf8(out.back(), points[at]);
    }
    return out;
}

// As many steps as Hugging Face's engine would take are more than anybody waits for.
TEST(Regex, TimeIsBoundedByTheText) {
    using Texts = std::vector<std::string>;
    const std::string many(20'000, 'a');
    EXPECT_EQ(matches("a*a*a*a*a*a*a*b", many), Texts{});
    EXPECT_EQ(matches("a*a*a*a*a*a*a*b", many + "b"), Texts{many + "b"});
    EXPECT_EQ(matches("a*?a*?a+a*?a*?b", many), Texts{});
    EXPECT_EQ(matches("(?:a|a)?(?:a|a)?(?:a|a)?(?:a|a)?(?:a|a)?(?:a|a)?b|a{20000}", many), Texts{many});
    EXPECT_EQ(matches("a+(?!a)b|a++b|a+c|a{3,}", many), Texts{many});
    std::string optional;
    for (int i = 0; i < 100; ++i) optional += "a?";
    EXPECT_EQ(matches(optional + "b", std::string(200, 'a')), Texts{});
    EXPECT_EQ(code_of([&] { (void)Regex(std::string(5000, 'a')); }, "characters"), ErrorCode::unsupported);
    std::string large;
    for (int i = 0; i < 1200; ++i) large += "a?";
    EXPECT_EQ(code_of([&] { (void)Regex(large); }, "parts"), ErrorCode::unsupported);
}

TEST(Regex, FindsLeftmostMatches) {
    using Texts = std::vector<std::string>;
    EXPECT_EQ(matches("a|ab", "abab"), (Texts{"a", "a"}));
    EXPECT_EQ(matches("ab|a", "abaa"), (Texts{"ab", "a", "a"}));
    EXPECT_EQ(matches("[^\\d\\s]{2,3}", "abcde f1gh"), (Texts{"abc", "de", "gh"}));
    EXPECT_EQ(matches("a*?b", "aab"), (Texts{"aab"}));
    EXPECT_EQ(matches("a*+a", "aaa"), Texts{});
    EXPECT_EQ(matches("x?", "axb"), (Texts{"x"}));  // empty matches are no matches
    EXPECT_EQ(matches("a(?=b)", "ab ac"), (Texts{"a"}));
    EXPECT_EQ(matches("a(?!b)", "ab ac"), (Texts{"a"}));
    EXPECT_EQ(matches("^a|b$", "aab\nab"), (Texts{"a", "b", "a", "b"}));
    EXPECT_EQ(matches("(?i:st|k)", "ST \u017fT \u212A"), (Texts{"ST", "\u017fT", "\u212A"}));
    EXPECT_EQ(matches("\\x41\\u00e9\\x{1F600}", "Aé\U0001F600"), (Texts{"Aé\U0001F600"}));
    EXPECT_EQ(matches("[\\p{Lu}\\p{^L}]+", "aB1-c"), (Texts{"B1-"}));
    EXPECT_EQ(matches("(?:ab|c)?d", "abd cd d"), (Texts{"abd", "cd", "d"}));
}

TEST(Regex, SquaredLettersAreWordCharacters) {
    EXPECT_EQ(matches("\\w+", "a\U0001F146\u24B6-\U0001F170\u2211").size(), 2U);
}

TEST(Regex, RefusesWhatItCannotBound) {
    for (const char* pattern :
         {"(a|b)+", "(?<=a)b", "a{2}+", "[a[b]]", "[a&&b]", "(a", "a)", "[a", "\\p{Han}", "\\k", "a**", "*",
          "[]", "\\x{110000}", "a{3,2}", "(?>a)", "[b-a]"}) {
        EXPECT_EQ(code_of([&] { (void)Regex(pattern); }, pattern), ErrorCode::unsupported) << pattern;
    }
    const std::string deep(1000, '(');
    EXPECT_EQ(code_of([&] { (void)Regex(deep); }, "nested"), ErrorCode::unsupported);
}

TEST(Regex, LongTextsTakeNoStack) {
    const std::string text(1'000'000, ' ');
    EXPECT_EQ(matches("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", text + "x").front().size(), text.size() - 1);
}

}  // namespace
}  // namespace refold
