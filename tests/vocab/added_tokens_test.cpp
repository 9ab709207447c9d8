// Added tokens of every combination of flags, for each kind of vocabulary, as Hugging Face's tokenizers
// encode them (tests/tools/make_added_token_goldens.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/temp_folder.h"
#include "text/tokenizer.h"
#include "vocab/hf_vocab.h"

namespace refold {
namespace {

using Json = nlohmann::json;

TEST(AddedTokens, AreThoseOfHuggingFace) {
    const std::string fixtures = REFOLD_FIXTURES "/tokenizers/";
    const Json golden = Json::parse(read_all(fixtures + "added_tokens.json"));
    size_t texts = 0;
    for (const Json& example : golden["cases"]) {
        const std::string kind = example["vocabulary"];
        Json file = Json::parse(read_all(fixtures + kind + "/tokenizer.json"));
        for (const Json& token : example["added"]) file["added_tokens"].push_back(token);
        const TempFolder folder;
        write_all(folder / "tokenizer.json", file.dump());
        GgufMetadata metadata;
        ASSERT_TRUE(read_hf_vocabulary(std::filesystem::path(folder / ""), 5000, metadata));
        const Tokenizer tokenizer(metadata, kind);
        // A file that is written from it encodes the same.
        const TempFolder out;
        write_hf_vocabulary(metadata, std::filesystem::path(out / ""));
        GgufMetadata again;
        ASSERT_TRUE(read_hf_vocabulary(std::filesystem::path(out / ""), 5000, again));
        const Tokenizer copy(again, kind);
        for (const Json& encoding : example["encodings"]) {
            const std::string text = encoding[0];
            const std::vector<int32_t> ids = encoding[1];
            EXPECT_EQ(tokenizer.encode(text, false, true), ids) << kind << ": " << text << "\n"
                                                                << example["added"];
            EXPECT_EQ(copy.encode(text, false, true), ids) << kind << ", written: " << text << "\n"
                                                           << example["added"];
            ++texts;
        }
    }
    EXPECT_EQ(texts, 7U * 6 * 8);
}

}  // namespace
}  // namespace refold
