// refold report, and --report of the other verbs, from models to pages.
#include <filesystem>

#include "cli/refold.h"
#include "report/markup_check.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

const std::string kFixture = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";
const std::string kText = std::string(REFOLD_FIXTURES) + "/README.md";

class Report : public testing::Test {
protected:
    void SetUp() override {
        fs::copy_file(kFixture, dense);
        keep("small.compress.json",
             {"compress", dense, "-o", small, "--method", "direct_share", "--set", "ratio=0.3"});
    }
    // Writes a verb's result into a file.
    json keep(const std::string& name, std::vector<std::string> words) {
        json result = refold_json(std::move(words), "", {"REFOLD_CACHE=" + (folder / "cache")});
        write_all(folder / name, result.dump());
        return result;
    }
    void keep_perplexity(const std::string& name, const std::string& model) {
        keep(name, {"eval", "ppl", model, "--text", kText, "--context", "32", "--max-windows", "2",
                    "--threads", "1"});
    }
    std::string ok(std::vector<std::string> words) {
        const Outcome outcome = refold(std::move(words), "", {"REFOLD_CACHE=" + (folder / "cache")});
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return outcome.out;
    }
    TempFolder folder;
    const std::string dense = folder / "dense.gguf", small = folder / "small.gguf";
};

TEST_F(Report, FromModelsAndResultsToAPage) {
    keep_perplexity("dense.ppl.json", dense);
    keep_perplexity("small.ppl.json", small);
    keep("small.bench.json",
         {"bench", small, "--prefill", "8", "--decode", "4", "--rounds", "1", "--threads", "1"});
    keep("analysis.json", {"analyze", dense, "--calib", kText, "--sequence-length", "16", "--calib-tokens",
                           "96", "--threads", "1"});
    const std::string page = folder / "out.html";
    EXPECT_EQ(ok({"report", folder / "", "-o", page, "--title", "Sharing & more"}), "");
    const std::string html = read_all(page);
    EXPECT_EQ(markup_error(html), "");
    for (const char* part :
         {"<h1>Sharing &amp; more</h1>", "dense", "small", "Perplexity against size",
          "Where the weights come from", "Error of the weights", "Softmax similarity of layers",
          "Singular values of attn.q", "Decode speed", "Shared attention per layer", "method: direct_share",
          "refold compress dense.gguf -o small.gguf", "SHA-256"})
        EXPECT_THAT(html, HasSubstr(part));
    const std::string table = ok({"report", folder / ""});
    for (const char* part : {"parameters stored", "perplexity", "decode speed", "KV cache per token"})
        EXPECT_THAT(table, HasSubstr(part));
}

TEST_F(Report, Formats) {
    const json result = json::parse(ok({"report", small, dense, "--json"}));
    ASSERT_EQ(result["variants"].size(), 2U);
    EXPECT_EQ(result["variants"][0]["name"], "dense");  // the model that the other was made of
    EXPECT_GT(result["variants"][1]["reconstruction"]["total"], 0);
    EXPECT_EQ(result["variants"][1]["file_bytes"], fs::file_size(small));
    EXPECT_THAT(ok({"report", small, dense, "--format", "md"}), HasSubstr("| parameters stored |"));
    ok({"report", small, dense, "-o", folder / "r.md", "--no-weights"});
    const std::string text = read_all(folder / "r.md");
    EXPECT_THAT(text, HasSubstr("## To reproduce"));
    EXPECT_THAT(text, testing::Not(HasSubstr("error of weights")));
    ok({"report", small, "-o", folder / "r.txt", "--format", "html"});
    EXPECT_THAT(read_all(folder / "r.txt"), HasSubstr("<!DOCTYPE html>"));
}

TEST_F(Report, OfOtherVerbs) {
    const std::string page = folder / "page.html";
    ok({"compress", dense, "-o", folder / "b.gguf", "--method", "direct_share", "--set", "ratio=0.3",
        "--report", page});
    EXPECT_THAT(read_all(page), testing::AllOf(HasSubstr("Error of the weights"), HasSubstr("dense and b")));
    ok({"bench", small, "--prefill", "8", "--decode", "4", "--rounds", "1", "--threads", "1", "--baseline",
        "none", "--report", page, "--overwrite"});
    EXPECT_THAT(read_all(page), HasSubstr("Decode speed"));
    ok({"analyze", dense, "--what", "spectra", "--report", folder / "analysis.html"});
    EXPECT_THAT(read_all(folder / "analysis.html"), HasSubstr("Singular values of ffn.down"));
    ok({"eval", "ppl", small, "--text", kText, "--context", "32", "--max-windows", "1", "--threads", "1",
        "--report", folder / "ppl.json"});
    const json report = json::parse(read_all(folder / "ppl.json"));
    EXPECT_EQ(report["variants"][0]["name"], "small");
    EXPECT_GT(report["variants"][0]["perplexity"]["perplexity"], 1);
    // Refused before any work.
    expect_error(
        refold({"compress", dense, "-o", folder / "c.gguf", "--method", "direct_share", "--report", page}), 2,
        {"page.html", "--overwrite"});
    EXPECT_FALSE(fs::exists(folder / "c.gguf"));
    expect_error(refold({"bench", dense, "--report", folder / "page.pdf"}), 2, {"page.pdf", ".html"});
}

TEST_F(Report, ErrorsSayWhatToDo) {
    write_all(folder / "other.json", "{\"a\": 1}");
    write_all(folder / "broken.json", "{");
    expect_error(refold({"report", folder / "none.gguf"}), 1, {"none.gguf"});
    expect_error(refold({"report", folder / "other.json"}), 1,
                 {"other.json", "no result of refold", "--json"});
    expect_error(refold({"report", folder / "broken.json"}), 1, {"broken.json", "not JSON"});
    expect_error(refold({"report", small, "-o", folder / "r.pdf"}), 2, {"r.pdf", ".html, .md or .json"});
    expect_error(refold({"report", small, "-o", small}), 2, {"small.gguf"});
    fs::create_directory(folder / "empty");
    expect_error(refold({"report", folder / "empty"}), 1, {"neither a model nor a result"});
    EXPECT_EQ(refold({"report"}).code, 2);
}

TEST_F(Report, ExportedDirectoriesHaveAModelCard) {
    const std::string model = folder / "model.gguf";
    ok({"compress", std::string(REFOLD_FIXTURES) + "/llama/model.gguf", "-o", model, "--method",
        "direct_share", "--set", "ratio=0.3"});
    keep_perplexity("model.ppl.json", model);
    ok({"export", model, "--to", "hf", "-o", folder / "hf", "--results", folder / "model.ppl.json"});
    const std::string card = read_all(folder / "hf/README.md");
    for (const char* part : {"---\nlibrary_name: \"transformers\"\n", "- \"direct_share\"", "# hf\n",
                             "## What was done", "method: direct_share", "made of model.gguf, SHA-256",
                             "| parameters stored |", "## Figures", "perplexity", "AutoModelForCausalLM"})
        EXPECT_THAT(card, HasSubstr(part));
    EXPECT_FALSE(fs::exists(folder / "hf/README.source.md"));
    // The source's card is kept, and its license is taken over.
    write_all(folder / "hf/README.md", "---\nlicense: apache-2.0\n---\n# The source's\n");
    const Outcome again = refold({"export", folder / "hf", "--to", "hf", "-o", folder / "hf2"});
    EXPECT_THAT(again.err, HasSubstr("README.source.md"));
    EXPECT_THAT(read_all(folder / "hf2/README.source.md"), HasSubstr("# The source's"));
    EXPECT_THAT(read_all(folder / "hf2/README.md"),
                testing::AllOf(HasSubstr("license: \"apache-2.0\""), HasSubstr("(README.source.md)")));
    expect_error(refold({"export", small, "-o", folder / "x.gguf", "--results", folder / "model.ppl.json"}),
                 2, {"--results"});
}

TEST_F(Report, TrainingRunsAreCurvesOfTheirModel) {
    const std::string metrics = folder / "small.train/step-1/metrics.jsonl", page = folder / "out.html";
    fs::create_directories(fs::path(metrics).parent_path());
    write_all(metrics, "{\"step\":1,\"loss\":4.5,\"held_out_loss\":4.25}\n{\"step\":2,\"loss\":4}\n");
    ok({"report", small, folder / "small.train", "--no-weights", "-o", page});
    const std::string html = read_all(page);
    EXPECT_EQ(markup_error(html), "");
    for (const char* part : {"<h2>Training</h2>", "loss (nats per token)", "held-out loss", "4.2500"})
        EXPECT_THAT(html, HasSubstr(part));
    EXPECT_EQ(json::parse(ok(
                  {"report", metrics, "--json"}))["variants"][0]["training"][0]["curves"]["loss"]["values"],
              json({4.5, 4.0}));
    write_all(metrics, "{\"step\":1}\nnone\n");
    const Outcome outcome = refold({"report", folder / "small.train"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("metrics.jsonl', line 2: no valid JSON"));
}

}  // namespace
}  // namespace refold
