// refold imatrix.
#include "cli/refold.h"
#include "cli/tiny_model.h"
#include "io/gguf.h"

namespace refold {
namespace {

using testing::IsEmpty;

const std::string kText = kFixtures + "/README.md";

TEST(Imatrix, IsWrittenForLlamaCpp) {
    const TempFolder folder;
    const auto j = refold_json({"imatrix", kModel, "--calib", kText, "--calib-tokens", "96",
                                "--sequence-length", "16", "--threads", "1", "-o", folder / "m.gguf"});
    EXPECT_EQ(j["chunks"], 6);
    EXPECT_EQ(j["chunk_size"], 16);
    EXPECT_EQ(j["datasets"], nlohmann::json({"README.md"}));
    const auto file = GgufFile::open(folder / "m.gguf");
    EXPECT_EQ(file->metadata().string("general.type"), "imatrix");
    EXPECT_EQ(file->tensors().size(), 2 * j["tensors"].get<size_t>());
    EXPECT_EQ(file->tensors()[0].name, "blk.0.attn_k.weight.in_sum2");
    expect_error(refold({"imatrix", kModel, "--calib", kText, "-o", folder / "m.gguf"}), 2,
                 {"exists", "--overwrite"});
}

TEST(Imatrix, NeedsAText) {
    const TempFolder folder;
    EXPECT_EQ(refold({"imatrix", kModel, "-o", folder / "m.gguf"}).code, 2);
    EXPECT_THAT(folder.files(), IsEmpty());
}

}  // namespace
}  // namespace refold
