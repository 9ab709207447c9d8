// refold export.
#include <cstring>

#include "cli/refold.h"
#include "cli/tiny_model.h"
#include "io/gguf.h"
#include "io/safetensors.h"

namespace refold {
namespace {

using nlohmann::json;

TEST(Export, ComputesTheSameWithoutSharing) {
    const TempFolder folder;
    share(folder / "small.gguf");
    const json j =
        refold_json({"export", folder / "small.gguf", "--to", "gguf", "-o", folder / "dense.gguf"});
    EXPECT_EQ(j["parameters"], 176712);
    EXPECT_EQ(j["parameters_before"], 164424);
    EXPECT_FALSE(GgufFile::open(folder / "dense.gguf")->metadata().has("refold.topology"));
    std::vector<SafetensorsFile> files;
    for (const std::string name : {"small", "dense"}) {
        const Outcome outcome = refold({"logits", folder / (name + ".gguf"), "--tokens", "5,6,7", "--f32",
                                        "-o", folder / (name + ".st")});
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        files.push_back(read_safetensors(folder / (name + ".st")));
    }
    const auto a = files[0].tensors.at("logits").data, b = files[1].tensors.at("logits").data;
    ASSERT_EQ(a.size(), b.size());
    for (size_t at = 0; at < a.size(); at += 4) {
        float x = 0, y = 0;
        memcpy(&x, a.data() + at, 4);
        memcpy(&y, b.data() + at, 4);
        ASSERT_NEAR(x, y, 1e-4);
    }
}

}  // namespace
}  // namespace refold
