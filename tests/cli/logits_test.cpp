// refold logits, with both engines.
#include <cstring>

#include "cli/refold.h"
#include "cli/tiny_model.h"
#include "io/safetensors.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::UnorderedElementsAre;

TEST(Logits, EqualTheReference) {
    const TempFolder folder;
    const json golden = json::parse(read_all(kFixtures + "/llama_gqa/golden.json"));
    const SafetensorsFile reference = read_safetensors(kFixtures + "/llama_gqa/golden.safetensors");
    std::string ids;
    for (const int id : golden["rows"][0]) ids += (ids.empty() ? "" : ",") + std::to_string(id);
    const json j = refold_json({"logits", kModel, "--tokens", ids, "--f32", "-o", folder / "l.safetensors"});
    EXPECT_EQ(j["tokens"], golden["rows"][0].size());
    const SafetensorsFile file = read_safetensors(folder / "l.safetensors");
    const SafetensorsView& ours = file.tensors.at("logits");
    const SafetensorsView& theirs = reference.tensors.at("logits.0");
    ASSERT_EQ(ours.shape, theirs.shape);
    ASSERT_EQ(ours.dtype, "F32");
    for (size_t at = 0; at < ours.data.size(); at += 4) {
        float a = 0, b = 0;
        memcpy(&a, ours.data.data() + at, 4);
        memcpy(&b, theirs.data.data() + at, 4);
        ASSERT_NEAR(a, b, 1e-3) << at / 4;
    }
    expect_error(refold({"logits", kModel, "--tokens", "1", "-o", folder / "l.safetensors"}), 2,
                 {"exists", "--overwrite"});
    expect_error(refold({"logits", kModel, "--tokens", "1,448", "-o", folder / "t"}), 1, {"448"});
    EXPECT_THAT(folder.files(), UnorderedElementsAre("l.safetensors"));
}

#ifdef REFOLD_HAVE_TORCH
TEST(Engines, GiveTheSame) {
    const TempFolder folder;
    std::vector<float> logits[2];
    double perplexity[2] = {};
    write_all(folder / "text", "The two engines read the same text and agree on what is likely to follow.\n");
    for (const int torch : {0, 1}) {
        const char* engine = torch == 1 ? "torch" : "ggml";
        const std::string out = folder / engine;
        refold_json({"logits", kModel, "--tokens", "1,5,6,7", "--f32", "--engine", engine, "-o", out});
        const SafetensorsFile file = read_safetensors(out);
        const auto data = file.tensors.at("logits").data;
        logits[torch].resize(data.size() / sizeof(float));
        memcpy(logits[torch].data(), data.data(), data.size());
        const json j =
            refold_json({"eval", "ppl", kModel, "--text", folder / "text", "--f32", "--engine", engine});
        EXPECT_EQ(j["engine"], engine);
        perplexity[torch] = j["perplexity"];
    }
    EXPECT_THAT(logits[1], testing::Pointwise(testing::FloatNear(1e-4F), logits[0]));
    EXPECT_NEAR(perplexity[1], perplexity[0], 1e-3 * perplexity[0]);
}
#else
TEST(Engines, TorchIsNotInThisBuild) {
    const TempFolder folder;
    expect_error(refold({"logits", kModel, "--tokens", "1", "--engine", "torch", "-o", folder / "t"}), 1,
                 {"no torch engine", "libtorch-dev", "REFOLD_TRAIN"});
    EXPECT_TRUE(folder.files().empty());
}
#endif

}  // namespace
}  // namespace refold
