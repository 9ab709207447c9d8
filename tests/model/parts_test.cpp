// Models in several GGUF files are those in one.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/code_of.h"
#include "core/temp_folder.h"
#include "io/gguf_parts.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

// As llama.cpp's gguf-split: keys of the model in the first part, tensors in turn.
void split(const std::string& source, const std::string& base, size_t parts) {
    const auto whole = GgufFile::open(source);
    const auto& all = whole->tensors();
    for (size_t part = 0; part < parts; ++part) {
        GgufMetadata metadata = part == 0 ? whole->metadata() : GgufMetadata();
        metadata.set("split.no", {GgufType::U16, uint64_t{part}});
        metadata.set("split.count", {GgufType::U16, uint64_t{parts}});
        metadata.set("split.tensors.count", {GgufType::I32, static_cast<int64_t>(all.size())});
        std::vector<GgufOutputTensor> tensors;
        for (size_t i = part * all.size() / parts; i < (part + 1) * all.size() / parts; ++i)
            tensors.push_back(
                {all[i].name, all[i].type, all[i].shape, [&all, i](const auto& sink) { sink(all[i].data); }});
        write_gguf(fmt::format("{}-{:05}-of-{:05}.gguf", base, part + 1, parts), false, metadata, tensors);
    }
}

TEST(ModelInParts, IsTheWholeModel) {
    const std::string source = std::string(REFOLD_FIXTURES) + "/llama_gqa/model.gguf";
    const Model whole = load_model(source);
    for (const size_t parts : {2, 3}) {
        const TempFolder folder;
        split(source, folder / "m", parts);
        const std::string first = folder / fmt::format("m-00001-of-{:05}.gguf", parts);
        const Model model = load_model(first);
        EXPECT_EQ(model.source->files().size(), parts);
        EXPECT_EQ(model.topology, whole.topology);
        ASSERT_EQ(model.tensors.size(), whole.tensors.size());
        for (const auto& [name, tensor] : whole.tensors) {
            const auto got = model.tensor(name).mapped;
            EXPECT_TRUE(std::equal(got.begin(), got.end(), tensor.mapped.begin(), tensor.mapped.end()))
                << name;
        }
        // Written again, it is one file that says nothing of parts.
        save_model(model, folder / "again.gguf", false);
        EXPECT_FALSE(GgufFile::open(folder / "again.gguf")->metadata().has("split.count"));
        EXPECT_EQ(code_of([&] { load_model(folder / fmt::format("m-00002-of-{:05}.gguf", parts)); },
                          "give the first one, '" + first + "'"),
                  ErrorCode::usage);
    }
}

}  // namespace
}  // namespace refold
