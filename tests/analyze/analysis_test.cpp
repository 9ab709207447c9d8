// The parts of an analysis as JSON, text and CSV, and the cache.
#include "analyze/analysis.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "analyze/checks.h"
#include "analyze/output.h"
#include "analyze/stored_analysis.h"
#include "core/temp_folder.h"
#include "engine/expression_models.h"
#include "model/load.h"
#include "model/save.h"
#include "model/small_model.h"

namespace refold {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

const std::vector<std::vector<int32_t>> kSequences = {{1, 2, 3, 4, 5}, {5, 5, 1, 0, 2}, {7, 6, 3, 2, 1}};

AnalysisOptions all_options() { return {.parts = all_parts(true), .pass = {.threads = 1, .f32 = true}}; }

TEST(Analysis, PartsHaveNames) {
    for (const AnalysisPart part : all_parts(true)) EXPECT_EQ(part_from_name(part_name(part)), part);
    EXPECT_EQ(all_parts(false), (std::set<AnalysisPart>{AnalysisPart::weights, AnalysisPart::spectra}));
    expect_error(ErrorCode::usage, {"unknown part 'softmx'", "did you mean 'softmax'?"},
                 [] { part_from_name("softmx"); });
}

TEST(Analysis, OfIdenticalLayers) {
    const Model model = small_model({}, [](size_t, Slot slot, int64_t row, int64_t column) {
        if (slot == Slot::attn_o || slot == Slot::ffn_down) return 0.0F;
        return is_vector(slot) ? 1.0F : scattered(0, slot, row, column);
    });
    Analysis got = analyze(model, kSequences, all_options());
    ASSERT_EQ(got.size(), 5U);
    const Json& softmax = got[AnalysisPart::softmax];
    for (const char* key : {"average", "maximum", "minimum", "top_half_average"})
        EXPECT_NEAR(softmax[key].get<double>(), 1, 1e-8) << key;
    EXPECT_NEAR(softmax["standard_deviation_over_pairs"].get<double>(), 0, 1e-7);
    EXPECT_TRUE(softmax["bottom_half_average"].is_null());  // one layer
    EXPECT_EQ(softmax["sequences"], 3);
    EXPECT_EQ(softmax["layer_cosine"].size(), 3U);
    // Every later head has its copy in layer 0, by weights and by maps.
    const Json& heads = got[AnalysisPart::heads];
    const Json& weights = got[AnalysisPart::weights];
    for (const Json& match : {heads["best_matches"][4], weights["best_matches"][4]}) {
        EXPECT_EQ(match["layer"], 2);
        EXPECT_EQ(match["head"], 0);
        EXPECT_EQ(match["former_layer"], 0);
        EXPECT_EQ(match["former_head"], 0);
        EXPECT_NEAR(match["cosine"].get<double>(), 1, 1e-7);
    }
    EXPECT_TRUE(weights["best_matches"][1]["cosine"].is_null());
    EXPECT_EQ(heads["degree"]["candidates"], 4);
    EXPECT_EQ(heads["degree"]["selected_pairs"], 1);
    EXPECT_EQ(heads["degree"]["of_pairs"]["samples"].size(), 5U);
    EXPECT_NEAR(got[AnalysisPart::modules]["layers"][1]["attention"].get<double>(), 1, 1e-8);
    EXPECT_NEAR(weights["ffn_module_cosine"][0][1].get<double>(), 0, 2);
    EXPECT_EQ(got[AnalysisPart::spectra]["matrices"].size(), 21U);
}

TEST(Analysis, SaysNullForWhatDoesNotExist) {
    for (const auto& [name, model, input] : expression_models()) {
        SCOPED_TRACE(name);
        Analysis got = analyze(model, {input.tokens, input.tokens}, all_options());
        const size_t layers = model.topology.layers.size();
        EXPECT_EQ(got[AnalysisPart::softmax]["layer_cosine"].size(), layers);
        for (size_t p = 0; p < layers; ++p) {
            const Json& layer = got[AnalysisPart::modules]["layers"][p];
            const bool ffn = model.topology.has(p, Slot::ffn_down);
            EXPECT_EQ(layer["ffn"].is_null(), !ffn);
            if (!model.topology.has(p, Slot::attn_o)) {
                EXPECT_TRUE(got[AnalysisPart::softmax]["layer_cosine"][p][p].is_null());
                EXPECT_TRUE(got[AnalysisPart::weights]["attention_module_cosine"][p][p].is_null());
            }
            EXPECT_EQ(got[AnalysisPart::weights]["ffn_module_cosine"][p][p].is_null(), !ffn);
        }
        EXPECT_THAT(summary_text(got), HasSubstr("softmax similarity"));
    }
}

std::vector<std::string> lines(const std::string& text) {
    std::vector<std::string> out;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) out.push_back(line);
    return out;
}

TEST(Analysis, CsvHoldsWhatJsonDoes) {
    Json part = {{"heads", {"0.0", "1.0"}},
                 {"head_cosine", {{1.0, 0.25}, {0.25, nullptr}}},
                 {"best_matches", {{{"layer", 1}, {"head", 0}, {"cosine", nullptr}}}}};
    Json layers = {{"layer_cosine", {{1.0, 0.5}, {0.5, 1.0}}}, {"average", 0.5}};
    Json matrices = {
        {"matrices", {{{"layers", {0, 2}}, {"slot", "attn.q"}, {"singular_values", {2.0, 1.5}}}}}};
    const TempFolder folder;
    write_csv(
        {{AnalysisPart::heads, part}, {AnalysisPart::softmax, layers}, {AnalysisPart::spectra, matrices}},
        folder / "");
    EXPECT_THAT(folder.files(),
                testing::UnorderedElementsAre("heads_head_cosine.csv", "heads_best_matches.csv",
                                              "softmax_layer_cosine.csv", "spectra_matrices.csv",
                                              "spectra_singular_values.csv"));
    EXPECT_EQ(read_all(folder / "heads_head_cosine.csv"), "head,0.0,1.0\n0.0,1.0,0.25\n1.0,0.25,\n");
    EXPECT_EQ(read_all(folder / "heads_best_matches.csv"), "layer,head,cosine\n1,0,\n");
    EXPECT_EQ(read_all(folder / "softmax_layer_cosine.csv"), "layer,0,1\n0,1.0,0.5\n1,0.5,1.0\n");
    EXPECT_EQ(read_all(folder / "spectra_matrices.csv"), "layers,slot\n0 2,attn.q\n");
    EXPECT_EQ(lines(read_all(folder / "spectra_singular_values.csv")),
              (std::vector<std::string>{"layers,slot,index,singular_value", "0 2,attn.q,0,2.0",
                                        "0 2,attn.q,1,1.5"}));
}

// ---- cache ----

class StoredAnalysis : public testing::Test {
protected:
    StoredAnalysis() {
        save_model(small_model({}, scattered), path_, false);
        std::vector<int32_t> tokens;
        for (const auto& sequence : kSequences) tokens.insert(tokens.end(), sequence.begin(), sequence.end());
        calibration_ = make_calibration("text", "text", tokens, {.tokens = 15, .length = 5});
    }
    Analysis run(const AnalysisOptions& options, const std::string& cache) const {
        return stored_analysis(load_model(path_), path_, &calibration_, options, cache);
    }
    // Replaces every stored part by a mark.
    void mark() const {
        for (const auto& entry : std::filesystem::directory_iterator(cache_))
            write_all(entry.path(), R"({"marked": true})");
    }
    static bool is_marked(const Analysis& analysis, AnalysisPart part) {
        return analysis.at(part).contains("marked");
    }

    TempFolder folder_;
    std::string path_ = folder_ / "model.gguf", cache_ = folder_ / "cache";
    Calibration calibration_;
};

TEST_F(StoredAnalysis, SameQuestionSameAnswer) {
    const Analysis first = run(all_options(), cache_);
    EXPECT_EQ(first, run(all_options(), cache_));
    EXPECT_EQ(first, run(all_options(), ""));
    mark();
    const Analysis marked = run(all_options(), cache_);
    for (const AnalysisPart part : all_parts(true)) EXPECT_TRUE(is_marked(marked, part)) << part_name(part);
    EXPECT_EQ(first, run(all_options(), ""));
}

TEST_F(StoredAnalysis, OtherQuestionsAreComputed) {
    AnalysisOptions some = all_options();
    some.parts = {AnalysisPart::heads, AnalysisPart::weights};
    run(some, cache_);
    mark();
    some.ratio = 0.5;
    Analysis got = run(some, cache_);
    EXPECT_FALSE(is_marked(got, AnalysisPart::heads));
    EXPECT_TRUE(is_marked(got, AnalysisPart::weights));
    mark();
    calibration_.hash = "another text";
    got = run(all_options(), cache_);
    EXPECT_FALSE(is_marked(got, AnalysisPart::heads));
    EXPECT_TRUE(is_marked(got, AnalysisPart::weights));
    mark();
    AnalysisOptions half = all_options();
    half.pass.f32 = false;
    got = run(half, cache_);
    EXPECT_FALSE(is_marked(got, AnalysisPart::softmax));
    mark();
    save_model(
        small_model({}, [](size_t, Slot slot, int64_t r, int64_t c) { return scattered(9, slot, r, c); }),
        path_, true);
    got = run(all_options(), cache_);
    for (const AnalysisPart part : all_parts(true)) EXPECT_FALSE(is_marked(got, part)) << part_name(part);
}

TEST_F(StoredAnalysis, DamagedOrUnwritableCacheIsNoError) {
    const Analysis first = run(all_options(), cache_);
    for (const auto& entry : std::filesystem::directory_iterator(cache_))
        write_all(entry.path(), "{\"half\": ");
    EXPECT_EQ(first, run(all_options(), cache_));
    write_all(folder_ / "file", "not a folder");
    EXPECT_EQ(first, run(all_options(), folder_ / "file"));
}

TEST_F(StoredAnalysis, PartsThatNeedTextSaySo) {
    AnalysisOptions options = all_options();
    options.parts = {AnalysisPart::weights, AnalysisPart::modules};
    const Model model = load_model(path_);
    expect_error(ErrorCode::usage, {"modules", "--calib"},
                 [&] { stored_analysis(model, path_, nullptr, options, ""); });
    options.parts = {AnalysisPart::weights};
    EXPECT_EQ(stored_analysis(model, path_, nullptr, options, "").size(), 1U);
}

}  // namespace
}  // namespace refold
