#include "core/data_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/temp_folder.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

// An installation is looked into after the current folder; its place within a prefix is share/refold.
TEST(DataFiles, OfTheInstallation) {
    const TempFolder folder;
    const fs::path data = fs::path(folder / "second") / "share/refold/recipes";
    fs::create_directories(data);
    std::ofstream(data / "some.yaml") << "steps: []\n";
    const fs::path prefixes[] = {folder / "first", folder / "second"};
    EXPECT_EQ(data_file("recipes/some.yaml", prefixes), (data / "some.yaml").string());
    EXPECT_EQ(data_file("recipes/other.yaml", prefixes), "recipes/other.yaml");
    EXPECT_EQ(data_file("/recipes/some.yaml", prefixes), "/recipes/some.yaml");
    EXPECT_EQ(data_file("", prefixes), "");
    // Tests run in the folder of the sources, whose own recipes come first.
    std::ofstream(data / "direct_share_30.yaml") << "steps: []\n";
    EXPECT_EQ(data_file("recipes/direct_share_30.yaml", prefixes), "recipes/direct_share_30.yaml");
}

}  // namespace
}  // namespace refold
