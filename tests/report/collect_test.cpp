// Collecting models and results into a comparison.
#include "report/collect.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "compress/compress.h"
#include "core/error_of.h"
#include "core/temp_folder.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

using testing::HasSubstr;

const std::string kDense = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";

void make(const std::string& from, const std::string& to, const std::string& method,
          const std::vector<std::string>& settings) {
    Work work;
    save_model(compress(load_model(from), recipe_from_method(method, settings), "test", work).model, to,
               true);
}

class Collect : public testing::Test {
protected:
    void SetUp() override {
        std::filesystem::copy_file(kDense, folder / "dense.gguf");
        make(kDense, folder / "shared.gguf", "direct_share", {"ratio=0.3"});
    }
    Comparison of(const std::vector<std::string>& paths, const CollectOptions& options = {}) {
        Runs runs;
        for (const auto& path : paths) add_runs(path, "", runs);
        return collect(runs, options);
    }
    std::string hash(const std::string& name) {
        return describe_model(load_model(folder / name), {folder / name, ""}).hashes.begin()->second;
    }
    std::string result(const std::string& name, const std::string& model, double value) {
        write_all(folder / name, fmt::format(R"({{"perplexity": {}, "tokens_scored": 9, "protocol": "windows",
            "provenance": {{"model": {}}}}})",
                                             value, model));
        return folder / name;
    }
    TempFolder folder;
};

TEST_F(Collect, OriginalsComeFirstAndWeightsAreCompared) {
    make(folder / "shared.gguf", folder / "twice.gguf", "laser", {"layers=0", "slots=ffn.down", "rho=0.5"});
    const Comparison c = of({folder / "twice.gguf", folder / "shared.gguf", folder / "dense.gguf"});
    ASSERT_EQ(c.variants.size(), 3U);
    EXPECT_EQ(c.variants[0].name, "dense");
    EXPECT_EQ(c.variants[1].name, "shared");
    EXPECT_EQ(c.model, "dense");
    EXPECT_EQ(c.title, "dense and 2 variants");
    EXPECT_FALSE(c.variants[0].reconstruction);
    ASSERT_TRUE(c.variants[1].reconstruction && c.variants[2].reconstruction);
    EXPECT_GT(c.variants[1].reconstruction->total, 0);
    EXPECT_GT(c.variants[2].reconstruction->total, c.variants[1].reconstruction->total);
    EXPECT_THAT(c.variants[1].recipe, HasSubstr("direct_share"));
    EXPECT_THAT(c.variants[2].recipe, testing::AllOf(HasSubstr("direct_share"), HasSubstr("laser")));
    EXPECT_THAT(c.commands[0], HasSubstr("refold compress model.gguf -o shared.gguf"));
    EXPECT_EQ(c.variants[1].file_bytes, std::filesystem::file_size(folder / "shared.gguf"));
    EXPECT_LT(*c.variants[1].parameters, *c.variants[0].parameters);
    EXPECT_FALSE(of({folder / "dense.gguf", folder / "shared.gguf"}, {.reconstruction = false})
                     .variants[1]
                     .reconstruction);
}

TEST_F(Collect, ResultsFindTheirModels) {
    const std::string models[] = {folder / "dense.gguf", folder / "shared.gguf"};
    const std::string by_hash = result(
        "a.json", fmt::format(R"({{"path": "/gone/x.gguf", "sha256": "{}"}})", hash("shared.gguf")), 11);
    const std::string by_path = result("b.json", fmt::format(R"({{"path": "{}"}})", models[0]), 12);
    const std::string by_name = result("c.json", R"({"path": "/elsewhere/shared.gguf"})", 13);
    const std::string by_label = result("dense.ppl.json", "{}", 14);
    const Comparison c = of({by_hash, by_path, by_name, by_label, models[0], models[1]});
    ASSERT_EQ(c.variants.size(), 2U);
    std::vector<double> dense, shared;
    for (const auto& p : c.variants[0].perplexities) dense.push_back(p.value);
    for (const auto& p : c.variants[1].perplexities) shared.push_back(p.value);
    EXPECT_EQ(dense, (std::vector<double>{12, 14}));
    EXPECT_EQ(shared, (std::vector<double>{11, 13}));
}

// Results of an earlier file do not belong to a model that was made again.
TEST_F(Collect, ResultsOfAnotherFileStayApart) {
    const std::string old =
        result("old.json", fmt::format(R"({{"path": "{}", "sha256": "00ff"}})", folder / "shared.gguf"), 11);
    const Comparison c = of({folder / "dense.gguf", folder / "shared.gguf", old});
    ASSERT_EQ(c.variants.size(), 3U);
    EXPECT_TRUE(c.variants[1].perplexities.empty());
    EXPECT_EQ(c.variants[2].name, "shared (another file)");
    ASSERT_EQ(c.notes.size(), 1U);
    EXPECT_THAT(c.notes[0], HasSubstr("old.json was measured on another file"));
}

TEST_F(Collect, DirectoriesAndHuggingFaceDirectories) {
    result("dense.ppl.json", "{}", 14);
    write_all(folder / "other.json", "{}");
    std::filesystem::create_directory(folder / "an");
    write_all(folder / "an/analysis.json",
              R"({"model": "dense.gguf", "layers": 2, "softmax": {"layer_cosine": [[1, 0.5], [0.5, 1]]}})");
    const Comparison c = of({folder / "", std::string(REFOLD_FIXTURES) + "/hf/llama_gqa"});
    ASSERT_EQ(c.variants.size(), 3U);
    EXPECT_EQ(c.variants[0].perplexities.size(), 1U);
    EXPECT_EQ(c.variants[0].analyses.size(), 1U);
    EXPECT_EQ(c.variants[2].file, "llama_gqa");
    EXPECT_FALSE(c.variants[2].hashes.empty());
    ASSERT_EQ(c.notes.size(), 1U);
    EXPECT_THAT(c.notes[0], HasSubstr("other.json"));
}

TEST_F(Collect, OriginalThatWasAskedFor) {
    const Comparison c =
        of({folder / "shared.gguf", folder / "dense.gguf"}, {.original = folder / "shared.gguf"});
    EXPECT_EQ(c.variants[0].name, "shared");
    EXPECT_TRUE(c.variants[1].reconstruction);
}

// Models that cannot be compared give a note, not an error.
TEST_F(Collect, ModelsOfOtherDepth) {
    const std::string other = std::string(REFOLD_FIXTURES) + "/hf/qwen2";
    ASSERT_NE(load_model(other).topology.layers.size(), load_model(kDense).topology.layers.size());
    const Comparison c = of({folder / "dense.gguf", other}, {.original = folder / "dense.gguf"});
    ASSERT_EQ(c.variants.size(), 2U);
    EXPECT_FALSE(c.variants[1].reconstruction);
    ASSERT_EQ(c.notes.size(), 1U);
    EXPECT_THAT(c.notes[0], HasSubstr("cannot be compared"));
}

// A saved report has the same information as its models.
TEST_F(Collect, ReportsAreReadAgain) {
    result("dense.ppl.json", "{}", 14);
    make(kDense, folder / "factored.gguf", "tensorllm", {"ranks=8,8,4"});
    write_all(folder / "factored.compress.json",
              fmt::format(R"({{"model": "{}", "output": "{}", "before": {{}}, "after": {{}}, "steps": [
                  {{"method": "tensorllm", "details": {{"stacks": [{{"svd_rank": 3, "svd": [
                  {{"layers": [1], "slot": "attn.q", "relative_error": 0.25}}]}}]}}}}]}})",
                          folder / "dense.gguf", folder / "factored.gguf"));
    const Comparison c = of({folder / "dense.gguf", folder / "shared.gguf", folder / "factored.gguf",
                             folder / "dense.ppl.json", folder / "factored.compress.json"});
    write_all(folder / "all.json", to_json(c));
    const Comparison again = of({folder / "all.json"});
    const auto page = [](Comparison shown) {
        shown.date = "";
        return to_html(shown);
    };
    EXPECT_TRUE(page(again) == page(c));
    EXPECT_THAT(page(c), HasSubstr(", SVD with as many numbers (rank 3): 0.25"));
    EXPECT_THAT(page(c), HasSubstr("<th scope=\"row\">layer 1, attn.q</th><td>"));
    EXPECT_THAT(page(c), HasSubstr("</td><td>0.2500</td><td>3</td>"));
    const Comparison thrice = of({folder / "all.json", folder / "all.json", folder / "shared.gguf"});
    EXPECT_TRUE(page(thrice) == page(c));
}

TEST_F(Collect, ReportsArePutTogether) {
    result("dense.ppl.json", "{}", 14);
    write_all(folder / "a.json", to_json(of({folder / "shared.gguf"})));
    write_all(folder / "b.json", to_json(of({folder / "dense.gguf", folder / "dense.ppl.json"})));
    make(kDense, folder / "shared.gguf", "direct_share", {"ratio=0.1"});
    write_all(folder / "c.json", to_json(of({folder / "shared.gguf", folder / "dense.gguf"})));
    const Comparison c = of({folder / "a.json", folder / "b.json", folder / "c.json"});
    ASSERT_EQ(c.variants.size(), 3U);
    EXPECT_EQ(c.variants[0].name, "dense");  // a.json names it as its model's origin
    EXPECT_EQ(c.variants[0].perplexities.size(), 1U);
    EXPECT_EQ(c.variants[1].name, "shared");
    EXPECT_EQ(c.variants[2].name, "c/shared");
    EXPECT_TRUE(c.variants[1].topology && c.variants[2].topology && c.variants[2].reconstruction);
    EXPECT_TRUE(c.notes.empty());
}

// The output file, which is about to be overwritten, is not an input.
TEST_F(Collect, TheOutputIsNoPartOfItsDirectory) {
    write_all(folder / "all.json", to_json(of({std::string(REFOLD_FIXTURES) + "/hf/llama_gqa"})));
    EXPECT_EQ(of({folder / ""}).variants.size(), 3U);
    Runs runs;
    runs.output = folder / "all.json";
    add_runs(folder / "", "", runs);
    EXPECT_EQ(collect(runs, {}).variants.size(), 2U);
}

TEST_F(Collect, RefusesWhatIsNeither) {
    Runs runs;
    const auto message = [&](const std::string& path, ErrorCode code) {
        return error_of([&] { add_runs(path, "", runs); }, code);
    };
    EXPECT_THAT(message(folder / "none", ErrorCode::io), HasSubstr("does not exist"));
    std::filesystem::create_directory(folder / "empty");
    EXPECT_THAT(message(folder / "empty", ErrorCode::input), HasSubstr("neither a model nor a result"));
    write_all(folder / "text.json", "hello");
    EXPECT_THAT(message(folder / "text.json", ErrorCode::input), HasSubstr("not JSON"));
}

}  // namespace
}  // namespace refold
