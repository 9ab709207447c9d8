// MobileLLM's layer sharing: every stored layer runs twice in succession.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/temp_folder.h"
#include "core/text.h"
#include "engine/compare.h"
#include "io/safetensors.h"
#include "model/hf/export.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

const std::string kMobileLlm = std::string(REFOLD_FIXTURES) + "/mobilellm";

std::vector<float> floats(const SafetensorsFile& file, const std::string& name) {
    const auto data = file.tensors.at(name).data;
    std::vector<float> out(data.size() / sizeof(float));
    memcpy(out.data(), data.data(), data.size());
    return out;
}

std::vector<int32_t> ids(const SafetensorsFile& file, const std::string& name) {
    const auto data = file.tensors.at(name).data;
    std::vector<int64_t> wide(data.size() / sizeof(int64_t));
    memcpy(wide.data(), data.data(), data.size());
    return {wide.begin(), wide.end()};
}

TEST(MobileLlm, ComputesWhatLayersOfEqualWeightsDo) {
    const SafetensorsFile golden = read_safetensors(kMobileLlm + "/golden.safetensors");
    const Model model = load_model(kMobileLlm);
    ASSERT_EQ(model.topology.layers.size(), 4U);
    EXPECT_EQ(model.topology.layers[2], model.topology.layers[3]);
    EXPECT_NE(model.topology.layers[1], model.topology.layers[2]);
    const TempFolder folder;
    save_model(model, folder / "model.gguf", false);
    const Model loaded = load_model(folder / "model.gguf");
    EXPECT_EQ(loaded.topology, model.topology);
    for (const EngineKind kind : {EngineKind::ggml, EngineKind::torch}) {
        if (kind == EngineKind::torch && !has_torch_engine()) continue;
        for (const char* row : {"0", "2", "4"}) {
            const auto tokens = ids(golden, std::string("input_ids.") + row);
            const auto expected = floats(golden, std::string("logits.") + row);
            const EngineOptions options{.kind = kind, .threads = 1, .f32 = true};
            EXPECT_LE(largest_difference(all_logits(loaded, tokens, options), expected), 1e-4) << row;
        }
    }
}

TEST(MobileLlm, IsWrittenAsItWasRead) {
    const TempFolder folder;
    save_model(load_model(kMobileLlm), folder / "model.gguf", false);
    save_hf_model(load_model(folder / "model.gguf"), folder / "hf", {});
    EXPECT_EQ(nlohmann::json::parse(read_text_file(folder / "hf/config.json")),
              nlohmann::json::parse(read_text_file(kMobileLlm + "/config.json")));
    const SafetensorsFile before = read_safetensors(kMobileLlm + "/model.safetensors"),
                          after = read_safetensors(folder / "hf/model.safetensors");
    ASSERT_EQ(after.tensors.size(), before.tensors.size());
    for (const auto& [name, view] : before.tensors)
        EXPECT_TRUE(std::ranges::equal(after.tensors.at(name).data, view.data)) << name;
}

// Where the two runs of a layer differ, all of them are written.
TEST(MobileLlm, LayersThatDifferAreWrittenOut) {
    Model model = load_model(kMobileLlm);
    model.topology.layers[3][Slot::attn_q] = model.topology.layers[0].at(Slot::attn_q);
    const TempFolder folder;
    save_hf_model(model, folder / "hf", {});
    const auto config = nlohmann::json::parse(read_text_file(folder / "hf/config.json"));
    EXPECT_EQ(config["layer_sharing"], false);
    EXPECT_EQ(config["num_hidden_layers"], 4);
    const auto tokens = random_tokens(20, model.config.n_vocab, 1);
    const EngineOptions options{.threads = 1, .f32 = true};
    EXPECT_LE(largest_difference(all_logits(load_model(folder / "hf"), tokens, options),
                                 all_logits(model, tokens, options)),
              1e-5);
}

}  // namespace
}  // namespace refold
