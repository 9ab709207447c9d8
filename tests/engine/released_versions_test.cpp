// Files that every released version wrote, with its logits: tests/tools/make-version-fixtures.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "core/temp_folder.h"
#include "engine/compare.h"
#include "io/safetensors.h"
#include "model/load.h"
#include "model/metadata_keys.h"
#include "model/save.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

const std::vector<int32_t> kTokens = {1, 5, 9, 30, 2, 17, 8, 8, 3, 11};

std::vector<fs::path> files_of_versions() {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(std::string(REFOLD_FIXTURES) + "/versions"))
        if (entry.path().extension() == ".gguf") files.push_back(entry.path());
    return files;
}

std::vector<float> logits_then(fs::path path) {
    const SafetensorsFile file = read_safetensors(path.replace_extension(".safetensors").string());
    const auto bytes = file.tensors.at("logits").data;
    std::vector<float> values(bytes.size() / sizeof(float));
    memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

TEST(ReleasedVersions, FilesRunAsTheyDid) {
    const auto files = files_of_versions();
    ASSERT_GE(files.size(), 6U);
    const EngineOptions options{.threads = 1, .f32 = true};
    for (const fs::path& path : files) {
        SCOPED_TRACE(path.string());
        const Model model = load_model(path.string());
        EXPECT_EQ(model.metadata.string(kVersionKey), path.parent_path().filename());
        const auto now = all_logits(model, kTokens, options);
        // Sums of float32 differ a little from one kind of CPU to another.
        EXPECT_LE(largest_difference(now, logits_then(path)), 1e-4);
        const TempFolder folder;
        save_model(model, folder / "again.gguf", false);
        const Model again = load_model(folder / "again.gguf");
        EXPECT_EQ(again.topology, model.topology);
        EXPECT_EQ(all_logits(again, kTokens, options), now);
    }
}

}  // namespace
}  // namespace refold
