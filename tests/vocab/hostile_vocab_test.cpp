// Tokenizer files that are damaged, contradict each other, or are of kinds that cannot be run.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/error_of.h"
#include "core/temp_folder.h"
#include "text/tokenizer.h"
#include "vocab/gguf_arrays.h"
#include "vocab/hf_vocab.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string fixture(const std::string& file) {
    return read_all(std::string(REFOLD_FIXTURES "/tokenizers/") + file);
}

class HostileVocabulary : public testing::Test {
protected:
    void put(const std::string& name, const std::string& text) { write_all(folder / name, text); }
    void put(const std::string& name, const Json& json) { put(name, json.dump()); }

    GgufMetadata read(int64_t rows = 1000) {
        GgufMetadata out;
        EXPECT_TRUE(read_hf_vocabulary(fs::path(folder / ""), rows, out));
        return out;
    }

    void expect_error(ErrorCode code, const std::string& text, int64_t rows = 1000) {
        GgufMetadata out;
        try {
            read_hf_vocabulary(fs::path(folder / ""), rows, out);
            ADD_FAILURE() << "no error, expected " << text;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), code) << error.what();
            EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
        }
        EXPECT_TRUE(out.entries().empty());
    }

    // Writes a fixture's tokenizer.json with one change.
    void change(const std::string& name, const std::function<void(Json&)>& edit) {
        Json json = Json::parse(fixture(name + "/tokenizer.json"));
        edit(json);
        put("tokenizer.json", json);
    }

    TempFolder folder;
};

TEST_F(HostileVocabulary, AFolderWithoutTokenizerIsNoError) {
    GgufMetadata out;
    EXPECT_FALSE(read_hf_vocabulary(fs::path(folder / ""), 10, out));
    put("vocab.json", Json::object());  // merges.txt is missing
    EXPECT_FALSE(read_hf_vocabulary(fs::path(folder / ""), 10, out));
}

TEST_F(HostileVocabulary, TruncatedJson) {
    const std::string whole = fixture("bpe_gpt2/tokenizer.json");
    for (const size_t size : {size_t{1}, whole.size() / 2, whole.size() - 2}) {
        put("tokenizer.json", whole.substr(0, size));
        expect_error(ErrorCode::input, "tokenizer.json' is not valid JSON");
    }
    put("tokenizer.json", std::string(100000, '['));
    expect_error(ErrorCode::input, "nested too deep");
    put("tokenizer.json", whole);
    put("tokenizer_config.json", std::string("{\"bos_token\": "));
    expect_error(ErrorCode::input, "tokenizer_config.json' is not valid JSON");
}

TEST_F(HostileVocabulary, WrongTypes) {
    const std::vector<std::pair<std::string, Json>> changes{{"/model", 3},
                                                            {"/model/vocab", Json::array()},
                                                            {"/model/vocab/he", "x"},
                                                            {"/model/merges", 1},
                                                            {"/model/merges/0", Json::array({"a"})},
                                                            {"/model/merges/0", Json::array({1, 2})},
                                                            {"/added_tokens", 1},
                                                            {"/added_tokens/0/id", "0"},
                                                            {"/added_tokens/0/content", 7},
                                                            {"/added_tokens/0", 0},
                                                            {"/pre_tokenizer", "ByteLevel"},
                                                            {"/normalizer", true},
                                                            {"/decoder", 1},
                                                            {"/post_processor", "x"},
                                                            {"/model/ignore_merges", "no"}};
    for (const auto& [where, value] : changes) {
        change("bpe_gpt2", [&, &at = where, &to = value](Json& json) { json[Json::json_pointer(at)] = to; });
        expect_error(ErrorCode::input, "tokenizer.json");
    }
    put("tokenizer.json", fixture("bpe_gpt2/tokenizer.json"));
    put("tokenizer_config.json", Json{{"bos_token", 5}});
    expect_error(ErrorCode::input, "tokenizer_config.json': bos_token");
}

// Small files that would take all memory or time: what steps make of a text is bounded by the text.
TEST_F(HostileVocabulary, StepsAreBounded) {
    const auto error = [&](const std::function<void(Json&)>& edit, const std::string& text) {
        change("bpe_gpt2", edit);
        const std::string message = error_of(
            [&] {
                const Tokenizer tokenizer(read(), "m");
                (void)tokenizer.decode(tokenizer.encode(text, true, true), true);
            },
            ErrorCode::unsupported);
        return message;
    };
    const auto sequence = [](const char* list, size_t count, const Json& step) {
        return Json{{"type", "Sequence"}, {list, std::vector<Json>(count, step)}};
    };
    const Json doubles{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
    EXPECT_NE(error([&](Json& json) { json["normalizer"] = sequence("normalizers", 40, doubles); },
                    std::string(100, 'a'))
                  .find("64 times"),
              std::string::npos);
    const Json by_regex{{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "aa"}};
    EXPECT_NE(error([&](Json& json) { json["normalizer"] = sequence("normalizers", 40, by_regex); },
                    std::string(100, 'a'))
                  .find("64 times"),
              std::string::npos);
    EXPECT_NE(error(
                  [&](Json& json) {
                      json["normalizer"] = sequence("normalizers", 100'000, {{"type", "NFC"}});
                  },
                  "a")
                  .find("more than 64 steps"),
              std::string::npos);
    // Each makes of a character outside ASCII two.
    const Json bytes{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    EXPECT_NE(error([&](Json& json) { json["pre_tokenizer"] = sequence("pretokenizers", 60, bytes); },
                    "\xe4\xbd\xa0\xe5\xa5\xbd")
                  .find("64 times"),
              std::string::npos);
    EXPECT_NE(
        error([&](Json& json) { json["decoder"] = sequence("decoders", 40, doubles); }, std::string(100, 'a'))
            .find("64 times"),
        std::string::npos);
    change("bpe_gpt2", [](Json& json) {
        json["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(1'000'000, 'x')}};
    });
    EXPECT_NE(error_of([&] { const Tokenizer tokenizer(read(), "m"); }).find("at most 256"),
              std::string::npos);
}

TEST_F(HostileVocabulary, LongWordsTakeLinearTime) {
    change("wordpiece_bert", [](Json& json) { json["model"]["max_input_chars_per_word"] = 1'000'000'000; });
    const Tokenizer tokenizer(read(), "m");
    EXPECT_FALSE(tokenizer.encode(std::string(200'000, 'a'), true, true).empty());
}

TEST_F(HostileVocabulary, MergesOfUnknownTokens) {
    for (const std::string merge : {"he nothing", "nospace", "h "}) {
        change("spm_llama", [&](Json& json) { json["model"]["merges"].push_back(merge); });
        expect_error(ErrorCode::input, "merge '" + merge);
        change("bpe_gpt2", [&](Json& json) { json["model"]["merges"].push_back(merge); });
        expect_error(ErrorCode::input, "merge '" + merge);
    }
}

TEST_F(HostileVocabulary, IdsThatClash) {
    change("bpe_gpt2", [](Json& json) { json["model"]["vocab"]["new"] = 5; });
    expect_error(ErrorCode::input, "id 5 is both");
    change("bpe_gpt2", [](Json& json) { json["added_tokens"][0]["id"] = 7; });
    expect_error(ErrorCode::input, "id 7 is both");
    for (const Json& id : {Json(1000), Json(-1), Json(uint64_t{1} << 63)}) {
        change("bpe_gpt2", [&](Json& json) { json["model"]["vocab"]["new"] = id; });
        expect_error(ErrorCode::input, "1000 rows");
    }
    change("wordpiece_bert", [](Json& json) {
        json["post_processor"]["special_tokens"]["[CLS]"]["ids"] = Json::array({5000});
    });
    expect_error(ErrorCode::input, "id 5000");
    put("tokenizer.json", fixture("bpe_gpt2/tokenizer.json"));
    put("tokenizer_config.json", Json{{"added_tokens_decoder", {{"x", {{"content", "y"}}}}}});
    expect_error(ErrorCode::input, "added_tokens_decoder.x");
}

TEST_F(HostileVocabulary, WhatCannotBeRunExactlyIsQuoted) {
    change("bpe_llama3", [](Json& json) {
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(\\w|-)+|[^\\w]";
    });
    expect_error(ErrorCode::unsupported, "(\\w|-)+|[^\\w]");
    change("bpe_llama3",
           [](Json& json) { json["pre_tokenizer"]["pretokenizers"][0]["type"] = "UnicodeScripts"; });
    expect_error(ErrorCode::unsupported, "UnicodeScripts");
    change("bpe_gpt2", [](Json& json) { json["normalizer"] = {{"type", "Precompiled"}}; });
    expect_error(ErrorCode::unsupported, "Precompiled");
    change("bpe_gpt2", [](Json& json) { json["model"]["end_of_word_suffix"] = "</w>"; });
    expect_error(ErrorCode::unsupported, "</w>");
    change("bpe_gpt2", [](Json& json) { json["model"]["type"] = "Unigram"; });
    expect_error(ErrorCode::unsupported, "Unigram");
    change("spm_llama", [](Json& json) { json["normalizer"] = nullptr; });
    expect_error(ErrorCode::unsupported, "SentencePiece vocabulary with the pre-tokenizer null");
    change("wordpiece_bert", [](Json& json) { json["pre_tokenizer"] = {{"type", "Whitespace"}}; });
    expect_error(ErrorCode::unsupported, "Whitespace");
}

// What libllama lacks, llama.cpp is to refuse rather than to split otherwise.
TEST_F(HostileVocabulary, APatternOfNoNameRunsInRefoldAlone) {
    change("bpe_llama3", [](Json& json) {
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+|[^\\w]+";
    });
    GgufMetadata metadata = read();
    EXPECT_EQ(metadata.string("tokenizer.ggml.pre"), "refold");
    const std::string text = "it's \xc3\xa4 test, 12345!";
    const Tokenizer tokenizer(metadata, "own");
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false, true), true), text);
    metadata.erase(kTokenizerJsonKey);
    EXPECT_THROW(Tokenizer(metadata, "plain"), Error);
    EXPECT_THROW(write_hf_vocabulary(metadata, fs::path(folder / "")), Error);
}

TEST_F(HostileVocabulary, DamagedUnigramModels) {
    const std::vector<std::pair<std::string, Json>> changes{
        {"/model/vocab/3", "x"},     {"/model/vocab/3", Json::array({"x"})},
        {"/model/vocab/3/0", 5},     {"/model/vocab/3/1", "low"},
        {"/model/vocab/3/1", 1e300}, {"/model/unk_id", 100000},
        {"/model/unk_id", -1},
    };
    for (const auto& [where, value] : changes) {
        change("unigram_t5",
               [&, &at = where, &to = value](Json& json) { json[Json::json_pointer(at)] = to; });
        expect_error(ErrorCode::input, "tokenizer.json");
    }
    for (const char* map : {"AAA", "AAAA", "/////w==", "BAAAAAAAAAD/"}) {
        change("unigram_t5",
               [&](Json& json) { json["normalizer"]["normalizers"][0]["precompiled_charsmap"] = map; });
        expect_error(ErrorCode::input, "precompiled_charsmap");
    }
    // A trie that leads nowhere.
    for (const char* map : {"BAAAAP////8=", "BAAAAAD//wBhAGIA"}) {
        change("unigram_t5",
               [&](Json& json) { json["normalizer"]["normalizers"][0]["precompiled_charsmap"] = map; });
        const Tokenizer tokenizer(read(), "fixture");
        EXPECT_FALSE(tokenizer.encode("text \xe2\x80\xa6 \xef\xbc\xa1", false, true).empty());
    }
    change("unigram_t5", [](Json& json) { json["model"]["unk_id"] = nullptr; });
    const GgufMetadata good = read();
    EXPECT_THROW((void)Tokenizer(good, "none").encode("\xe2\x98\x83", false, true), Error);
    for (const auto& [key, value] : {std::pair{"tokenizer.ggml.scores", float_array({1})},
                                     {"tokenizer.ggml.scores", int_array({1})},
                                     {"tokenizer.ggml.precompiled_charsmap", float_array({1})}}) {
        GgufMetadata bad = good;
        bad.set(key, value);
        const bool of_scores = std::string(key).ends_with("scores");
        if (of_scores) {
            EXPECT_THROW(Tokenizer(bad, "bad"), Error) << key;
        }
        bad.erase(kTokenizerJsonKey);
        EXPECT_THROW(write_hf_vocabulary(bad, fs::path(folder / "")), Error) << key;
    }
}

// Llama 3's first release has no file that names its special tokens, and the class of Llama 2.
TEST_F(HostileVocabulary, TiktokenOfLlamaHasItsOwnSpecialTokens) {
    put("tokenizer.model", fixture("tiktoken_llama3/tokenizer.model"));
    put("config.json", Json{{"model_type", "llama"}});
    const GgufMetadata metadata = read();
    const Tokenizer tokenizer(metadata, "llama 3");
    const auto ids = tokenizer.encode("a", true, true);
    EXPECT_EQ(tokenizer.decode(ids, true), "<|begin_of_text|>a");
    EXPECT_EQ(tokenizer.decode(std::vector{*tokenizer.eos()}, true), "<|end_of_text|>");
    EXPECT_EQ(tokenizer.encode("<|eot_id|>", false, true).size(), 1U);
}

TEST_F(HostileVocabulary, DamagedTiktokenFiles) {
    put("tokenizer_config.json", Json{{"tokenizer_class", "QWenTokenizer"}});
    for (const char* lines :
         {"YQ== 0\nYg==\n", "YQ== 0\nYg== x\n", "YQ== 0\n!!!! 1\n", "YQ== 0\nYg== -1\n", "YQ== 0\n 1\n"}) {
        put("qwen.tiktoken", std::string(lines));
        expect_error(ErrorCode::input, "qwen.tiktoken' line 2");
    }
    put("qwen.tiktoken", std::string("YQ== 0\nYQ== 1\n"));
    expect_error(ErrorCode::input, "line 2: the token is there twice");
    put("qwen.tiktoken", std::string("YQ== 0\nYg== 0\n"));
    expect_error(ErrorCode::input, "id 0 is both");
    put("qwen.tiktoken", std::string("YQ== 0\nYg== 1\n"));
    put("tokenizer_config.json", Json{{"tokenizer_class", "OtherTokenizer"}});
    expect_error(ErrorCode::unsupported, "OtherTokenizer");
    put("other.tiktoken", std::string("YQ== 0\n"));
    expect_error(ErrorCode::input, "2 files");
}

TEST_F(HostileVocabulary, BytesThatAreNoSentencePieceModel) {
    const std::string whole = fixture("spm_llama/tokenizer.model");
    for (size_t size = 1; size < whole.size(); size += 97) {
        put("tokenizer.model", whole.substr(0, size));
        GgufMetadata out;
        EXPECT_THROW(read_hf_vocabulary(fs::path(folder / ""), 1000, out), Error) << size;
    }
    for (const std::string& lie :
         {std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), std::string("\x0a\x05\x0a\x7f"),
          std::string(20, '\xff'), std::string("\x0a\x02\x10\x01"), std::string("\x0b")}) {
        put("tokenizer.model", lie);
        expect_error(ErrorCode::input, "tokenizer.model'");
    }
    put("tokenizer.model", std::string("\x12\x02\x18\x01") + whole.substr(0, 0));
    expect_error(ErrorCode::input, "no pieces");
}

TEST_F(HostileVocabulary, PlainFiles) {
    put("vocab.json", fixture("bpe_gpt2/vocab.json"));
    put("merges.txt", std::string("#version: 0.2\nh e\nonly\n"));
    put("tokenizer_config.json", Json{{"tokenizer_class", "GPT2Tokenizer"}});
    expect_error(ErrorCode::input, "merges.txt' line 3");
    put("merges.txt", std::string("#version: 0.2\nh e\n"));
    EXPECT_EQ(read().string("tokenizer.ggml.pre"), "gpt-2");
    put("tokenizer_config.json", Json{{"tokenizer_class", "OtherTokenizer"}});
    expect_error(ErrorCode::unsupported, "OtherTokenizer");
    fs::remove(folder / "vocab.json");
    put("tokenizer_config.json", Json{{"tokenizer_class", "BertTokenizer"}});
    put("vocab.txt", std::string("[UNK]\n[CLS]\nx\n"));
    expect_error(ErrorCode::input, "[SEP]");
    put("vocab.txt", std::string("[UNK]\n[CLS]\n[SEP]\nx\nx\n"));
    expect_error(ErrorCode::unsupported, "there twice");
}

TEST_F(HostileVocabulary, DamagedMetadata) {
    put("tokenizer.json", fixture("spm_llama/tokenizer.json"));
    const GgufMetadata good = read();
    const TempFolder out;
    const std::vector<std::pair<std::string, GgufValue>> changes{
        {kTokenizerJsonKey, GgufValue::string("{}")},
        {kTokenizerJsonKey, GgufValue::string("[")},
        {kTokenizerJsonKey, GgufValue::u32(1)},
        {"tokenizer.ggml.tokens", string_array({"a", "b"})},
        {"tokenizer.ggml.tokens", string_array({"a", "a"})},
        {"tokenizer.ggml.token_type", int_array({1})},
        {"tokenizer.ggml.token_type", float_array({1})},
        {"tokenizer.ggml.merges", string_array({"a zz"})},
    };
    for (const auto& [key, value] : changes) {
        GgufMetadata bad = good;
        bad.set(key, value);
        EXPECT_THROW(Tokenizer(bad, "bad"), Error) << key;
        if (key != "tokenizer.ggml.merges") {
            EXPECT_THROW(write_hf_vocabulary(bad, fs::path(out / "")), Error) << key;
        }
    }
    GgufMetadata bad = good;
    bad.set("tokenizer.ggml.bos_token_id", GgufValue::u32(5000));
    EXPECT_THROW(write_hf_vocabulary(bad, fs::path(out / "")), Error);
    bad.set("tokenizer.ggml.model", GgufValue::string("rwkv"));
    EXPECT_THROW(write_hf_vocabulary(bad, fs::path(out / "")), Error);
}

}  // namespace
}  // namespace refold
