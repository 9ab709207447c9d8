// DirectShare on every architecture: the shared model computes what its materialised form does, and survives
// a file.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "compress/compress.h"
#include "core/temp_folder.h"
#include "engine/compare.h"

namespace refold {
namespace {

std::vector<std::string> all_models() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(std::string(REFOLD_FIXTURES) + "/hf"))
        names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

// Logits, or hidden states of an encoder without a head.
std::vector<float> outputs(const Model& model, std::span<const int32_t> tokens) {
    const EngineOptions options{.threads = 2, .context = 64, .f32 = true};
    if (model.config.causal) return all_logits(model, tokens, options);
    const Encoding encoding = Engine(model, options).encode({tokens, {}, {}});
    return encoding.logits.empty() ? encoding.last_hidden_state : encoding.logits;
}

class SharedFamilies : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, SharedFamilies, testing::ValuesIn(all_models()),
                         [](const auto& test) { return test.param; });

TEST_P(SharedFamilies, RunAsShared) {
    const Model dense = load_model(std::string(REFOLD_FIXTURES) + "/hf/" + GetParam());
    const Compression result =
        plan(dense, recipe_from_method("direct_share", std::vector<std::string>{"ratio=0.34"}));
    ASSERT_TRUE(result.model.has_sharing());
    EXPECT_LT(result.after().parameters, result.before.parameters);
    const auto tokens = random_tokens(40, dense.config.n_vocab, 3);
    const auto expected = outputs(without_sharing(result.model), tokens);
    EXPECT_GT(largest_difference(outputs(dense, tokens), expected), 1e-3);  // something was shared
    EXPECT_LE(largest_difference(outputs(result.model, tokens), expected), 1e-5);

    const TempFolder folder;
    save_model(result.model, folder / "shared.gguf", false);
    const Model loaded = load_model(folder / "shared.gguf");
    EXPECT_EQ(loaded.topology, result.model.topology);
    EXPECT_EQ(account(loaded).model.parameters, result.after().parameters);
    EXPECT_LE(largest_difference(outputs(loaded, tokens), expected), 1e-5);
}

}  // namespace
}  // namespace refold
