// Every recipe of recipes/ on the configuration of the models that it is for: planned without weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "compress/compress.h"
#include "core/error.h"
#include "core/temp_folder.h"
#include "model/paper_model.h"
#include "vocab/hf_vocab.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

struct Target {
    std::vector<const char*> words;  // all are in the recipe's file name
    std::vector<const char*> models;
    // Recipes that train what another one made, of so many loops.
    const char* loops = nullptr;
};

// The first row whose words the file name has. The last one is for recipes of any model.
const std::vector<Target> kTargets = {
    {{"llama2_7b"}, {"llama2-7b"}},
    {{"llama31_8b"}, {"llama31-8b"}},
    {{"mistral_7b"}, {"mistral-7b"}},
    {{"gemma2_9b"}, {"gemma2-9b"}},
    {{"gptj"}, {"gptj-6b"}},
    {{"roberta"}, {"roberta-base"}},
    {{"llama2"}, {"llama2-7b"}},
    {{"_of_40"}, {"llama2-13b"}},
    // Relaxed Recursive Transformers: three loops of Gemma 2B alone.
    {{"early_exit_", "_3"}, {"gemma-2b"}, "loops=3"},
    {{"early_exit_"}, {"gemma-2b", "tinyllama-1.1b", "pythia-1b"}, "loops=2"},
    {{"reduced_", "gemma"}, {"gemma-2b"}},
    {{"reduced_", "tinyllama"}, {"tinyllama-1.1b"}},
    {{"reduced_", "pythia"}, {"pythia-1b"}},
    {{"uptrain_"}, {"gemma-2b", "tinyllama-1.1b", "pythia-1b"}},
    {{"recursive_", "_3"}, {"gemma-2b"}},
    {{"relax_", "_3"}, {"gemma-2b"}},
    {{"recursive_"}, {"gemma-2b", "tinyllama-1.1b", "pythia-1b"}},
    {{"relax_"}, {"gemma-2b", "tinyllama-1.1b", "pythia-1b"}},
    {{}, {"llama2-7b"}},
};

const Target& target_of(const std::string& recipe) {
    return *std::find_if(kTargets.begin(), kTargets.end(), [&](const Target& target) {
        return std::all_of(target.words.begin(), target.words.end(),
                           [&](const char* word) { return recipe.find(word) != std::string::npos; });
    });
}

// Texts to train on are given with --data.
Recipe with_text(Recipe recipe) {
    for (RecipeStep& step : recipe.steps) {
        std::vector<GivenOption> given;
        for (const auto& [name, value] : step.options.entries()) {
            const bool layerwise =
                step.method->calibrated != nullptr && step.method->calibrated(step.options);
            given.push_back({name, name == "data" && value.empty() && !layerwise ? "text.txt" : value, ""});
        }
        step.options = Options(*step.method, given);
    }
    return recipe;
}

std::vector<std::string> recipe_names() {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(REFOLD_FIXTURES "/../../recipes"))
        names.insert(entry.path().stem().string());
    return {names.begin(), names.end()};
}

std::vector<uint64_t> numbers_of(const Cost& c) {
    return {c.parameters, c.bytes, c.kv_bytes_per_token, c.flops_per_token,
            c.attention_flops_per_context_token};
}

void check(const Model& model, const Recipe& recipe) {
    const Compression planned = plan(model, recipe);
    ASSERT_EQ(planned.steps.size(), recipe.steps.size());
    for (const StepResult& step : planned.steps) {
        for (const uint64_t number : numbers_of(step.cost)) EXPECT_GT(number, 0U) << step.method->name;
    }
    // A setting that does not fit its model could do nothing.
    const bool only_trained = std::all_of(recipe.steps.begin(), recipe.steps.end(), [](const auto& step) {
        return std::string(step.method->name) == "train";
    });
    EXPECT_EQ(numbers_of(planned.before) == numbers_of(planned.after()), only_trained);
}

TEST(EveryRecipe, IsPlannedOnItsModels) {
    for (const std::string& name : recipe_names()) {
        const Recipe recipe =
            with_text(read_recipe(fmt::format("{}/../../recipes/{}.yaml", REFOLD_FIXTURES, name)));
        const Target& target = target_of(name);
        for (const char* original : target.models) {
            Model model = paper_model(original);
            // For trim_vocab; padded to the model's size.
            if (recipe.steps.back().method->last)
                read_hf_vocabulary(REFOLD_FIXTURES "/tokenizers/bpe_gpt2", model.config.n_vocab,
                                   model.metadata);
            SCOPED_TRACE(name + " " + model.family->name);
            if (target.loops != nullptr)
                model = plan(model, recipe_from_method("recursive", std::vector<std::string>{target.loops}))
                            .model;
            EXPECT_NO_THROW(check(model, recipe));
        }
    }
}

// Relaxed Recursive Transformers, appendix G: 200 warm-up steps for 15 billion tokens, 800 for 60 billion, in
// batches of about two million tokens.
TEST(EveryRecipe, LengthsOfRecursiveTransformers) {
    size_t lengths = 0;
    for (const std::string& name : recipe_names()) {
        const Recipe recipe = read_recipe(fmt::format("{}/../../recipes/{}.yaml", REFOLD_FIXTURES, name));
        for (const RecipeStep& step : recipe.steps) {
            if (std::string(step.method->name) != "train" || step.options.integer("tokens") < 15'000'000'000)
                continue;
            const Model looped =
                plan(paper_model("gemma-2b"), recipe_from_method("recursive", std::vector<std::string>{}))
                    .model;
            Recipe training = with_text(recipe);
            training.steps = {training.steps.back()};
            if (step.options.text("train") == "exit")
                training.steps.insert(training.steps.begin(), with_text(recipe).steps.front());
            const auto details = nlohmann::json::parse(plan(looped, training).steps.back().report.details);
            const bool short_run = step.options.integer("tokens") == 15'000'000'000;
            EXPECT_EQ(details["warmup"], short_run ? 200 : 800) << name;
            EXPECT_EQ(details["steps"], short_run ? 7153 : 28611) << name;
            EXPECT_EQ(details["batch_tokens"], 2'097'152) << name;
            ++lengths;
        }
    }
    EXPECT_GE(lengths, 22U);
}

// A row that no recipe has would name a model that nothing is planned on.
TEST(EveryRecipe, EveryTargetIsUsed) {
    std::set<const Target*> used;
    for (const std::string& name : recipe_names()) used.insert(&target_of(name));
    for (const Target& target : kTargets)
        EXPECT_TRUE(used.contains(&target)) << (target.words.empty() ? "" : target.words.front());
}

}  // namespace
}  // namespace refold
