#include "text/special_tokens.h"

#include <gtest/gtest.h>
#include <llama.h>

#include "text/llama_vocabulary.h"
#include "text/tokenizer.h"

namespace refold {
namespace {

class LongTexts : public testing::TestWithParam<const char*> {
protected:
    std::string path = std::string(REFOLD_FIXTURES "/") + GetParam() + "/model.gguf";
    Tokenizer tokenizer{path};
};

// A text of several parts has the tokens of its parts, which are short enough not to be cut.
TEST_P(LongTexts, HaveTheTokensOfTheirParts) {
    const std::string special = tokenizer.piece(*tokenizer.eos(), true);
    const std::string parts[] = {
        special + "A word, and another. ", special + special,
        special + " x" + special + "\n\n", special + "<" + special.substr(0, special.size() - 1),
        special + "\u6f22\u5b57 1234",     special + std::string(300, 'a')};
    std::string text;
    std::vector<int32_t> expected;
    for (int i = 0; i < 100; ++i) {
        for (const std::string& part : parts) {
            text += part;
            const auto ids = tokenizer.encode(part, false, true);
            expected.insert(expected.end(), ids.begin(), ids.end());
        }
    }
    EXPECT_EQ(tokenizer.encode(text, false, true), expected);
    // What surrounds a text does, too.
    const auto around = tokenizer.encode(parts[0], true, true),
               bare = tokenizer.encode(parts[0], false, true);
    std::vector<int32_t> whole = expected;
    for (auto it = around.begin(); it != around.end() - static_cast<ptrdiff_t>(bare.size()); ++it)
        whole.insert(whole.begin() + (it - around.begin()), *it);
    EXPECT_EQ(tokenizer.encode(text, true, true), whole);
    // Nothing is special where it is not asked for.
    EXPECT_NE(tokenizer.encode(text, false, false), expected);
}

// Libllama's time grows with the square of a part.
TEST_P(LongTexts, AreCutAtSpecialTokens) {
    const auto model = load_llama_vocabulary(path);
    const SpecialTokens special(llama_model_get_vocab(model.get()));
    const std::string eos = tokenizer.piece(*tokenizer.eos(), true), unit = eos + "abc";
    std::string text;
    for (int i = 0; i < 1000; ++i) text += unit;
    const auto ends = special.cuts(text, 100);
    EXPECT_GT(ends.size(), 50U);
    size_t begin = 0;
    for (const size_t end : ends) {
        EXPECT_LE(end - begin, 100 + 2 * unit.size());
        if (end < text.size()) {
            EXPECT_GE(end - begin, 100U);
            EXPECT_TRUE(std::string_view(text).substr(0, end).ends_with(eos));
        }
        begin = end;
    }
    EXPECT_EQ(begin, text.size());
    EXPECT_EQ(special.cuts(std::string(5000, 'a'), 100), std::vector<size_t>{5000});
    EXPECT_EQ(special.cuts("", 100), std::vector<size_t>{0});
}

INSTANTIATE_TEST_SUITE_P(All, LongTexts, testing::Values("llama", "llama_gqa"));

}  // namespace
}  // namespace refold
