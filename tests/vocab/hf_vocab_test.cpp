#include "vocab/hf_vocab.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/temp_folder.h"
#include "text/tokenizer.h"
#include "vocab/gguf_arrays.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

// A folder of tests/fixtures/tokenizers, without some of its files.
struct Variant {
    std::string fixture;
    std::string without;
};
void PrintTo(const Variant& v, std::ostream* out) {
    *out << v.fixture << (v.without.empty() ? "" : " without ") << v.without;
}

bool is_sentencepiece(const Variant& v) { return v.fixture.starts_with("spm_") && !v.without.empty(); }

class Vocabulary : public testing::TestWithParam<Variant> {
protected:
    Vocabulary() {
        const fs::path from = fs::path(REFOLD_FIXTURES "/tokenizers") / GetParam().fixture;
        for (const auto& file : fs::directory_iterator(from)) {
            if (file.path().filename() != GetParam().without) {
                fs::copy_file(file.path(), folder / file.path().filename().string());
            }
        }
        golden = nlohmann::json::parse(read_all(folder / "golden.json"));
        fs::remove(folder / "golden.json");
        size = golden["vocab_size"].get<int64_t>();
        EXPECT_TRUE(read_hf_vocabulary(fs::path(folder / ""), size, metadata));
    }

    // Reads back the files that write_hf_vocabulary() makes from `from`.
    GgufMetadata written_and_read(const GgufMetadata& from) const {
        const TempFolder out;
        write_hf_vocabulary(from, fs::path(out / ""));
        GgufMetadata again;
        EXPECT_TRUE(read_hf_vocabulary(fs::path(out / ""), size, again));
        return again;
    }

    void expect_golden(const Tokenizer& tokenizer) const {
        EXPECT_EQ(tokenizer.size(), size);
        ASSERT_GT(golden["encodings"].size(), 50U);
        for (const auto& e : golden["encodings"]) {
            const std::string text = e["text"];
            const Ids ids = e["ids"], with_special = e["ids_with_special"];
            EXPECT_EQ(tokenizer.encode(text, false, true), ids) << text;
            EXPECT_EQ(tokenizer.encode(text, true, true), with_special) << text;
            EXPECT_EQ(tokenizer.decode(ids, true), e["decoded"].get<std::string>());
            EXPECT_EQ(tokenizer.decode(with_special, false), e["decoded_skip_special"].get<std::string>());
        }
        for (const auto& p : golden.value("pairs", nlohmann::json::array())) {
            const PairEncoding pair = tokenizer.encode_pair(p["a"], p["b"]);
            EXPECT_EQ(pair.ids, p["ids"].get<Ids>()) << p["a"];
            EXPECT_EQ(pair.token_types, p["type_ids"].get<Ids>()) << p["a"];
        }
    }

    static bool is_tiktoken() { return GetParam().fixture.starts_with("tiktoken"); }

    // ALBERT removes accents and upper case, mBART puts two tokens after a text.
    static bool is_beyond_libllama() {
        return GetParam().fixture == "unigram_albert" || GetParam().fixture == "unigram_mbart";
    }

    TempFolder folder;
    nlohmann::json golden;
    int64_t size = 0;
    GgufMetadata metadata;
};

bool equal(const GgufValue& a, const GgufValue& b) {
    if (a.type != b.type) return false;
    if (a.type != GgufType::Array) return a.value == b.value;
    const auto& x = *std::get<std::shared_ptr<const GgufArray>>(a.value);
    const auto& y = *std::get<std::shared_ptr<const GgufArray>>(b.value);
    return x.element == y.element && x.count == y.count && x.packed == y.packed && x.strings == y.strings;
}

TEST_P(Vocabulary, GivesTheGoldenIdsAndTexts) { expect_golden(Tokenizer(metadata, "fixture")); }

TEST_P(Vocabulary, SurvivesGguf) {
    GgufMetadata with_architecture = metadata;
    with_architecture.set("general.architecture", GgufValue::string("llama"));
    write_gguf(folder / "vocabulary.gguf", true, with_architecture, {});
    expect_golden(Tokenizer(folder / "vocabulary.gguf"));
}

TEST_P(Vocabulary, SurvivesHuggingFaceFiles) {
    const GgufMetadata again = written_and_read(metadata);
    expect_golden(Tokenizer(again, "written"));
    if (is_sentencepiece(GetParam())) return;  // has scores, and merges only after the round trip
    if (is_tiktoken()) return;                 // the written files say what defaults did
    std::set<std::string> keys, keys_again;
    for (const auto& [key, value] : again.entries()) keys_again.insert(key);
    for (const auto& [key, value] : metadata.entries()) {
        keys.insert(key);
        const GgufValue* other = again.find(key);
        ASSERT_NE(other, nullptr) << key;
        EXPECT_TRUE(equal(value, *other)) << key;
    }
    EXPECT_EQ(keys, keys_again);
}

// Reads the vocabulary like a program that does not know our keys.
TEST_P(Vocabulary, IsCloseToTheGoldenIdsInLibllamaAlone) {
    if (is_beyond_libllama()) return;
    GgufMetadata plain;
    for (const auto& [key, value] : metadata.entries()) {
        if (!key.starts_with("refold.")) plain.set(key, value);
    }
    const Tokenizer tokenizer(plain, "plain");
    size_t same = 0;
    for (const auto& e : golden["encodings"]) {
        same += tokenizer.encode(e["text"], true, true) == e["ids_with_special"].get<Ids>();
    }
    const bool cased = GetParam().fixture == "wordpiece_bert_cased";  // libllama always lower-cases
    EXPECT_GE(same, golden["encodings"].size() * (cased ? 3 : 9) / 10);
}

// Removes our keys, as if another program had written the vocabulary.
TEST_P(Vocabulary, SurvivesWithoutOurKeys) {
    if (is_beyond_libllama()) return;
    GgufMetadata plain;
    for (const auto& [key, value] : metadata.entries()) {
        if (!key.starts_with("refold.")) plain.set(key, value);
    }
    expect_golden(Tokenizer(written_and_read(plain), "from plain"));
}

TEST_P(Vocabulary, PadsToTheRowsOfTheEmbedding) {
    if (is_tiktoken()) return;  // has special tokens for as many rows as there are
    GgufMetadata padded;
    ASSERT_TRUE(read_hf_vocabulary(fs::path(folder / ""), size + 3, padded));
    const auto& tokens = strings_of(padded, "tokenizer.ggml.tokens");
    ASSERT_EQ(tokens.size(), static_cast<size_t>(size) + 3);
    EXPECT_TRUE(tokens.back().ends_with("[PAD" + std::to_string(size + 2) + "]"));
    EXPECT_EQ(ints_of(padded, "tokenizer.ggml.token_type").back(), 5);
    const GgufMetadata smaller = written_and_read(padded);
    EXPECT_EQ(strings_of(smaller, "tokenizer.ggml.tokens"), strings_of(metadata, "tokenizer.ggml.tokens"));
}

TEST_P(Vocabulary, RefusesAnEmbeddingThatIsTooSmall) {
    GgufMetadata out;
    const int64_t rows = is_tiktoken() ? 256 : size - 1;
    try {
        read_hf_vocabulary(fs::path(folder / ""), rows, out);
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::input);
        EXPECT_NE(std::string(error.what()).find(std::to_string(rows) + " rows"), std::string::npos)
            << error.what();
    }
    EXPECT_TRUE(out.entries().empty());
}

TEST_P(Vocabulary, EqualsSentencePieceWithoutSpecialTokens) {
    const Tokenizer tokenizer(metadata, "fixture");
    for (const auto& e : golden["encodings"]) {
        if (!e.contains("sp_ids")) continue;
        EXPECT_EQ(tokenizer.encode(e["text"], false, false), e["sp_ids"].get<Ids>()) << e["text"];
    }
}

TEST_P(Vocabulary, PiecesMakeTheText) {
    if (GetParam().fixture.starts_with("wordpiece")) return;  // joins words with spaces
    const Tokenizer tokenizer(metadata, "fixture");
    for (const auto& e : golden["encodings"]) {
        std::string text;
        for (const int32_t id : e["ids"].get<Ids>()) text += tokenizer.piece(id, true);
        const std::string whole = e["decoded"];
        EXPECT_TRUE(text == whole || text == " " + whole) << text;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, Vocabulary,
    testing::Values(Variant{"bpe_gpt2", ""}, Variant{"bpe_gpt2", "tokenizer.json"}, Variant{"bpe_llama3", ""},
                    Variant{"bpe_o200k", ""}, Variant{"bpe_qwen2", ""},
                    Variant{"bpe_qwen2", "tokenizer.json"}, Variant{"bpe_roberta", ""},
                    Variant{"bpe_roberta", "tokenizer.json"}, Variant{"spm_gemma", ""},
                    Variant{"spm_gemma", "tokenizer.json"}, Variant{"spm_llama", ""},
                    Variant{"spm_llama", "tokenizer.json"}, Variant{"tiktoken_llama3", ""},
                    Variant{"tiktoken_qwen", ""}, Variant{"unigram_albert", ""},
                    Variant{"unigram_albert", "tokenizer.json"}, Variant{"unigram_mbart", ""},
                    Variant{"unigram_mbart", "tokenizer.json"}, Variant{"unigram_t5", ""},
                    Variant{"unigram_t5", "tokenizer.json"}, Variant{"unigram_xlm_roberta", ""},
                    Variant{"unigram_xlm_roberta", "tokenizer.json"}, Variant{"wordpiece_bert", ""},
                    Variant{"wordpiece_bert", "tokenizer.json"}, Variant{"wordpiece_bert_cased", ""},
                    Variant{"wordpiece_bert_cased", "tokenizer.json"}));

}  // namespace
}  // namespace refold
