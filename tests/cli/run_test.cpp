// refold run.
#include "cli/refold.h"
#include "cli/tiny_model.h"
#include "core/text.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;

std::string without_replacements(std::string text) {
    for (size_t at; (at = find_invalid_utf8(text)) != std::string::npos;) text.erase(at, 1);
    for (size_t at; (at = text.find("\xEF\xBF\xBD")) != std::string::npos;) text.erase(at, 3);
    return text;
}

TEST(Run, ContinuesAPrompt) {
    const json j = refold_json({"run", kModel, "-p", "Hello world", "-n", "12", "--ignore-eos"});
    expect_keys(j, {"load_seconds", "prefill_tokens_per_s", "decode_tokens_per_s", "first_token_seconds",
                    "prompt_tokens", "seed"});
    EXPECT_EQ(j["prompt"], "Hello world");
    EXPECT_EQ(j["tokens"].size(), 12U);
    EXPECT_EQ(j["stop_reason"], "limit");
    const Outcome text = refold({"run", kModel, "-p", "Hello world", "-n", "12", "--ignore-eos"});
    EXPECT_EQ(text.out, j["text"].get<std::string>() + "\n");
    EXPECT_THAT(text.err, HasSubstr("tokens/s"));
    EXPECT_THAT(refold({"run", kModel, "-p", "Hello world", "-n", "2", "--quiet"}).err, IsEmpty());
    const TempFolder folder;
    write_all(folder / "prompt.txt", "Hello world");
    EXPECT_EQ(refold({"run", kModel, "-f", folder / "prompt.txt", "-n", "12", "--ignore-eos"}).out, text.out);
}

TEST(Run, AModelDrafts) {
    TempFolder folder;
    const std::string small = folder / "small.gguf";
    ASSERT_EQ(refold({"compress", kModel, "-o", small, "--method", "recursive", "--set", "loops=2"}).code, 0);
    const std::vector<std::string> plain = {"run", kModel,          "-p",  "Hello world", "-n",
                                            "40",  "--temperature", "0.7", "--f32",       "--ignore-eos"};
    std::vector<std::string> drafted = plain;
    drafted.insert(drafted.end(), {"--draft-model", small, "--draft-tokens", "3", "--draft-always"});
    const json result = refold_json(drafted);
    EXPECT_EQ(result["tokens"], refold_json(plain)["tokens"]);
    EXPECT_GT(result["drafted"], 0);
    EXPECT_THAT(refold(drafted).err, HasSubstr("drafts accepted"));
    drafted = {"run", kModel, "-p", "Hello", "--draft-model", REFOLD_FIXTURES "/llama/model.gguf"};
    expect_error(refold(drafted), 2, {"544 tokens", "448"});
    expect_error(refold({"run", kModel, "-p", "a", "--draft-model", small, "--lookup", "3"}), 2,
                 {"--lookup"});
    expect_error(refold({"run", kModel, "-p", "a", "--draft-tokens", "3"}), 2, {"--draft-model"});
    expect_error(
        refold({"run", kModel, "-p", "a", "--lookup", "3", "--kv-policy", "recent", "--kv-budget", "0.5"}), 2,
        {"budget"});
}

TEST(Run, OtherRotations) {
    std::vector<std::string> words = {"run", kModel, "-p",          "Hello world, how are you?",
                                      "-n",  "12",   "--ignore-eos"};
    const json own = refold_json(words)["tokens"];
    words.insert(words.end(), {"--rope-base", "3"});
    EXPECT_NE(refold_json(words)["tokens"], own);
    words.insert(words.end(), {"--rope-scaling", "ntk:2"});
    const Outcome wrong = refold(words);
    EXPECT_EQ(wrong.code, 2);
    EXPECT_THAT(wrong.err, HasSubstr("expected none, linear:FACTOR"));
}

TEST(Run, PrintsWholeCharacters) {
    bool multibyte = false;
    for (const char* seed : {"1", "2", "3", "4", "5", "6"}) {
        const std::vector<std::string> words = {"run",           kModel, "-p",      "a", "-n",     "100",
                                                "--temperature", "1.5",  "--top-k", "0", "--seed", seed,
                                                "--ignore-eos"};
        const json j = refold_json(words);
        const std::string text = j["text"];
        EXPECT_EQ(refold(words).out, text + "\n");
        EXPECT_EQ(find_invalid_utf8(text), std::string::npos);
        std::string ids;
        for (const int id : j["tokens"]) ids += (ids.empty() ? "" : ",") + std::to_string(id);
        std::string decoded = refold({"tokenize", kModel, "--decode", ids}).out;
        decoded.pop_back();
        EXPECT_EQ(without_replacements(text), without_replacements(decoded));
        for (const char c : without_replacements(text)) multibyte |= static_cast<signed char>(c) < 0;
    }
    EXPECT_TRUE(multibyte) << "no character of more than one byte was generated: choose other seeds";
}

TEST(Run, EndsWithAFullContext) {
    const json j =
        refold_json({"run", kModel, "-p", "Hello", "-n", "100", "--context", "16", "--ignore-eos"});
    EXPECT_EQ(j["stop_reason"], "context");
    EXPECT_EQ(j["tokens"].size() + j["prompt_tokens"].get<size_t>(), 17U);
}

TEST(Run, TextWithAFormat) {
    const auto text_of = [](const std::vector<std::string>& format) {
        std::vector<std::string> words = {"run", kModel, "-p", "Hello world", "-n", "60"};
        words.insert(words.end(), format.begin(), format.end());
        return refold_json(words)["text"].get<std::string>();
    };
    EXPECT_THAT(text_of({"--choice", "yes", "--choice", "no"}), testing::AnyOf("yes", "no"));
    EXPECT_THAT(text_of({"--regex", "[ab]{3}"}), testing::MatchesRegex("[ab]{3}"));
    const std::string schema =
        R"({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"]})";
    const TempFolder folder;
    write_all(folder / "schema.json", schema);
    write_all(folder / "grammar.gbnf", "root ::= \"x\" [0-9]\n");
    const std::string document = text_of({"--json-schema", schema});
    EXPECT_TRUE(json::parse(document)["n"].is_number_integer()) << document;
    EXPECT_EQ(text_of({"--json-schema", folder / "schema.json"}), document);
    EXPECT_THAT(text_of({"--grammar", folder / "grammar.gbnf"}), testing::MatchesRegex("x[0-9]"));
    expect_error(refold({"run", kModel, "-p", "a", "--regex", "(a"}), 2, {"regular expression"});
    expect_error(refold({"run", kModel, "-p", "a", "--regex", "a", "--choice", "b"}), 2, {"--choice"});
    expect_error(refold({"run", kModel, "-p", "a", "--json-schema", R"({"uniqueItems": true})"}), 2,
                 {"'uniqueItems' cannot be enforced"});
}

TEST(Run, StopTextsBiasAndPenalties) {
    const auto with = [&](std::vector<std::string> more) {
        const std::vector<std::string> words = {"run", kModel, "-p", "Hello", "-n", "16", "--ignore-eos"};
        more.insert(more.begin(), words.begin(), words.end());
        return refold_json(more);
    };
    const json plain = with({});
    const std::string text = plain["text"];
    ASSERT_GT(text.size(), 8U);
    const std::string stop = text.substr(text.size() / 2, 2);
    const json stopped = with({"--stop", "nowhere to be found", "--stop", stop});
    EXPECT_EQ(stopped["stop_reason"], "stop");
    EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));

    const int first = plain["tokens"][0];
    for (const int token : with({"--logit-bias", std::to_string(first) + "=-inf"})["tokens"])
        EXPECT_NE(token, first);
    for (const int token : with({"--logit-bias", "40=100", "--logit-bias", "41=-100"})["tokens"])
        EXPECT_EQ(token, 40);
    EXPECT_NE(
        with({"--repeat-penalty", "1000", "--presence-penalty", "2", "--repeat-last-n", "-1"})["tokens"],
        plain["tokens"]);
}

}  // namespace
}  // namespace refold
