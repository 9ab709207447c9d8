// Layers that recipes name: where the papers say that they are. Papers count from 1 or from 0, recipes from
// 0.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "compress/method/selection.h"
#include "compress/recipe.h"

namespace refold {
namespace {

struct NamedLayers {
    const char* recipes;  // how their names begin
    const char* method;   // of the step
    enum { anywhere, top_half, last } part;
    size_t count;  // of layers in the list; 0: any
};

const std::vector<NamedLayers> kNamedLayers = {
    // UniAttn, section 4.1: "apply UniAttn in the top half of layers"; section 4.2 says the same of the
    // baselines. Numbers of layers: Tables 6 to 8.
    {"uniattn_", "uniattn", NamedLayers::top_half, 0},
    {"cla_", "cla", NamedLayers::top_half, 0},
    {"llmdrop_half_gemma2_9b", "drop", NamedLayers::top_half, 8},
    {"llmdrop_full_gemma2_9b", "drop", NamedLayers::top_half, 15},
    {"llmdrop_half_", "drop", NamedLayers::top_half, 6},
    {"llmdrop_train_half_", "drop", NamedLayers::top_half, 6},
    {"llmdrop_full_", "drop", NamedLayers::top_half, 12},
    // TensorLLM names no layers, only that there is one: the last stands for it.
    {"tensorllm_", "tensorllm", NamedLayers::last, 1},
    {"hybrid_", "tensorllm", NamedLayers::last, 1},
    {"hybrid_", "laser", NamedLayers::anywhere, 1},
    {"trawl_", "trawl", NamedLayers::last, 1},
    {"repeat_64_of_40", "repeat", NamedLayers::anywhere, 64},
    // Relaxed Recursive Transformers: a model of half or a third of the size, with random weights.
    {"reduced_", "repeat", NamedLayers::anywhere, 0},
};

// By a part of the recipe's name.
const std::vector<std::pair<const char*, size_t>> kModelLayers = {
    {"gemma2_9b", 42}, {"llama2", 32},     {"llama31_8b", 32}, {"mistral_7b", 32},
    {"gptj", 28},      {"roberta", 12},    {"_of_40", 40},     {"trawl_", 32},
    {"_gemma", 18},    {"_tinyllama", 22}, {"_pythia", 16}};

// Ranges as they stand, overlapping ones too.
std::vector<size_t> listed(const std::string& list, size_t layers) {
    std::vector<size_t> out;
    for (size_t at = 0; at <= list.size();) {
        const size_t comma = std::min(list.find(',', at), list.size());
        for (const size_t layer : parse_layers(list.substr(at, comma - at), layers)) out.push_back(layer);
        at = comma + 1;
    }
    return out;
}

void expect_named_layers(const std::string& name, const RecipeStep& step, const std::string& list) {
    const auto rule = std::find_if(kNamedLayers.begin(), kNamedLayers.end(), [&](const NamedLayers& row) {
        return name.starts_with(row.recipes) && std::string(step.method->name) == row.method;
    });
    const auto model = std::find_if(kModelLayers.begin(), kModelLayers.end(), [&](const auto& row) {
        return name.find(row.first) != std::string::npos;
    });
    ASSERT_NE(rule, kNamedLayers.end()) << "no row says where the layers are: " << list;
    ASSERT_NE(model, kModelLayers.end()) << "no row says how many layers the model has";
    const size_t first = rule->part == NamedLayers::top_half ? model->second / 2
                         : rule->part == NamedLayers::last   ? model->second - 1
                                                             : 0;
    const std::vector<size_t> layers = listed(list, model->second);  // refuses layers that there are not
    EXPECT_GE(*std::min_element(layers.begin(), layers.end()), first) << list;
    if (rule->count > 0) {
        EXPECT_EQ(layers.size(), rule->count) << list;
    }
}

TEST(PublishedSettings, LayersAreWhereThePapersSay) {
    size_t lists = 0;
    for (const auto& entry : std::filesystem::directory_iterator(REFOLD_FIXTURES "/../../recipes")) {
        const std::string name = entry.path().stem().string();
        for (const RecipeStep& step : read_recipe(entry.path().string()).steps) {
            for (const auto& [option, value] : step.options.entries()) {
                // Lists of layers; without numbers it is a word, such as "all".
                if (option != "layers" && option != "superblocks") continue;
                if (value.find_first_of("0123456789") == std::string::npos) continue;
                SCOPED_TRACE(name + ": " + step.method->name);
                expect_named_layers(name, step, value);
                ++lists;
            }
        }
    }
    EXPECT_GE(lists, 60U);
}

// Table 8's lists, whose numbering the recipes had to choose: from 1 for models of 32 layers, of which Llama
// 2 and Mistral have a layer 32; from 0 for Gemma 2, which has a layer 21, the first of the top half.
TEST(PublishedSettings, DroppedLayersOfTable8) {
    const std::vector<std::tuple<const char*, std::vector<size_t>, size_t>> rows = {
        {"llmdrop_half_llama2_7b", {23, 20, 32, 27, 22, 24}, 1},
        {"llmdrop_half_llama31_8b", {19, 22, 20, 21, 27, 23}, 1},
        {"llmdrop_half_mistral_7b", {17, 32, 31, 21, 22, 24}, 1},
        {"llmdrop_half_gemma2_9b", {29, 26, 21, 30, 27, 40, 38, 31}, 0},
        {"llmdrop_full_llama2_7b", {23, 20, 32, 27, 22, 24, 31, 29, 25, 30, 28, 26}, 1},
        {"llmdrop_full_llama31_8b", {19, 22, 20, 21, 27, 23, 30, 29, 28, 26, 24, 25}, 1},
        {"llmdrop_full_mistral_7b", {17, 32, 31, 21, 22, 24, 29, 23, 28, 25, 27, 26}, 1},
        {"llmdrop_full_gemma2_9b", {29, 26, 21, 30, 27, 40, 38, 31, 32, 33, 35, 39, 36, 37, 34}, 0}};
    for (const auto& [name, table, from] : rows) {
        std::vector<size_t> expected = table;
        for (size_t& layer : expected) layer -= from;
        std::sort(expected.begin(), expected.end());
        const Recipe recipe = read_recipe(std::string(REFOLD_FIXTURES "/../../recipes/") + name + ".yaml");
        EXPECT_EQ(listed(recipe.steps[0].options.text("layers"), 42), expected) << name;
    }
}

}  // namespace
}  // namespace refold
