// Methods on every architecture: the smaller model computes the same as its materialized form, and so does
// its file.
#include <gtest/gtest.h>

#include "compress/compress.h"
#include "compress/fixtures.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "model/load.h"
#include "model/save.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

// Logits, or hidden states of an encoder without a head.
std::vector<float> outputs(const Model& model, std::span<const int32_t> tokens) {
    const EngineOptions options{.threads = 1, .context = 64, .f32 = true};
    if (model.config.causal) return all_logits(model, tokens, options);
    const Encoding encoding = SingleSequence(model, options).encode({tokens, {}, {}});
    return encoding.logits.empty() ? encoding.last_hidden_state : encoding.logits;
}

struct Setting {
    std::string name, method;
    std::vector<std::string> options;
    friend void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }
};

const std::vector<Setting> kSettings = {
    {"direct_share", "direct_share", {"ratio=0.34"}},
    {"latter", "direct_share", {"ratio=0.34", "keep=latter"}},
    {"separate", "direct_share", {"ratio=0.34", "match=separate"}},
    {"none", "direct_share", {"ratio=0.34", "match=none"}},
    {"ffn_share", "ffn_share", {"ratio=0.5"}},
    {"gqa", "gqa", {"group=2"}},
    {"seq", "seq", {"part=1", "share=layer"}},
    {"prune_magnitude", "prune_magnitude", {"ratio=0.34", "what=both", "multiple=8"}},
    {"drop_attention", "drop", {"layers=1"}},
    {"drop_ffn", "drop", {"layers=0", "modules=ffn"}},
    {"drop_block", "drop", {"layers=1", "modules=block"}},
};

// A model of one key/value head cannot lose half of them.
bool fits(const Model& model, const Setting& setting) {
    const bool of_ffns =
        setting.name == "ffn_share" || setting.name == "seq" || setting.name == "prune_magnitude";
    if (has_experts(model) && of_ffns) return false;
    return setting.name != "gqa" || model.config.n_head_kv % 2 == 0;
}

class SharedFamilies : public testing::TestWithParam<std::tuple<std::string, Setting>> {};
INSTANTIATE_TEST_SUITE_P(Families, SharedFamilies,
                         testing::Combine(testing::ValuesIn(unshared_fixtures()),
                                          testing::ValuesIn(kSettings)),
                         [](const auto& test) {
                             return std::get<0>(test.param) + "_" + std::get<1>(test.param).name;
                         });

TEST_P(SharedFamilies, RunAsShared) {
    const auto& [name, setting] = GetParam();
    const Model dense = load_model(std::string(REFOLD_FIXTURES) + "/hf/" + name);
    if (!fits(dense, setting)) GTEST_SKIP();
    const Compression result = plan(dense, recipe_from_method(setting.method, setting.options));
    EXPECT_EQ(result.model.has_sharing(), setting.name != "gqa");
    EXPECT_LT(result.after().parameters, result.before.parameters);
    const auto tokens = random_tokens(40, dense.config.n_vocab, 3);
    const auto expected = outputs(without_sharing(result.model), tokens);
    EXPECT_GT(largest_difference(outputs(dense, tokens), expected), 1e-3);  // something was changed
    // A norm over all heads divides by other sums, with the same epsilon, when the others are filled up with
    // zeros.
    const bool of_all = dense.topology.has(0, Slot::attn_q_norm_all) && !dense.config.norm_by_head;
    const double tolerance =
        of_all && (setting.method == "prune_magnitude" || setting.name == "none") ? 1e-3 : 1e-5;
    EXPECT_LE(largest_difference(outputs(result.model, tokens), expected), tolerance);

    const TempFolder folder;
    save_model(result.model, folder / "shared.gguf", false);
    const Model loaded = load_model(folder / "shared.gguf");
    EXPECT_EQ(loaded.topology, result.model.topology);
    EXPECT_EQ(account(loaded).model.parameters, result.after().parameters);
    EXPECT_LE(largest_difference(outputs(loaded, tokens), expected), tolerance);
}

}  // namespace
}  // namespace refold
