// refold inspect.
#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(Inspect, ShowsADenseModel) {
    const Outcome text = refold({"inspect", kModel, "--tensors"});
    ASSERT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("0-3  own"));
    EXPECT_THAT(text.out, HasSubstr("176,712"));
    EXPECT_THAT(text.out, HasSubstr("blk.3.ffn_down.weight"));
    const json j = refold_json({"inspect", kModel});
    expect_keys(j, {"path", "architecture", "file_bytes", "hyper_parameters", "shared", "accounting",
                    "topology", "tensor_types", "tensors", "provenance"});
    EXPECT_EQ(j["architecture"], "llama");
    EXPECT_EQ(j["shared"], false);
    EXPECT_EQ(j["provenance"], nullptr);
    EXPECT_EQ(j["accounting"]["model"], j["accounting"]["dense"]);
}

TEST(Inspect, ShowsSharing) {
    const TempFolder folder;
    share(folder / "small.gguf");
    EXPECT_THAT(refold({"inspect", folder / "small.gguf"}).out,
                HasSubstr("       3  attn.q,o 0-1<-0.2-3, 2-3<-0.0-1; attn.k,v 0<-0.1, 1<-0.0\n"));
    const json j = refold_json({"inspect", folder / "small.gguf"});
    EXPECT_EQ(j["shared"], true);
    EXPECT_EQ(j["accounting"]["model"]["parameters"], 164424);
    EXPECT_EQ(j["accounting"]["dense"]["parameters"], 176712);
    EXPECT_EQ(j["provenance"]["source"]["file"], "model.gguf");
    EXPECT_EQ(j["topology"]["version"], 2);
}

}  // namespace
}  // namespace refold
