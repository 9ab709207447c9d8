// GBNF as llama.cpp writes it: texts that it allows and does not, and random grammars beside libllama's own.
#include "grammar/gbnf.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <llama.h>

#include <cmath>
#include <memory>
#include <random>

#include "core/error.h"
#include "core/text.h"
#include "grammar/grammar.h"
#include "refold/tokenizer.h"

namespace refold {
namespace {

using testing::HasSubstr;

constexpr const char* kModel = REFOLD_FIXTURES "/llama_gqa/model.gguf";

const Tokenizer& llama_tokenizer() {
    static const Tokenizer instance(kModel);
    return instance;
}

GrammarCompiler& llama_compiler() {
    static GrammarCompiler instance(llama_tokenizer(), llama_tokenizer().size());
    return instance;
}

std::shared_ptr<const Grammar> gbnf_grammar(const std::string& grammar) {
    return llama_compiler().compile({.kind = OutputFormat::Kind::grammar, .text = grammar});
}

bool gbnf_accepts(const std::string& grammar, const std::string& text) {
    GrammarState state(gbnf_grammar(grammar));
    for (const int32_t token : llama_tokenizer().encode(text, false, false)) {
        if (!state.allows(token)) return false;
        state.accept(token);
    }
    return state.allows(llama_tokenizer().eos().value());
}

struct Case {
    std::string grammar;
    std::vector<std::string> good, bad;
};

TEST(Gbnf, ReadsWhatLlamaCppReads) {
    const std::vector<Case> cases = {
        // Empty alternatives, anywhere.
        {"root ::= \"a\" |", {"", "a"}, {"aa", "b"}},
        {"root ::= | \"a\"", {"", "a"}, {"aa"}},
        {"root ::= \"a\" ( | \"b\" | ) \"c\"", {"ac", "abc"}, {"abbc", "a"}},
        {"root ::= \"x\" ws \"y\"\nws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n",
         {"xy", "x y", "x\n y"},
         {"x  y"}},
        {"root ::= ()", {""}, {"a"}},
        // Any character, a line end too.
        {"root ::= .", {"a", "\n", "é", "漢", "."}, {"", "ab"}},
        {"root ::= \"a\" .* \"b\"", {"ab", "a\n\nb", "aébb"}, {"a", "ba"}},
        {"root ::= a.b\na ::= \"x\"\nb ::= \"y\"", {"x-y", "x\ny"}, {"xy"}},
        // A byte order mark, comments, line ends of all kinds.
        {"\xEF\xBB\xBFroot ::= \"a\"", {"a"}, {""}},
        {"# first\r\nroot ::= \"a\" # then\r\n  # more\r\nother ::= \"b\"\r\n", {"a"}, {"b"}},
        {"root ::= (\n  # in brackets\n  \"a\"\n  | \"b\"\n)+\n", {"a", "bab"}, {""}},
        {"root ::= \"a\" |\n  \"b\"\n", {"a", "b"}, {"ab"}},
        {"root ::=\n  \"a\"\n", {"a"}, {}},
        {"root ::= \"a\" *", {"", "aa"}, {"b"}},
        // Repetitions, of repetitions as well.
        {"root ::= \"ab\"{2}", {"abab"}, {"ab", "abb"}},
        {"root ::= [a-c]{2,}", {"ab", "abcabc"}, {"a"}},
        {"root ::= \"a\"{ 1 , 2 }", {"a", "aa"}, {"", "aaa"}},
        {"root ::= \"a\"{0,2}", {"", "aa"}, {"aaa"}},
        {"root ::= \"x\" \"a\"{0} \"y\"", {"xy"}, {"xay"}},
        {"root ::= \"a\"{2}{2}", {"aaaa"}, {"aa", "aaaaaa"}},
        {"root ::= \"a\"+?", {"", "aaa"}, {"b"}},
        {"root ::= (\"a\" | \"b\"*){1,2} \"c\"", {"c", "abc", "bbac"}, {"aaac"}},
        // Characters and escapes.
        {"root ::= \"\\x41\\u00e9\\U0001F642\\t\\r\\n\\\\\\\"\\[\\]\"", {"Aé🙂\t\r\n\\\"[]"}, {"A"}},
        {"root ::= \"line\nend\"", {"line\nend"}, {"line"}},
        {"root ::= [a\\-z]+", {"a-z"}, {"b"}},
        {"root ::= [a-]+", {"a-a"}, {"b"}},
        {"root ::= [\\x30-\\x39ぁ-ゟ]+", {"09", "あ"}, {"a"}},
        {"root ::= [^\\n\"]+", {"abc", "é"}, {"a\"", "\n"}},
        {"root ::= [.*+?(){}|^$]+", {".*+?(){}|^$"}, {"a"}},
        {"root ::= \"\"", {""}, {"a"}},
        {"root ::= \"a\" [] \"b\"", {"ab"}, {"a"}},
        // Names.
        {"root ::= 1st second-rule Third\n1st ::= \"1\"\nsecond-rule ::= \"2\"\nThird ::= \"3\"",
         {"123"},
         {"1"}},
        {"root ::= true Token Regex\ntrue ::= \"t\"\nToken ::= \"o\"\nRegex ::= \"r\"", {"tor"}, {"t"}},
        {"root ::= a\na ::= \"x\"\na ::= \"y\"", {"y"}, {"x"}},
        {"root ::= a_b .\na_b ::= \"x\"", {"xy"}, {"x"}}};
    for (const Case& one : cases) {
        for (const std::string& text : one.good)
            EXPECT_TRUE(gbnf_accepts(one.grammar, text)) << one.grammar << text;
        for (const std::string& text : one.bad)
            EXPECT_FALSE(gbnf_accepts(one.grammar, text)) << one.grammar << text;
    }
}

// What XGrammar has and llama.cpp has not.
TEST(Gbnf, OtherTextsStayAsTheyAre) {
    EXPECT_TRUE(gbnf_accepts("root ::= \"a\"\n  | \"b\"", "b"));
    EXPECT_TRUE(
        gbnf_accepts("root ::= root \"a\" | \"b\"", "baa"));  // llama.cpp refuses recursion to the left
    EXPECT_EQ(read_gbnf("root ::= \\"), "root ::= \\");
}

TEST(Gbnf, ErrorsSayWhatIsWrong) {
    const auto message = [](const std::string& grammar) {
        try {
            gbnf_grammar(grammar);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::usage);
            return std::string(error.what());
        }
        return std::string("no error");
    };
    EXPECT_THAT(message("root ::= other"), HasSubstr("other"));
    EXPECT_THAT(message("root ::= \"a\"{3,2}"), HasSubstr("3 > 2"));
    EXPECT_THAT(message("root ::= <think>"), HasSubstr("tokens"));
    EXPECT_THAT(message("root ::= !<[7]>"), HasSubstr("tokens"));
    EXPECT_THAT(message("root ::= \"\xff\""), HasSubstr("not valid UTF-8"));
    EXPECT_THAT(message("root ::= " + std::string(70, '(')), HasSubstr("nested too deep"));
    // Brackets within strings are none.
    std::string strings = "root ::=";
    for (int i = 0; i < 200; ++i) strings += " \"(\"";
    EXPECT_EQ(message(strings), "no error");
}

class RandomGrammar {
public:
    explicit RandomGrammar(uint32_t seed) : random_(seed) {}

    std::string text() {
        std::string out =
            one_of({"", "# a comment\n", "\n\n"}) + "root ::= " + alternatives(2, false) + end();
        for (int i = 0; i < 3; ++i) {
            rule_ = i;
            out += fmt::format("r-{} ::= {}{}", i, alternatives(1, false), end());
        }
        return out;
    }

private:
    std::string one_of(const std::vector<std::string>& values) { return values[random_() % values.size()]; }
    std::string end() { return one_of({"\n", " \n", " # comment\n", "\r\n", "\n\n"}); }
    std::string space(bool lines) {
        return lines ? one_of({" ", "\n", " # comment\n "}) : one_of({" ", "  "});
    }

    // Outside of brackets the last one is not empty: it would go on in the next line.
    std::string alternatives(int depth, bool lines) {
        std::string out;
        for (uint32_t n = random_() % 3; n > 0; --n) out += sequence(depth, lines, 0) + "|" + space(true);
        return out + sequence(depth, lines, lines ? 0 : 1);
    }
    std::string sequence(int depth, bool lines, uint32_t least) {
        std::string out;
        for (uint32_t n = least + random_() % 4; n > 0; --n) out += item(depth) + space(lines);
        return out;
    }
    std::string item(int depth) {
        std::string out;
        switch (random_() % (depth > 0 ? 5 : 4)) {
            case 0:
                out =
                    one_of({"\"a\"", "\"ab\"", "\"\\n\"", "\"\\x41\"", "\"\\u00e9\"", "\"\\\"\"", "\"漢\""});
                break;
            case 1:
                out = one_of({"[a-c]", "[^a]", "[abc]", "[a-]", "[^\\n]", "[\\[\\]]", "[ぁ-ゟ]", "[0-9a-f]"});
                break;
            case 2: out = "."; break;
            case 3:  // to the rules behind: no recursion, which llama.cpp refuses to the left
                out = rule_ < 2
                          ? fmt::format(
                                "r-{}",
                                rule_ + 1 + static_cast<int>(random_() % static_cast<uint32_t>(2 - rule_)))
                          : "\"r\"";
                break;
            default: out = "(" + space(true) + alternatives(depth - 1, true) + ")";
        }
        return out +
               one_of({"", "", "", "*", "+", "?", "{2}", "{1,2}", "{1,}", "{0,2}", "{2}?", "{0,1}{1,2}"});
    }

    std::mt19937 random_;
    int rule_ = -1;
};

struct Freed {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};

// Whatever has been written, the same tokens may follow.
TEST(Gbnf, RandomGrammarsAllowWhatLibllamaAllows) {
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    const std::unique_ptr<llama_model, Freed> model(llama_model_load_from_file(kModel, params));
    ASSERT_NE(model, nullptr);
    const llama_vocab* vocab = llama_model_get_vocab(model.get());
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    std::vector<std::string> pieces;
    for (int32_t token = 0; token < n_vocab; ++token) pieces.push_back(llama_tokenizer().piece(token, false));
    int steps = 0, grammars = 0;
    for (uint32_t seed = 0; seed < 200; ++seed) {
        const std::string text = RandomGrammar(seed).text();
        const std::unique_ptr<llama_sampler, Freed> other(
            llama_sampler_init_grammar(vocab, text.c_str(), "root"));
        // It takes repetitions of what may be empty for recursion to the left.
        if (other == nullptr) continue;
        GrammarState own(gbnf_grammar(text));
        ++grammars;
        std::mt19937 random(seed);
        std::string written;
        try {
            for (int step = 0; step < 12; ++step, ++steps) {
                std::vector<llama_token_data> data;
                for (int32_t token = 0; token < n_vocab; ++token) data.push_back({token, 0.0F, 0.0F});
                llama_token_data_array tokens{data.data(), data.size(), -1, false};
                llama_sampler_apply(other.get(), &tokens);
                std::vector<int32_t> next;
                for (const llama_token_data& one : data) {
                    const std::string& piece = pieces[static_cast<size_t>(one.id)];
                    const bool end = llama_tokenizer().is_end_of_generation(one.id);
                    // Bytes of characters: llama.cpp takes some that no character has.
                    if ((piece.empty() && !end) || find_invalid_utf8(piece) != std::string::npos) continue;
                    const bool allowed = own.allows(one.id);
                    ASSERT_EQ(allowed, std::isfinite(one.logit)) << text << "after '" << written << "', '"
                                                                 << piece << "'" << (end ? " (the end)" : "");
                    if (allowed && !end) next.push_back(one.id);
                }
                if (next.empty()) break;
                const int32_t token = next[random() % next.size()];
                own.accept(token);
                llama_sampler_accept(other.get(), token);
                written += pieces[static_cast<size_t>(token)];
            }
        } catch (const FormatError&) {
            // It can be read in too many ways.
        }
    }
    EXPECT_GT(grammars, 50);
    EXPECT_GT(steps, 200);
}

}  // namespace
}  // namespace refold
