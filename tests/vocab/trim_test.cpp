// Trimmed vocabularies of real tokenizers, run by refold's pipeline and by libllama alone.
#include "vocab/trim.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.h"
#include "core/temp_folder.h"
#include "core/text.h"
#include "text/tokenizer.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"
#include "vocab/token_ids_of.h"
#include "vocab/unicode.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

struct Trimming {
    std::string fixture;
    std::string without;  // a file that is left out: SentencePiece's own, with scores, is read then
    bool by_libllama = false;
};
void PrintTo(const Trimming& v, std::ostream* out) {
    *out << v.fixture << (v.without.empty() ? "" : " without ") << v.without
         << (v.by_libllama ? " by libllama" : "");
}

class TrimmedVocabulary : public testing::TestWithParam<Trimming> {
protected:
    TrimmedVocabulary() {
        const TempFolder folder;
        for (const auto& file :
             fs::directory_iterator(fs::path(REFOLD_FIXTURES "/tokenizers") / GetParam().fixture)) {
            if (file.path().filename() != GetParam().without)
                fs::copy_file(file.path(), folder / file.path().filename().string());
        }
        const auto golden = nlohmann::json::parse(read_text_file(folder / "golden.json"));
        fs::remove(folder / "golden.json");
        size = golden["vocab_size"].get<size_t>();
        EXPECT_TRUE(read_hf_vocabulary(fs::path(folder / ""), static_cast<int64_t>(size), metadata));
        if (GetParam().by_libllama) metadata.erase(kTokenizerJsonKey);
        for (const auto& e : golden["encodings"]) texts.push_back(e["text"]);
    }

    // Every `step`-th text.
    std::vector<bool> tokens_of_texts(size_t step) const {
        const Tokenizer tokenizer(metadata, "full");
        std::vector<bool> wanted(size);
        for (size_t t = 0; t < texts.size(); t += step) {
            for (const int32_t id : tokenizer.encode(texts[t], false, false))
                wanted[static_cast<size_t>(id)] = true;
        }
        return wanted;
    }

    // The texts, and random characters of all planes with words of ASCII between.
    std::vector<std::string> all_texts() const {
        std::vector<std::string> all = texts;
        std::mt19937 random(7);
        for (int t = 0; t < 50; ++t) {
            std::string text = "a";
            for (int i = 0; i < 40; ++i) {
                char32_t c = static_cast<char32_t>(random() % (i % 3 == 0   ? 0x80
                                                               : i % 3 == 1 ? 0x800
                                                                            : 0x1FFFF));
                if (c < 0x20 || (c >= 0xD800 && c < 0xE000) || (c >= 0x7F && c < 0xA0)) c = U' ';
                append_utf8(text, c);
            }
            all.push_back(text + "z");
        }
        return all;
    }

    GgufMetadata metadata;
    size_t size = 0;
    std::vector<std::string> texts;
};

TEST_P(TrimmedVocabulary, TextsWhoseTokensStayHaveTheSameTokens) {
    for (const size_t step : {2, 5, 9}) {
        const std::vector<bool> wanted = tokens_of_texts(step);
        const Ids kept = needed_tokens(metadata, wanted);
        ASSERT_LT(kept.size(), size);
        const Tokenizer full(metadata, "full"), trimmed(keep_tokens(metadata, kept), "trimmed");
        EXPECT_EQ(trimmed.size(), static_cast<int32_t>(kept.size()));
        size_t same = 0;
        for (const std::string& text : all_texts()) {
            Ids expected;
            for (const int32_t id : full.encode(text, true, true)) {
                const auto at = std::lower_bound(kept.begin(), kept.end(), id);
                if (at == kept.end() || *at != id) break;
                expected.push_back(static_cast<int32_t>(at - kept.begin()));
            }
            if (expected.size() != full.encode(text, true, true).size()) continue;
            ++same;
            EXPECT_EQ(trimmed.encode(text, true, true), expected) << text;
        }
        EXPECT_GE(same, texts.size() / step);
    }
}

TEST_P(TrimmedVocabulary, AllTextDecodesAsBefore) {
    const Ids kept = needed_tokens(metadata, {});
    const Tokenizer full(metadata, "full"), trimmed(keep_tokens(metadata, kept), "trimmed");
    for (const std::string& text : all_texts()) {
        EXPECT_EQ(trimmed.decode(trimmed.encode(text, false, true), true),
                  full.decode(full.encode(text, false, true), true))
            << text;
    }
}

TEST_P(TrimmedVocabulary, IdsNameTheSameTokens) {
    const GgufMetadata trimmed = keep_tokens(metadata, needed_tokens(metadata, tokens_of_texts(9)));
    size_t named = 0;
    for (const auto& [key, value] : metadata.entries()) {
        if (!key.ends_with("_token_id")) continue;
        ++named;
        EXPECT_EQ(strings_of(trimmed, "tokenizer.ggml.tokens").at(trimmed.integer(key)),
                  strings_of(metadata, "tokenizer.ggml.tokens").at(metadata.integer(key)))
            << key;
    }
    EXPECT_GE(named, 1U);
    const Ids original = ints_of(trimmed, kKeptTokensKey);
    const auto &tokens = strings_of(trimmed, "tokenizer.ggml.tokens"),
               &all = strings_of(metadata, "tokenizer.ggml.tokens");
    ASSERT_EQ(original.size(), tokens.size());
    for (size_t id = 0; id < original.size(); ++id)
        EXPECT_EQ(tokens[id], all[static_cast<size_t>(original[id])]);
}

TEST_P(TrimmedVocabulary, GoesToHuggingFaceFilesAndBack) {
    if (GetParam().by_libllama) GTEST_SKIP() << "the same files as without libllama";
    const GgufMetadata trimmed = keep_tokens(metadata, needed_tokens(metadata, tokens_of_texts(5)));
    const TempFolder out;
    write_hf_vocabulary(trimmed, fs::path(out / ""));
    GgufMetadata again;
    const auto count = static_cast<int64_t>(strings_of(trimmed, "tokenizer.ggml.tokens").size());
    ASSERT_TRUE(read_hf_vocabulary(fs::path(out / ""), count, again));
    const Tokenizer one(trimmed, "trimmed"), other(again, "again");
    for (const std::string& text : all_texts())
        EXPECT_EQ(one.encode(text, true, true), other.encode(text, true, true)) << text;
}

TEST_P(TrimmedVocabulary, TrimmingTwiceKeepsTheFirstIds) {
    const Ids first = needed_tokens(metadata, tokens_of_texts(2)), least = needed_tokens(metadata, {});
    const GgufMetadata once = keep_tokens(metadata, first);
    const GgufMetadata twice = keep_tokens(once, needed_tokens(once, {}));
    EXPECT_EQ(ints_of(twice, kKeptTokensKey), least);
    EXPECT_EQ(strings_of(twice, "tokenizer.ggml.tokens"),
              strings_of(keep_tokens(metadata, least), "tokenizer.ggml.tokens"));
}

INSTANTIATE_TEST_SUITE_P(
    All, TrimmedVocabulary,
    testing::Values(Trimming{"bpe_gpt2", ""}, Trimming{"bpe_gpt2", "", true}, Trimming{"bpe_llama3", ""},
                    Trimming{"bpe_llama3", "", true}, Trimming{"bpe_qwen2", ""}, Trimming{"bpe_roberta", ""},
                    Trimming{"spm_gemma", ""}, Trimming{"spm_llama", ""},
                    Trimming{"spm_gemma", "tokenizer.json"}, Trimming{"spm_gemma", "tokenizer.json", true},
                    Trimming{"spm_llama", "tokenizer.json"}, Trimming{"spm_llama", "tokenizer.json", true}));

GgufMetadata vocabulary_of(const std::string& fixture, int64_t size) {
    GgufMetadata metadata;
    EXPECT_TRUE(read_hf_vocabulary(fs::path(REFOLD_FIXTURES "/tokenizers") / fixture, size, metadata));
    return metadata;
}

ErrorCode code_of(const std::function<void()>& body) {
    try {
        body();
    } catch (const Error& error) {
        return error.code();
    }
    return ErrorCode::internal;
}

TEST(TrimmedMetadata, ListsOfIdsAndTheConfigOfACheckpoint) {
    GgufMetadata metadata = vocabulary_of("bpe_gpt2", 448);
    metadata.set("tokenizer.ggml.suppress_tokens", int_array({400, 447}));
    const nlohmann::json config{{"vocab_size", 448}, {"eos_token_id", {399, 3}}, {"n_embd", 448}};
    metadata.set("refold.checkpoint", GgufValue::string(nlohmann::json{{"config", config.dump()}}.dump()));
    metadata.set("gpt2.vocab_size", GgufValue::u32(448));
    const Ids kept = needed_tokens(metadata, {});
    const GgufMetadata trimmed = keep_tokens(metadata, kept);
    const auto to = [&](int32_t id) {
        const auto at = std::lower_bound(kept.begin(), kept.end(), id);
        EXPECT_TRUE(at != kept.end() && *at == id) << id;
        return static_cast<int32_t>(at - kept.begin());
    };
    EXPECT_NE(to(447), 447);
    EXPECT_EQ(ints_of(trimmed, "tokenizer.ggml.suppress_tokens"), (Ids{to(400), to(447)}));
    EXPECT_EQ(trimmed.integer("gpt2.vocab_size"), kept.size());
    const auto record = nlohmann::json::parse(trimmed.string("refold.checkpoint"));
    const auto changed = nlohmann::json::parse(record["config"].get<std::string>());
    EXPECT_EQ(
        changed,
        (nlohmann::json{{"vocab_size", kept.size()}, {"eos_token_id", {to(399), to(3)}}, {"n_embd", 448}}));
}

// Templates and pairs of the post-processor, and added tokens, name ids that move.
TEST(TrimmedMetadata, IdsInTokenizerJson) {
    const auto json_with = [](int32_t bos, int32_t eos) {
        return nlohmann::json{
            {"added_tokens", {{{"id", bos}, {"content", "<s>"}}, {{"id", eos}, {"content", "</s>"}}}},
            {"post_processor",
             {{"type", "Sequence"},
              {"processors",
               {{{"type", "TemplateProcessing"},
                 {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {bos}}, {"tokens", {"<s>"}}}}}}},
                {{"type", "RobertaProcessing"}, {"sep", {"</s>", eos}}, {"cls", {"<s>", bos}}}}}}},
            {"truncation", {{"max_length", 40}}}};
    };
    GgufMetadata metadata;
    metadata.set(kTokenizerJsonKey, GgufValue::string(json_with(40, 41).dump()));
    replace_token_ids(metadata, 50, 10, [](int32_t id) { return id - 38; });
    EXPECT_EQ(nlohmann::json::parse(metadata.string(kTokenizerJsonKey)), json_with(2, 3));
}

TEST(TrimmedMetadata, SaysWhatItDoesNotKnow) {
    GgufMetadata metadata = vocabulary_of("bpe_gpt2", 448);
    metadata.set("tokenizer.ggml.novelty", int_array({1, 2}));
    EXPECT_EQ(code_of([&] { needed_tokens(metadata, {}); }), ErrorCode::unsupported);
    nlohmann::json golden =
        nlohmann::json::parse(read_text_file(REFOLD_FIXTURES "/tokenizers/wordpiece_bert/golden.json"));
    const GgufMetadata bert = vocabulary_of("wordpiece_bert", golden["vocab_size"].get<int64_t>());
    EXPECT_EQ(code_of([&] { needed_tokens(bert, {}); }), ErrorCode::unsupported);
}

}  // namespace
}  // namespace refold
