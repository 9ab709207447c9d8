// Files that belong to an output which is not there: a run was killed between the two, or its disk was full.
#include <filesystem>

#include "cli/refold.h"
#include "cli/tiny_model.h"

namespace refold {
namespace {

namespace fs = std::filesystem;
using testing::UnorderedElementsAre;

class LoneFile : public testing::Test {
protected:
    std::vector<std::string> compress(const std::string& ratio, std::vector<std::string> more = {}) const {
        more.insert(more.begin(),
                    {"compress", kModel, "--method", "direct_share", "--set", "ratio=" + ratio, "-o", out_});
        return more;
    }
    // With room for files of this size only.
    static Outcome with_room(int kilobytes, std::vector<std::string> words) {
        words.insert(
            words.begin(),
            {"sh", "-c", "ulimit -f " + std::to_string(kilobytes) + "; exec \"$0\" \"$@\"", REFOLD_BINARY});
        return Process(std::move(words)).wait();
    }

    TempFolder folder_;
    std::string out_ = folder_ / "out.gguf", recipe_ = folder_ / "out.recipe.yaml";
};

TEST_F(LoneFile, ARecipeIsNoObstacleForTheRunThatWroteIt) {
    ASSERT_EQ(refold(compress("0.3")).code, 0);
    const std::string model = read_all(out_), recipe = read_all(recipe_);
    fs::remove(out_);
    expect_error(refold(compress("0.4")), 2,
                 {"out.recipe.yaml' exists and is another recipe", "--overwrite"});
    EXPECT_EQ(read_all(recipe_), recipe);
    EXPECT_FALSE(fs::exists(out_));
    const Outcome again = refold(compress("0.3"));
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_TRUE(read_all(out_) == model);
    EXPECT_EQ(read_all(recipe_), recipe);
    EXPECT_THAT(folder_.files(), UnorderedElementsAre("out.gguf", "out.recipe.yaml"));
}

TEST_F(LoneFile, NoRecipeStaysWhereTheModelCannotBeWritten) {
    expect_error(with_room(8, compress("0.3")), 1, {"cannot write '" + out_ + "'"});
    EXPECT_FALSE(fs::exists(out_));
    EXPECT_FALSE(fs::exists(recipe_));
    // What was there before stays, and belongs together.
    ASSERT_EQ(refold(compress("0.3")).code, 0);
    const std::string model = read_all(out_), recipe = read_all(recipe_);
    expect_error(with_room(8, compress("0.4", {"--overwrite"})), 1, {"cannot write '" + out_ + "'"});
    EXPECT_TRUE(read_all(out_) == model);
    EXPECT_EQ(read_all(recipe_), recipe);
    ASSERT_EQ(refold(compress("0.4", {"--overwrite"})).code, 0);
    EXPECT_NE(read_all(recipe_), recipe);
}

TEST_F(LoneFile, ARecipeOfAnotherFitIsRefusedEarly) {
    write_random_text(folder_ / "text");
    write_all(recipe_, "steps: []\n");
    expect_error(refold({"fit", kModel, "-o", out_, "--ratio", "0.9", "--calib", folder_ / "text"}), 2,
                 {"out.recipe.yaml' exists"});
    EXPECT_FALSE(fs::exists(out_ + ".fit"));
}

}  // namespace
}  // namespace refold
