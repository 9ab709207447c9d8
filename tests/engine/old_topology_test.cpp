// A file of topology version 1, which an earlier refold wrote together with its logits:
// tests/fixtures/README.md.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "core/temp_folder.h"
#include "engine/compare.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

const std::string kFolder = std::string(REFOLD_FIXTURES) + "/topology_v1/";
const std::vector<int32_t> kTokens = {1, 5, 9, 30, 2, 17, 8, 8, 3, 11};

nlohmann::json stored_topology(const std::string& path) {
    return nlohmann::json::parse(GgufFile::open(path)->metadata().string("refold.topology"));
}

std::vector<float> logits_of_earlier_refold() {
    const SafetensorsFile file = read_safetensors(kFolder + "logits.safetensors");
    const auto bytes = file.tensors.at("logits").data;
    std::vector<float> values(bytes.size() / sizeof(float));
    memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

TEST(OldTopology, RunsAsItDid) {
    ASSERT_EQ(stored_topology(kFolder + "model.gguf")["version"], 1);
    const Model model = load_model(kFolder + "model.gguf");
    EXPECT_EQ(model.topology.layers.size(), 3U);
    EXPECT_EQ(model.topology.at(2, Slot::attn_q),
              Expression(Heads{{{"blk.2.attn_q.weight", 0, 2}, {"blk.0.attn_q.weight", 2, 2}}}));
    // Sums of float32 differ a little from one kind of CPU to another.
    EXPECT_LE(largest_difference(all_logits(model, kTokens, {.threads = 1, .f32 = true}),
                                 logits_of_earlier_refold()),
              1e-5);
}

TEST(OldTopology, IsSavedAsTheNewVersion) {
    const Model model = load_model(kFolder + "model.gguf");
    const TempFolder folder;
    save_model(model, folder / "new.gguf", false);
    const nlohmann::json topology = stored_topology(folder / "new.gguf");
    EXPECT_EQ(topology["version"], 2);
    EXPECT_EQ(topology["layers"], stored_topology(kFolder + "model.gguf")["positions"]);
    EXPECT_FALSE(topology.contains("positions"));
    const Model again = load_model(folder / "new.gguf");
    EXPECT_EQ(again.topology, model.topology);
    const EngineOptions options{.threads = 1, .f32 = true};
    EXPECT_EQ(all_logits(again, kTokens, options), all_logits(model, kTokens, options));
}

}  // namespace
}  // namespace refold
