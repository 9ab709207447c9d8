// Which tokens end an answer, by what a checkpoint's files say.
#include "vocab/end_tokens.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/code_of.h"
#include "core/error.h"
#include "core/temp_folder.h"
#include "text/tokenizer.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"
#include "vocab/trim.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

constexpr int32_t kEos = 1;  // of the tokenizer: "<|end_of_text|>"
constexpr int64_t kSize = 448;

// A folder with a tokenizer and other files that name ends.
struct Files {
    Files(const std::string& generation, const std::string& config) {
        for (const auto& file : fs::directory_iterator(REFOLD_FIXTURES "/tokenizers/bpe_llama3"))
            fs::copy_file(file.path(), folder / file.path().filename().string());
        if (!generation.empty()) write_all(folder / "generation_config.json", generation);
        if (!config.empty()) write_all(folder / "config.json", config);
    }
    GgufMetadata read() const {
        GgufMetadata metadata;
        EXPECT_TRUE(read_hf_vocabulary(fs::path(folder / ""), kSize, metadata));
        keep_generation_config(folder / "", metadata);
        return metadata;
    }
    TempFolder folder;
};

Ids ends_of(const GgufMetadata& metadata) {
    const Tokenizer tokenizer(metadata, "test");
    Ids out;
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
        if (tokenizer.is_end_of_generation(id)) out.push_back(id);
    }
    return out;
}

struct Case {
    const char *generation, *config;
    Ids ends;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.generation << " and " << c.config; }

class EndTokens : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Forms, EndTokens,
    testing::Values(Case{"", "", {kEos}}, Case{"{}", "{}", {kEos}},
                    Case{R"({"eos_token_id": 1})", "", {kEos}}, Case{R"({"eos_token_id": 7})", "", {kEos, 7}},
                    Case{R"({"eos_token_id": [7]})", "", {kEos, 7}},
                    Case{R"({"eos_token_id": [1, 7]})", "", {kEos, 7}},
                    Case{R"({"eos_token_id": [7, 1]})", "", {kEos, 7}},
                    Case{R"({"eos_token_id": [1, 7, 9]})", "", {kEos, 7, 9}},
                    Case{R"({"eos_token_id": [9, 8, 7, 6, 5]})", "", {kEos, 5, 6, 7, 8, 9}},
                    // config.json counts without generation_config.json only.
                    Case{"", R"({"eos_token_id": 7})", {kEos, 7}},
                    Case{"", R"({"eos_token_id": [1, 7, 9]})", {kEos, 7, 9}},
                    Case{R"({"bos_token_id": 0})", R"({"eos_token_id": [7, 9]})", {kEos}},
                    Case{"{}", R"({"eos_token_id": [7, 9]})", {kEos}},
                    Case{R"({"eos_token_id": null})", R"({"eos_token_id": [7, 9]})", {kEos}},
                    Case{R"({"eos_token_id": [1, 5]})", R"({"eos_token_id": [7, 9]})", {kEos, 5}},
                    // The text part of a model that also sees.
                    Case{"", R"({"text_config": {"eos_token_id": [7, 9]}})", {kEos, 7, 9}},
                    Case{"", R"({"eos_token_id": 5, "text_config": {"eos_token_id": 7}})", {kEos, 5}},
                    Case{R"({"eos_token_id": 5})", R"({"text_config": {"eos_token_id": 7}})", {kEos, 5}},
                    // No ids of this vocabulary.
                    Case{R"({"eos_token_id": -1})", "", {kEos}},
                    Case{R"({"eos_token_id": [7, 448, 7]})", "", {kEos, 7}},
                    Case{R"({"eos_token_id": "7"})", R"({"text_config": 3})", {kEos}}));

TEST_P(EndTokens, EveryNamedIdEnds) {
    const GgufMetadata metadata = Files(GetParam().generation, GetParam().config).read();
    EXPECT_EQ(ends_of(metadata), GetParam().ends);
    EXPECT_EQ(Tokenizer(metadata, "test").eos(), kEos);
}

TEST_P(EndTokens, GenerationConfigIsKept) {
    const TempFolder out;
    write_generation_config(Files(GetParam().generation, GetParam().config).read(), out / "");
    const std::string file = out / "generation_config.json";
    if (*GetParam().generation != '\0') {
        EXPECT_EQ(read_all(file), GetParam().generation);
    } else if (GetParam().ends.size() == 1) {
        EXPECT_FALSE(fs::exists(file));
    }
}

TEST(EndTokensOfGguf, LibllamaKnowsTwoBesidesEos) {
    const GgufMetadata metadata = Files(R"({"eos_token_id": [9, 1, 7, 5]})", "").read();
    EXPECT_EQ(metadata.integer("tokenizer.ggml.eos_token_id"), kEos);
    EXPECT_EQ(metadata.integer("tokenizer.ggml.eot_token_id"), 9);
    EXPECT_EQ(metadata.integer("tokenizer.ggml.eom_token_id"), 7);
    EXPECT_FALSE(Files(R"({"eos_token_id": [1]})", "").read().has(kEndTokensKey));
}

// GGUF files of other programs have libllama's keys alone.
TEST(EndTokensOfGguf, BecomeAGenerationConfig) {
    GgufMetadata metadata = Files("", "").read();
    metadata.set("tokenizer.ggml.eot_token_id", GgufValue::u32(7));
    metadata.set("tokenizer.ggml.eom_token_id", GgufValue::u32(9));
    EXPECT_EQ(ends_of(metadata), (Ids{kEos, 7, 9}));
    const TempFolder out;
    write_generation_config(metadata, out / "");
    const auto written = nlohmann::json::parse(read_all(out / "generation_config.json"));
    EXPECT_EQ(written, nlohmann::json({{"eos_token_id", {kEos, 7, 9}}}));
    EXPECT_EQ(ends_of(Files(written.dump(), "").read()), (Ids{kEos, 7, 9}));
}

TEST(EndTokensOfGguf, AreRenumberedWithTheVocabulary) {
    const GgufMetadata metadata =
        Files(R"({"eos_token_id": [440, 1, 441, 442], "temperature": 0.5})", "").read();
    const std::vector<bool> none(static_cast<size_t>(kSize), false);
    const Ids kept = needed_tokens(metadata, none);
    ASSERT_LT(kept.size(), 448U);
    const GgufMetadata trimmed = keep_tokens(metadata, kept);
    Ids expected;
    for (const int32_t id : {1, 440, 441, 442})
        expected.push_back(static_cast<int32_t>(std::find(kept.begin(), kept.end(), id) - kept.begin()));
    EXPECT_EQ(ends_of(trimmed), expected);
    const auto config = nlohmann::json::parse(trimmed.string(kGenerationConfigKey));
    EXPECT_EQ(config["eos_token_id"], (Ids{expected[1], expected[0], expected[2], expected[3]}));
    EXPECT_EQ(config["temperature"], 0.5);
}

TEST(EndTokensOfGguf, AFileThatIsNoObjectIsRefused) {
    const TempFolder folder;
    write_all(folder / "generation_config.json", "[1]");
    GgufMetadata metadata;
    EXPECT_EQ(code_of([&] { keep_generation_config(folder / "", metadata); }, "generation_config.json"),
              ErrorCode::input);
    metadata.set(kGenerationConfigKey, GgufValue::string("{"));
    EXPECT_EQ(code_of([&] { write_generation_config(metadata, folder / ""); }, kGenerationConfigKey),
              ErrorCode::input);
}

}  // namespace
}  // namespace refold
