// refold eval ppl and refold compare.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cli/refold.h"
#include "eval/excerpt.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kModel = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";
const std::string kQuantized = std::string(REFOLD_FIXTURES) + "/quantized/q8_0.gguf";

class Eval : public testing::Test {
protected:
    Eval() { write_all(folder / "text", excerpt(12)); }

    std::vector<std::string> ppl(std::vector<std::string> more, const std::string& model = kModel) const {
        std::vector<std::string> words = {"eval", "ppl", model, "--text", folder / "text", "-t", "1"};
        if (std::find(more.begin(), more.end(), "--context") == more.end())
            words.insert(words.end(), {"--context", "64"});
        words.insert(words.end(), more.begin(), more.end());
        return words;
    }
    std::vector<std::string> variables() const { return {"REFOLD_CACHE=" + (folder / "cache")}; }
    json result(std::vector<std::string> more, const std::string& model = kModel) const {
        return refold_json(ppl(std::move(more), model), "", variables());
    }
    std::string kept(const std::string& name, std::vector<std::string> more,
                     const std::string& model = kModel) const {
        more.emplace_back("--json");
        const Outcome done = refold(ppl(std::move(more), model), "", variables());
        EXPECT_EQ(done.code, 0) << done.err;
        write_all(folder / name, done.out);
        return folder / name;
    }
    TempFolder folder;
};

TEST(EvalPpl, ReportsTheProtocol) {
    const std::string text = std::string(REFOLD_FIXTURES) + "/README.md";
    const json j = refold_json({"eval", "ppl", kModel, "--text", text, "--context", "64", "--stride", "32",
                                "--max-windows", "3", "--f32"});
    expect_keys(j, {"perplexity", "standard_error", "mean_nll", "tokens_scored", "windows", "tokens_per_s"});
    EXPECT_EQ(j["context"], 64);
    EXPECT_EQ(j["stride"], 32);
    EXPECT_EQ(j["windows"], 3);
    EXPECT_EQ(j["tokens_scored"], 63 + 32 + 32);
    EXPECT_EQ(j["protocol"], "windows");
    EXPECT_NEAR(j["perplexity"].get<double>(), std::exp(j["mean_nll"].get<double>()), 1e-9);
    EXPECT_THAT(refold({"eval", "ppl", kModel, "--text", text, "--context", "64", "--max-windows", "1"}).out,
                HasSubstr("perplexity "));
}

TEST_F(Eval, ProtocolsAreNamedWithTheirParameters) {
    for (const std::string name : {"windows", "gptq", "llama.cpp", "lm-eval"}) {
        const json j = result({"--protocol", name, "--max-windows", "2"});
        EXPECT_EQ(j["protocol"], name);
        EXPECT_EQ(j["context"], 64);
        EXPECT_EQ(j["bos"].get<std::string>(), name == "lm-eval"     ? "document"
                                               : name == "llama.cpp" ? "window"
                                                                     : "text");
        EXPECT_EQ(j.contains("word_perplexity"), name == "lm-eval");
        EXPECT_EQ(j.contains("running"), name == "llama.cpp");
        EXPECT_GT(j["standard_error"], 0);
        EXPECT_EQ(j["warnings"].size(), 0u);
        EXPECT_EQ(j["provenance"]["data"]["path"], folder / "text");
        EXPECT_THAT(j["provenance"]["command"].get<std::string>(), HasSubstr("eval ppl"));
        EXPECT_LE(j["provenance"]["engine"]["context"], 64);
        const Outcome text = refold(ppl({"--protocol", name, "--max-windows", "1"}));
        EXPECT_EQ(text.code, 0) << text.err;
        EXPECT_THAT(text.out, HasSubstr("protocol " + name + ": "));
        EXPECT_THAT(text.out, HasSubstr(name == "lm-eval" ? "word perplexity " : "perplexity "));
    }
}

TEST_F(Eval, BadInput) {
    expect_error(refold(ppl({"--protocol", "gtpq"})), 2, {"unknown protocol 'gtpq'", "did you mean 'gptq'?"});
    expect_error(refold(ppl({"--protocol", "gptq", "--stride", "8"})), 2,
                 {"--stride belongs to --protocol windows"});
    expect_error(refold(ppl({"--protocol", "llama.cpp", "--context", "4000"})), 1, {"two chunks of 4000"});
    write_all(folder / "text", "{\"text\": \"a b\"}\n{\"text\": 3}\n");
    expect_error(refold(ppl({"--protocol", "lm-eval"})), 1, {"line 2", "\"text\" is not a string"});
    write_all(folder / "s", "");
    expect_error(refold(ppl({"--samples", folder / "s"})), 2, {"--overwrite"});
}

TEST_F(Eval, WarnsOfItsCalibrationText) {
    const std::string out = folder / "c.gguf";
    write_all(folder / "recipe.yaml",
              "calibration: {text: [" + (folder / "other") + ", " + (folder / "text") +
                  "], tokens: 128, length: 32}\nsteps:\n  - method: llmdrop\n    count: 1\n");
    write_all(folder / "other", excerpt(13));
    const Outcome made = refold({"compress", kModel, "-o", out, "--recipe", folder / "recipe.yaml"});
    ASSERT_EQ(made.code, 0) << made.err;
    const json j = result({"--max-windows", "1"}, out);
    ASSERT_EQ(j["warnings"].size(), 1u);
    EXPECT_THAT(j["warnings"][0].get<std::string>(), HasSubstr("calibrated on this very text ('text')"));
    EXPECT_THAT(j["provenance"]["model"]["compression"]["recipe"].get<std::string>(), HasSubstr("llmdrop"));
    EXPECT_THAT(refold(ppl({"--max-windows", "1"}, out)).err, HasSubstr("warning: the model was calibrated"));
    write_all(folder / "text", excerpt(11));
    const Outcome other = refold(ppl({"--max-windows", "1"}, out));
    EXPECT_EQ(other.code, 0) << other.err;
    EXPECT_THAT(other.err, Not(HasSubstr("warning")));
}

TEST_F(Eval, ResultsAreCompared) {
    const std::string a = kept("a.json", {"--samples", folder / "a.jsonl"});
    const std::string b = kept("b.json", {"--samples", folder / "b.jsonl"}, kQuantized);
    const json j = refold_json({"compare", a, b, "--resamples", "500"});
    ASSERT_EQ(j["differences"].size(), 1u);
    const json& row = j["differences"][0];
    EXPECT_EQ(row["test"], "paired bootstrap");
    EXPECT_NEAR(row["a"], json::parse(read_all(a))["perplexity"].get<double>(),
                1e-6 * row["a"].get<double>());
    EXPECT_EQ(j["a"]["provenance"]["model"]["path"], kModel);
    EXPECT_EQ(j["seed"], 1234);
    const Outcome text = refold({"compare", folder / "a.jsonl", folder / "b.jsonl", "--resamples", "500"});
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("paired bootstrap"));

    const std::string c = kept("c.json", {"--protocol", "gptq"}), d = kept("d.json", {});
    expect_error(refold({"compare", a, c}), 1, {"different protocol", "windows", "gptq"});
    EXPECT_THAT(refold({"compare", a, d}).out, HasSubstr("unpaired"));
    // Windows with different tokens.
    result({"--context", "32", "--samples", folder / "e.jsonl"});
    expect_error(refold({"compare", folder / "a.jsonl", folder / "e.jsonl"}), 1, {"not the same in both"});
    write_all(folder / "b.jsonl", "{\"doc_id\": 0, \"acc\"");
    expect_error(refold({"compare", folder / "a.jsonl", folder / "b.jsonl"}), 1, {"b.jsonl', line 1"});
    expect_error(refold({"compare", a, b}), 1, {"has changed since"});
}

TEST_F(Eval, ModelsAreCompared) {
    const std::vector<std::string> words = {"compare",   kModel,  kQuantized,    "--text", folder / "text",
                                            "--context", "64",    "-t",          "1",      "--max-windows",
                                            "3",         "--f32", "--resamples", "500"};
    const json j = refold_json(words, "", variables());
    EXPECT_EQ(j["protocol"], "windows");
    EXPECT_EQ(j["differences"].size(), 1u);
    EXPECT_GT(j["logits"]["kl_divergence"], 0);
    EXPECT_GT(j["logits"]["top1_agreement"], 0.5);
    EXPECT_EQ(j["b"]["provenance"]["model"]["path"], kQuantized);
    const Outcome text = refold(words);
    EXPECT_THAT(text.out, HasSubstr("KL divergence of B from A"));
    EXPECT_THAT(text.out, HasSubstr("protocol windows"));
    expect_error(refold({"compare", kModel, kQuantized}), 2, {"--text"});
    expect_error(refold({"compare", kModel, "x.json"}), 2, {"two models or two results"});
    expect_error(refold({"compare", "x.json", "y.json", "--text", "z"}), 2, {"--text is for two models"});
    expect_error(refold({"compare", "x.json", "y.json"}), 1, {"x.json"});
}

}  // namespace
}  // namespace refold
