// Vocabularies of GGUF files that nobody has looked at: each is refused or works, and the process goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <limits>
#include <random>

#include "core/error_of.h"
#include "core/temp_folder.h"
#include "text/small_vocabularies.h"
#include "text/tokenizer.h"

namespace refold {
namespace {

using testing::HasSubstr;

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kMap = "tokenizer.ggml.precompiled_charsmap";

const std::vector<std::string>& texts() {
    static const std::vector<std::string> all{"",
                                              "the the\n other <s> x </s>",
                                              "\xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80 \xff\xc3",
                                              std::string("\0a<unk>", 7),
                                              std::string(3000, 'a'),
                                              std::string(3000, ' ') + std::string(3000, '\n'),
                                              "[CLS] [EMPTY_5] <0x0A>"};
    return all;
}

// Everything that a server asks of a vocabulary.
void use(const Tokenizer& tokenizer) {
    for (const std::string& text : texts()) {
        for (const bool special : {false, true}) {
            try {
                const std::vector<int32_t> ids = tokenizer.encode(text, special, special);
                for (const int32_t id : ids)
                    if (id < 0 || id >= tokenizer.size()) throw std::logic_error("an id out of range");
                (void)tokenizer.decode(ids, special);
            } catch (const Error&) {  // no token for a part of the text
            }
        }
    }
    for (int32_t id = 0; id < tokenizer.size(); ++id) {
        try {
            (void)tokenizer.piece(id, true);
        } catch (const Error&) {
        }
        (void)tokenizer.is_end_of_generation(id);
    }
    (void)tokenizer.bos();
    (void)tokenizer.eos();
    (void)tokenizer.mask();
}

// In a process of its own with little time and memory. Returns how it ended, or "" for well.
std::string outcome(const GgufMetadata& metadata, const std::string& file) {
    const pid_t child = fork();
    if (child == 0) {
        const rlimit seconds{10, 10}, memory{rlim_t{1} << 30, rlim_t{1} << 30}, none{0, 0};
        setrlimit(RLIMIT_CPU, &seconds);
        setrlimit(RLIMIT_DATA, &memory);
        setrlimit(RLIMIT_CORE, &none);
        try {
            if (file.empty()) {
                use(Tokenizer(metadata, "a"));
            } else {
                use(Tokenizer(file));
            }
        } catch (const Error&) {
        } catch (const std::exception& error) {
            fprintf(stderr, "%s\n", error.what());
            _exit(3);
        }
        _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return "no process";
    if (WIFSIGNALED(status)) return fmt::format("signal {}", WTERMSIG(status));
    return WEXITSTATUS(status) == 0 ? "" : fmt::format("exit code {}", WEXITSTATUS(status));
}

class Changes {
public:
    explicit Changes(uint64_t seed) : random_(seed) {}

    GgufMetadata vocabulary() {
        GgufMetadata out = small_vocabulary(one_of(vocabulary_kinds()));
        for (size_t count = 1 + below(3); count > 0; --count) change(out);
        return out;
    }

private:
    size_t below(size_t end) { return static_cast<size_t>(random_() % end); }
    template <typename Value>
    const Value& one_of(const std::vector<Value>& all) {
        return all[below(all.size())];
    }

    std::string text() {
        switch (below(12)) {
            case 0: return "";
            case 1: return fmt::format("[EMPTY_{}]", below(300));
            case 2: return std::string(size_t{1} << below(17), 'a');
            case 3: return std::string("a\0b", 3);
            case 4: return "\xff\xfe\xc3";
            case 5: return fmt::format("<0x{:02x}>", below(256));
            case 6: return fmt::format("\\x{:x}", below(256));
            case 7: return std::string(below(4), '\\');
            case 8: return std::string(1, static_cast<char>(below(256)));
            case 9: {
                std::string out;
                for (size_t i = below(2000); i > 0; --i) out += "\u4f60";
                return out;
            }
            case 10:
                return one_of(std::vector<std::string>{"<|end|>", "</s>", "<mask>", "<dna>", "<oov>", "\n",
                                                       "<|return|>", "<|call|>", "unused"});
            default: return "the";
        }
    }
    float score() {
        return one_of(std::vector<float>{0, 1e30F, -1e38F, std::numeric_limits<float>::quiet_NaN(),
                                         std::numeric_limits<float>::infinity(),
                                         -std::numeric_limits<float>::infinity(), -1000.0F, 5.0F});
    }
    GgufValue integer() {
        switch (below(6)) {
            case 0: return GgufValue::u32(static_cast<uint32_t>(below(400)));
            case 1: return GgufValue::u32(UINT32_MAX - static_cast<uint32_t>(below(3)));
            case 2: return GgufValue::u32(uint32_t{1} << 31);
            case 3: return {GgufType::I32, int64_t{-1}};
            case 4: return {GgufType::U64, uint64_t{1} << 40};
            default: return GgufValue::string("7");
        }
    }
    GgufValue any() {
        switch (below(7)) {
            case 0: return integer();
            case 1: return GgufValue::string(text());
            case 2: return GgufValue::boolean(below(2) == 0);
            case 3: return GgufValue::f32(score());
            case 4: return string_array(std::vector<std::string>(below(4), text()));
            case 5: return int_array(std::vector<int32_t>(below(400), static_cast<int32_t>(below(9))));
            default: return float_array(std::vector<float>(below(400), score()));
        }
    }

    void change(GgufMetadata& out) {
        switch (below(13)) {
            case 0:
            case 1:
            case 2: return change_tokens(out);
            case 3: {
                std::vector<int32_t> types = read<int32_t>(out, kTypes);
                if (types.empty()) return;
                for (size_t i = 1 + below(3); i > 0; --i)
                    types[below(types.size())] = static_cast<int32_t>(below(9)) - 1;
                if (below(4) == 0) types.assign(types.size(), static_cast<int32_t>(below(8)));
                if (below(4) == 0) types.resize(below(types.size() + 20));
                out.set(kTypes, int_array(types));
                return;
            }
            case 4: {
                std::vector<float> scores = read<float>(out, kScores);
                if (scores.empty()) return;
                for (size_t i = 1 + below(3); i > 0; --i) scores[below(scores.size())] = score();
                if (below(4) == 0) scores.assign(scores.size(), score());
                if (below(4) == 0) scores.resize(below(scores.size() + 20));
                out.set(kScores, float_array(scores));
                return;
            }
            case 5:
            case 6: {
                static const std::vector<std::string> names{"bos",       "eos",     "eot",   "eom", "unknown",
                                                            "seperator", "padding", "mask",  "cls", "fim_pre",
                                                            "fim_sep",   "prefix",  "suffix"};
                const std::string key = fmt::format("tokenizer.ggml.{}_token_id", one_of(names));
                if (below(3) == 0) return out.erase(key);
                return out.set(key, integer());
            }
            case 7:
                return out.set(
                    one_of(std::vector<std::string>{
                        "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
                        "tokenizer.ggml.add_sep_token", "tokenizer.ggml.add_space_prefix",
                        "tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.escape_whitespaces"}),
                    GgufValue::boolean(below(3) > 0));
            case 8: return change_merges(out);
            case 9: {
                std::string bytes;
                for (size_t i = below(200); i > 0; --i) bytes += static_cast<char>(below(256));
                if (bytes.size() > 8)
                    bytes.replace(0, 4, std::string{static_cast<char>(4 * below(20)), 0, 0, 0});
                if (below(3) == 0) bytes += std::string(size_t{1} << below(18), 'x') + std::string(1, '\0');
                return out.set(kMap, byte_array(bytes));
            }
            case 10:
                return out.set(
                    "tokenizer.ggml.pre",
                    GgufValue::string(one_of(std::vector<std::string>{
                        "default",     "llama-bpe",  "deepseek-llm", "falcon",       "gpt-2",
                        "starcoder",   "qwen2",      "gpt-4o",       "tekken",       "gemma4",
                        "kimi-k2",     "bloom",      "viking",       "jina-v2-code", "superbpe",
                        "chatglm-bpe", "bailingmoe", "seed-coder",   "afmoe",        "none such"})));
            case 11:
                return out.set("tokenizer.ggml.model",
                               GgufValue::string(one_of(std::vector<std::string>{
                                   "llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "gemma4", "hybriddna",
                                   "whitespace", "test", "none", "no_vocab", "x"})));
            default: {
                const auto& entries = out.entries();
                const std::string key = entries[below(entries.size())].first;
                if (below(2) == 0) return out.erase(key);
                return out.set(key, any());
            }
        }
    }

    void change_tokens(GgufMetadata& out) {
        std::vector<std::string> tokens = read_strings(out, kTokens);
        if (tokens.empty()) return;
        for (size_t i = 1 + below(4); i > 0; --i) {
            const size_t at = below(tokens.size());
            switch (below(4)) {
                case 0: tokens[at] = tokens[below(tokens.size())]; break;
                case 1: tokens[at] += text(); break;
                default: tokens[at] = text();
            }
        }
        if (below(6) == 0) tokens.resize(below(tokens.size()));
        if (below(12) == 0) tokens.insert(tokens.end(), 20'000, text() + "x");
        if (below(12) == 0)
            for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = fmt::format("{}{}", tokens[i], i);
        out.set(kTokens, string_array(std::move(tokens)));
    }

    void change_merges(GgufMetadata& out) {
        std::vector<std::string> merges = read_strings(out, kMerges);
        for (size_t i = 1 + below(4); i > 0; --i)
            merges.push_back(
                one_of(std::vector<std::string>{"", " ", "a", "a b c", "t  h", text() + " " + text()}));
        if (below(4) == 0) merges.clear();
        out.set(kMerges, string_array(std::move(merges)));
    }

    // Empty where an earlier change has made something else of it.
    template <typename Number>
    static std::vector<Number> read(const GgufMetadata& metadata, const char* key) {
        try {
            if constexpr (std::is_same_v<Number, float>)
                return floats_of(metadata, key);
            else
                return ints_of(metadata, key);
        } catch (const Error&) {
            return {};
        }
    }
    static std::vector<std::string> read_strings(const GgufMetadata& metadata, const char* key) {
        try {
            return strings_of(metadata, key);
        } catch (const Error&) {
            return {};
        }
    }

    std::mt19937_64 random_;
};

TEST(HostileVocabularies, SmallOnesWork) {
    for (const std::string& kind : vocabulary_kinds()) {
        const Tokenizer tokenizer(small_vocabulary(kind), kind);
        const std::vector<int32_t> ids = tokenizer.encode("the", false, false);
        EXPECT_FALSE(ids.empty()) << kind;
        EXPECT_THAT(tokenizer.decode(ids, true), HasSubstr("the")) << kind;
        use(tokenizer);
    }
}

// REFOLD_HOSTILE_CASES=N, REFOLD_HOSTILE_SEED=N: as bench/hostile sets them.
TEST(HostileVocabularies, ChangedOnesAreRefusedOrWork) {
    const auto number = [](const char* name, uint64_t fallback) {
        const char* given = getenv(name);
        return given == nullptr ? fallback : std::strtoull(given, nullptr, 10);
    };
    const uint64_t first = number("REFOLD_HOSTILE_SEED", 1), count = number("REFOLD_HOSTILE_CASES", 500);
    const TempFolder folder;
    for (uint64_t seed = first; seed < first + count; ++seed) {
        const GgufMetadata metadata = Changes(seed).vocabulary();
        std::string file;
        if (seed % 2 == 0) {
            file = folder / "model.gguf";
            write_gguf(file, true, metadata, {});
        }
        ASSERT_EQ(outcome(metadata, file), "") << "REFOLD_HOSTILE_SEED=" << seed << " REFOLD_HOSTILE_CASES=1";
    }
}

GgufMetadata with_tokens(const std::string& kind,
                         const std::function<void(std::vector<std::string>&)>& edit) {
    GgufMetadata out = small_vocabulary(kind);
    std::vector<std::string> tokens = strings_of(out, kTokens);
    edit(tokens);
    out.set(kTokens, string_array(std::move(tokens)));
    return out;
}

std::string refusal(const GgufMetadata& metadata, ErrorCode code = ErrorCode::input) {
    return error_of([&] { const Tokenizer tokenizer(metadata, "m"); }, code);
}

TEST(HostileVocabularies, EqualTokensAreRefused) {
    // libllama gives empty tokens a name and reads up to a zero byte.
    EXPECT_THAT(refusal(with_tokens("llama", [](auto& t) { t[5] = "", t[6] = "[EMPTY_5]"; })),
                HasSubstr("twice"));
    EXPECT_THAT(refusal(with_tokens("gpt2", [](auto& t) { t[5] = "x", t[6] = std::string("x\0y", 3); })),
                HasSubstr("twice"));
    EXPECT_NO_THROW(Tokenizer(with_tokens("llama", [](auto& t) { t[5] = "", t[7] = ""; }), "m"));
}

TEST(HostileVocabularies, WhatEndsLibllamaIsRefused) {
    GgufMetadata bert = small_vocabulary("bert");
    std::vector<int32_t> types = ints_of(bert, kTypes);
    types[7] = 6;
    bert.set(kTypes, int_array(types));
    EXPECT_THAT(refusal(bert), HasSubstr("byte token"));
    for (const char* kind : {"t5", "gemma4"}) {
        GgufMetadata metadata = small_vocabulary(kind);
        metadata.erase("tokenizer.ggml.bos_token_id");
        metadata.set("tokenizer.ggml.add_bos_token", GgufValue::boolean(true));
        EXPECT_THAT(refusal(metadata), HasSubstr("a token BOS")) << kind;
    }
    // Would never end.
    EXPECT_THAT(refusal(with_tokens("rwkv", [](auto& t) { t[1 + 'q'] = "qq"; })), HasSubstr("byte 0x71"));
    // Memory: of a vocabulary of 2^32 tokens that are not there; of tries; of texts that a text gets.
    GgufMetadata none = small_vocabulary("llama");
    none.set("tokenizer.ggml.model", GgufValue::string("none"));
    none.set("llama.vocab_size", GgufValue::u32(UINT32_MAX));
    EXPECT_THAT(refusal(none, ErrorCode::unsupported), HasSubstr("has no tokenizer"));
    for (const char* kind : {"t5", "rwkv"})
        EXPECT_THAT(refusal(with_tokens(kind, [](auto& t) { t.back() = std::string(1'000'000, 'a'); })),
                    HasSubstr("expected at most"));
    EXPECT_THAT(refusal(with_tokens("plamo2", [](auto& t) { t.back() = std::string(2000, 'a'); })),
                HasSubstr("suffixes"));
    GgufMetadata t5 = small_vocabulary("t5");
    t5.set(kMap, byte_array(std::string("\4\0\0\0\0\0\0\0", 8) + std::string(1'000'000, 'x') +
                            std::string(1, '\0')));
    EXPECT_THAT(refusal(t5), HasSubstr("replacement of 1000000 bytes"));
}

TEST(HostileVocabularies, ATextWithoutTokensIsAnError) {
    const Tokenizer tokenizer(with_tokens("llama",
                                          [](auto& t) {
                                              for (auto& token : t)
                                                  if (token == "<0xC3>") token = "else";
                                          }),
                              "m");
    EXPECT_FALSE(tokenizer.encode("the", true, false).empty());
    (void)error_of([&] { (void)tokenizer.encode("\u00e9", true, false); }, ErrorCode::unsupported);
}

// std::regex in libllama would overflow the stack.
TEST(HostileVocabularies, LongRunsAreTokenized) {
    for (const char* pre : {"tekken", "deepseek-llm", "bloom", "default", "superbpe", "gpt-2"}) {
        GgufMetadata metadata = small_vocabulary("gpt2");
        metadata.set("tokenizer.ggml.pre", GgufValue::string(pre));
        const Tokenizer tokenizer(metadata, pre);
        for (const char* part : {"a", " ", "\n", "1", "!", "\u4f60", "a1+", " \n"}) {
            std::string text;
            while (text.size() < 40'000 * std::string(part).size()) text += part;
            EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false, false), false), text) << pre << part;
        }
        // Nothing changes for other texts.
        std::string words;
        for (int i = 0; i < 3000; ++i) words += "the other, ";
        EXPECT_EQ(tokenizer.decode(tokenizer.encode(words, false, false), false), words) << pre;
    }
}

}  // namespace
}  // namespace refold
