// The papers' tables of sizes, from config.json alone: dry runs of the methods on models without weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "compress/compress.h"
#include "compress/recipe.h"
#include "core/error.h"
#include "model/accounting.h"
#include "model/paper_model.h"

namespace refold {
namespace {

Model planned(const Model& model, const std::string& method, const std::vector<std::string>& settings) {
    return plan(model, recipe_from_method(method, settings)).model;
}

uint64_t parameters_of(const Model& model) { return account(model).model.parameters; }

double part(const Model& model, const Model& original) {
    return 100.0 * static_cast<double>(parameters_of(model)) / static_cast<double>(parameters_of(original));
}

// "Head-wise Shareable Attention for Large Language Models", Table 3: Llama-2-7B 90.36 % with 30 % of the
// heads shared, 70.33 % with 30 % of the FFNs, too; Llama-2-13B 90.32 % and 70.74 %.
TEST(PaperSizes, HeadSharingOfLlama2) {
    const Model small = paper_model("llama2-7b"), large = paper_model("llama2-13b");
    const Model small_heads = planned(small, "direct_share", {"ratio=0.3"}),
                large_heads = planned(large, "direct_share", {"ratio=0.3"});
    EXPECT_NEAR(part(small_heads, small), 90.36, 0.1);
    EXPECT_NEAR(part(large_heads, large), 90.32, 0.1);
    // 307 of 1024 heads of 4 x 128 x 4096.
    EXPECT_EQ(parameters_of(small_heads), 6'738'415'616U - 307U * 4 * 128 * 4096);
    // 30 % of 32 FFNs are 9.6: the paper's figure is for 10.
    EXPECT_NEAR(part(planned(small_heads, "ffn_share", {"ratio=0.3125"}), small), 70.33, 0.1);
    EXPECT_NEAR(part(planned(large_heads, "ffn_share", {"ratio=0.3"}), large), 70.74, 0.1);
}

// Section 5.1: the baselines are compared "when the same number of parameters is reduced". Whole layers come
// as near as 13 heads of 1024, or 6 for 10 %.
TEST(PaperSizes, BaselinesOfHeadSharing) {
    const Model model = paper_model("llama2-7b");
    constexpr uint64_t kHead = 4 * 128 * 4096;
    for (const auto& [ratio, layers] : {std::pair(0.1, 3U), std::pair(0.3, 10U)}) {
        const std::string setting = fmt::format("ratio={}", ratio);
        const uint64_t shared = parameters_of(planned(model, "direct_share", {setting}));
        EXPECT_EQ(parameters_of(planned(model, "prune_magnitude", {setting})), shared);
        EXPECT_EQ(parameters_of(planned(model, "llm_pruner", {setting, "what=heads", "rank=even"})), shared);
        EXPECT_EQ(parameters_of(planned(model, "seq", {setting})),
                  parameters_of(model) - layers * 32 * kHead);
        const std::string recipes = std::string(REFOLD_FIXTURES) + "/../../recipes/";
        for (const char* name : {"llm_pruner", "prune_magnitude"}) {
            const auto recipe = read_recipe(recipes + fmt::format("{}_{:.0f}.yaml", name, 100 * ratio));
            EXPECT_EQ(parameters_of(plan(model, recipe).model), shared) << name;
        }
        const auto seq = read_recipe(recipes + fmt::format("seq_{:.0f}.yaml", 100 * ratio));
        EXPECT_EQ(parameters_of(plan(model, seq).model), parameters_of(model) - layers * 32 * kHead);
    }
}

TEST(PaperSizes, AttentionAloneLeavesTheRest) {
    const Model model = paper_model("llama2-7b");
    const Model out = planned(model, "direct_share", {"ratio=0.3", "share=qkv"});
    EXPECT_EQ(parameters_of(out), 6'738'415'616U - 307U * 3 * 128 * 4096);
}

// Without embedding and output, as the paper counts: billions.
double non_embedding(const Model& model) {
    uint64_t parameters = parameters_of(model);
    for (const char* name : {"token_embd.weight", "output.weight"}) {
        const auto found = model.tensors.find(name);
        if (found != model.tensors.end()) parameters -= static_cast<uint64_t>(found->second.elements());
    }
    return static_cast<double>(parameters) / 1e9;
}

// The paper prints two decimals, mostly truncated, sometimes rounded.
constexpr double kPrinted = 0.0075;

// "Relaxed Recursive Transformers", Tables 2, 3 and 5.
TEST(PaperSizes, RecursiveModels) {
    const Model gemma = paper_model("gemma-2b"), llama = paper_model("tinyllama-1.1b"),
                pythia = paper_model("pythia-1b");
    EXPECT_NEAR(non_embedding(gemma), 1.98, kPrinted);
    EXPECT_NEAR(non_embedding(llama), 0.97, kPrinted);
    EXPECT_NEAR(non_embedding(pythia), 0.81, kPrinted);
    EXPECT_NEAR(non_embedding(planned(gemma, "recursive", {"loops=2"})), 0.99, kPrinted);
    EXPECT_NEAR(non_embedding(planned(gemma, "recursive", {"loops=3"})), 0.66, kPrinted);
    EXPECT_NEAR(non_embedding(planned(llama, "recursive", {"loops=2"})), 0.48, kPrinted);
    EXPECT_NEAR(non_embedding(planned(pythia, "recursive", {"loops=2"})), 0.40, kPrinted);
    // Half of the layers' 110,104,576 each; the norms of a layer are in the block.
    EXPECT_EQ(parameters_of(planned(gemma, "recursive", {"loops=2"})),
              parameters_of(gemma) - 9U * 110'104'576);
}

// Tables 5 and 10: reduced-size models, as the recipes reduced_* make them.
TEST(PaperSizes, ReducedModels) {
    for (const auto& [name, original, size] : {std::tuple{"2_gemma", "gemma-2b", 0.99},
                                               {"3_gemma", "gemma-2b", 0.66},
                                               {"2_tinyllama", "tinyllama-1.1b", 0.48},
                                               {"2_pythia", "pythia-1b", 0.40}}) {
        Recipe recipe = read_recipe(fmt::format("{}/../../recipes/reduced_{}.yaml", REFOLD_FIXTURES, name));
        recipe.steps.pop_back();  // training, which needs a text
        EXPECT_NEAR(non_embedding(plan(paper_model(original), recipe).model), size, kPrinted) << name;
    }
}

struct RelaxedSize {
    const char* original;
    int loops;
    std::vector<std::pair<int, double>> sizes;  // by rank
};

// Ranks are limited by the matrix: K and V of Gemma and TinyLlama have 256 rows.
TEST(PaperSizes, RelaxedModels) {
    for (const auto& [original, loops, sizes] :
         {RelaxedSize{"gemma-2b", 2, {{64, 1.07}, {128, 1.15}, {256, 1.30}, {512, 1.60}}},
          RelaxedSize{"gemma-2b", 3, {{64, 0.74}, {128, 0.82}, {256, 0.97}, {512, 1.27}}},
          RelaxedSize{"tinyllama-1.1b", 2, {{64, 0.53}, {128, 0.58}, {256, 0.68}, {512, 0.86}}},
          RelaxedSize{"pythia-1b", 2, {{64, 0.44}, {128, 0.48}, {256, 0.55}, {512, 0.70}}}}) {
        const Model model = paper_model(original);
        for (const auto& [rank, size] : sizes) {
            const Model out =
                planned(model, "relax", {fmt::format("loops={}", loops), fmt::format("rank={}", rank)});
            EXPECT_NEAR(non_embedding(out), size, kPrinted)
                << model.family->name << " " << loops << " " << rank;
        }
    }
}

// Gemma 2B, two loops: ranks of Q, K and V, output and FFN.
TEST(PaperSizes, RelaxedModelsWithRanksByModule) {
    const Model model = paper_model("gemma-2b");
    const std::vector<std::pair<const char*, double>> rows = {
        {"128,256,128,256", 1.28}, {"256,128,256,256", 1.29}, {"256,256,256,128", 1.18},
        {"128,128,128,256", 1.27}, {"64,128,64,128", 1.14},   {"128,64,128,128", 1.14},
        {"128,128,128,64", 1.08},  {"64,64,64,128", 1.13}};
    for (const auto& [ranks, size] : rows) {
        const Model out = planned(model, "relax", {"loops=2", std::string("ranks=") + ranks});
        EXPECT_NEAR(non_embedding(out), size, kPrinted) << ranks;
    }
}

// Table 8: the sizes of prefixes in millions, vectors of the model's width in every layer, and of the whole.
TEST(PaperSizes, PrefixesOfRecursiveModels) {
    struct Row {
        int length;
        const char* size;
        double whole;
    };
    const std::vector<std::pair<const char*, std::vector<Row>>> tables = {
        {"gemma-2b", {{256, "9.4", 1.00}, {512, "18.9", 1.01}, {1024, "37.7", 1.03}, {2048, "75.5", 1.07}}},
        {"tinyllama-1.1b",
         {{256, "11.5", 0.49}, {512, "23.1", 0.50}, {1024, "46.1", 0.53}, {2048, "92.3", 0.57}}}};
    for (const auto& [original, rows] : tables) {
        const Model looped = planned(paper_model(original), "recursive", {"loops=2"});
        for (const Row& row : rows) {
            const Model out = planned(looped, "prefix", {fmt::format("length={}", row.length)});
            const uint64_t size = parameters_of(out) - parameters_of(looped);
            EXPECT_EQ(fmt::format("{:.1f}", static_cast<double>(size) / 1e6), row.size);
            EXPECT_NEAR(non_embedding(out), row.whole, 0.01) << row.length;
        }
    }
    // Keys and values themselves: 256 x 2 x 256 numbers in each of 18 layers.
    const Model looped = planned(paper_model("gemma-2b"), "recursive", {"loops=2"});
    EXPECT_EQ(parameters_of(planned(looped, "prefix", {"length=256", "form=kv"})) - parameters_of(looped),
              2'359'296U);
}

struct Attention {
    const char* original;
    const char* ranks;
    double ratio;
};

const std::vector<Attention> kTableII = {
    {"roberta-base", "720,60,3", 1.12}, {"roberta-base", "340,30,3", 3.74},
    {"roberta-base", "120,60,2", 8.78}, {"roberta-base", "540,20,4", 2.52},
    {"gptj-6b", "40,70,2", 247.30},     {"gptj-6b", "540,90,3", 14.69},
    {"gptj-6b", "128,86,2", 74.68},     {"llama2-7b", "2850,40,2", 3.54},
    {"llama2-7b", "1100,50,4", 5.81}};

// Elements of a layer's attention matrices divided by the elements stored for them.
double compression(const Model& model, const Model& original, size_t layer) {
    std::set<std::string> before, after;
    for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o}) {
        for (const auto& name : tensors_of(original.topology.at(layer, slot))) before.insert(name);
        for (const auto& name : tensors_of(model.topology.at(layer, slot))) after.insert(name);
    }
    const auto elements = [](const Model& m, const std::set<std::string>& names) {
        int64_t sum = 0;
        for (const auto& name : names) sum += m.tensor(name).elements();
        return static_cast<double>(sum);
    };
    return elements(original, before) / elements(model, after);
}

// "TensorLLM", Table II: compression of a layer's attention. The paper does not print its ranks; these ranks
// have its ratios.
TEST(PaperSizes, TuckerOfAttention) {
    for (const Attention& row : kTableII) {
        const Model model = paper_model(row.original);
        const Model out = planned(model, "tensorllm", {"layers=3", std::string("ranks=") + row.ranks});
        EXPECT_NEAR(compression(out, model, 3), row.ratio, 0.006) << model.family->name << " " << row.ranks;
        EXPECT_EQ(compression(out, model, 2), 1.0);
    }
}

// The last row worked out by hand: a core of 1 x 1 x 1 per head.
TEST(PaperSizes, SmallestTuckerOfGptJ) {
    const Model model = paper_model("gptj-6b");
    const Model out = planned(model, "tensorllm", {"layers=0", "ranks=1,1,1"});
    EXPECT_EQ(parameters_of(out), 6'050'882'784U - 4U * 4096 * 4096 + 16 + 4096 + 256 + 4);
}

}  // namespace
}  // namespace refold
