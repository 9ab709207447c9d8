// refold compress.
#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

TEST(Compress, WritesModelAndRecipe) {
    const TempFolder folder;
    const json j = refold_json({"compress", kModel, "-o", folder / "a.gguf", "--method", "direct_share",
                                "--set", "ratio=0.3", "--set", "chain=root"});
    expect_keys(j, {"before", "after", "steps", "output", "recipe_file", "dry_run", "file_bytes"});
    EXPECT_EQ(j["before"]["parameters"], 176712);
    EXPECT_EQ(j["after"]["parameters"], 164424);
    EXPECT_EQ(j["steps"][0]["method"], "direct_share");
    EXPECT_THAT(folder.files(), UnorderedElementsAre("a.gguf", "a.recipe.yaml"));

    // The written recipe, which names the model, gives the same file again.
    const Outcome again = refold({"compress", "--recipe", folder / "a.recipe.yaml", "-o", folder / "b.gguf"});
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_TRUE(read_all(folder / "a.gguf") == read_all(folder / "b.gguf"));
    EXPECT_THAT(again.err, HasSubstr("step 1: direct_share  ratio=0.3"));
    const std::string echo = read_all(folder / "a.recipe.yaml");
    EXPECT_EQ(
        refold({"compress", "--recipe", folder / "a.recipe.yaml", "-o", folder / "a.gguf", "--overwrite"})
            .code,
        0);
    EXPECT_EQ(read_all(folder / "a.recipe.yaml"), echo);
}

TEST(Compress, DryRunWritesNothing) {
    const TempFolder folder;
    const std::vector<std::string> words = {"compress", kModel,         "-o",       folder / "a.gguf",
                                            "--method", "direct_share", "--dry-run"};
    const Outcome text = refold(words);
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("parameters stored"));
    const json j = refold_json(words);
    EXPECT_EQ(j["dry_run"], true);
    EXPECT_EQ(j["output"], nullptr);
    EXPECT_THAT(folder.files(), IsEmpty());
}

}  // namespace
}  // namespace refold
