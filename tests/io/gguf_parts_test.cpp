// GGUF models in several files, as llama.cpp's gguf-split writes them.
#include "io/gguf_parts.h"

#include <gtest/gtest.h>

#include "core/code_of.h"
#include "core/temp_folder.h"

namespace refold {
namespace {

struct PartFile {
    uint64_t number = 0, count = 2;  // split.no counts from 0
    std::optional<int64_t> tensors = 3;
    std::vector<std::string> names;
};

class GgufPartFiles : public testing::Test {
protected:
    std::string path(size_t number, size_t count = 2) const {
        return folder_ / fmt::format("model-{:05}-of-{:05}.gguf", number, count);
    }

    // gguf-split's keys; the first part has those of the model as well.
    static void write(const std::string& file, const PartFile& part) {
        GgufMetadata metadata;
        if (part.number == 0) metadata.set("general.name", GgufValue::string("whole"));
        metadata.set("split.no", {GgufType::U16, part.number});
        metadata.set("split.count", {GgufType::U16, part.count});
        if (part.tensors) metadata.set("split.tensors.count", {GgufType::I32, *part.tensors});
        std::vector<GgufOutputTensor> tensors;
        for (const auto& name : part.names)
            tensors.push_back({name, DType::F32, {2}, [](const auto& sink) {
                                   const float values[2] = {1, 2};
                                   sink(std::as_bytes(std::span(values)));
                               }});
        write_gguf(file, true, metadata, tensors);
    }
    void write_both() const {
        write(path(1), {.number = 0, .names = {"a", "b"}});
        write(path(2), {.number = 1, .names = {"c"}});
    }
    void refused(ErrorCode code, const std::string& message, size_t from = 1) const {
        EXPECT_EQ(code_of([&] { open_gguf_parts(path(from)); }, message), code);
    }

    TempFolder folder_;
};

TEST_F(GgufPartFiles, AreReadTogether) {
    write_both();
    const GgufParts parts = open_gguf_parts(path(1));
    ASSERT_EQ(parts.files.size(), 2U);
    EXPECT_EQ(parts.files[1]->tensors().front().name, "c");
    EXPECT_EQ(parts.metadata.string("general.name"), "whole");
    for (const char* key : {"split.no", "split.count", "split.tensors.count"})
        EXPECT_FALSE(parts.metadata.has(key));
}

TEST_F(GgufPartFiles, TheFirstPartMayHaveNoTensors) {
    write(path(1), {.number = 0, .names = {}});
    write(path(2), {.number = 1, .names = {"a", "b", "c"}});
    EXPECT_EQ(open_gguf_parts(path(1)).files.size(), 2U);
}

TEST_F(GgufPartFiles, AWholeFileIsOne) {
    const std::string file = folder_ / "whole.gguf";
    for (const uint64_t count : {0U, 1U}) {  // gguf-split --merge leaves 0
        write(file, {.number = 0, .count = count, .tensors = 1, .names = {"a"}});
        EXPECT_EQ(open_gguf_parts(file).files.size(), 1U);
        EXPECT_NO_THROW(check_whole(*GgufFile::open(file), file));
    }
}

TEST_F(GgufPartFiles, AnotherPartThanTheFirst) {
    write_both();
    refused(ErrorCode::usage, "is part 2 of 2 of a model: give the first one, '" + path(1) + "'", 2);
    EXPECT_EQ(code_of([&] { check_whole(*GgufFile::open(path(2)), path(2)); }, "part 2 of 2"),
              ErrorCode::unsupported);
}

TEST_F(GgufPartFiles, MissingParts) {
    write(path(1), {.number = 0, .names = {"a", "b"}});
    refused(ErrorCode::io, "part 2 of 2 is missing: '" + path(2) + "'");
}

TEST_F(GgufPartFiles, PartsThatDoNotBelongTogether) {
    write_both();
    write(path(2), {.number = 0, .names = {"c"}});
    refused(ErrorCode::input, "is part 1 of 2, expected part 2 of 2");
    write(path(2), {.number = 1, .count = 3, .names = {"c"}});
    refused(ErrorCode::input, "is part 2 of 3, expected part 2 of 2");
    write(path(2), {.number = 1, .names = {"b"}});
    refused(ErrorCode::input, "tensor 'b' is in two parts");
    write(path(2), {.number = 1, .names = {"c", "d"}});
    refused(ErrorCode::input, "have 4 tensors together, key 'split.tensors.count' of the first one says 3");
    write(path(2), {.number = 1, .names = {}});
    refused(ErrorCode::input, "have 2 tensors together");
    write(path(1), {.number = 1, .names = {"a", "b"}});
    refused(ErrorCode::input, "its name must end in '-00002-of-00002.gguf'");
    write(path(1), {.number = 5, .names = {"a", "b"}});
    refused(ErrorCode::input, "says that it is part 6 of 2");
    const std::string renamed = folder_ / "renamed.gguf";
    write(renamed, {.number = 0, .names = {"a"}});
    EXPECT_EQ(code_of([&] { open_gguf_parts(renamed); }, "its name must end in '-00001-of-00002.gguf'"),
              ErrorCode::input);
}

TEST_F(GgufPartFiles, CountsMayBeAbsent) {
    write(path(1), {.number = 0, .tensors = std::nullopt, .names = {"a"}});
    write(path(2), {.number = 1, .tensors = std::nullopt, .names = {"b"}});
    EXPECT_EQ(open_gguf_parts(path(1)).files.size(), 2U);
}

TEST(GgufPartNames, AreReadFromTheEnd) {
    const GgufPartName name = gguf_part_name("a/b-00002-of-00010.gguf");
    EXPECT_EQ(name.base, "a/b");
    EXPECT_EQ(name.number, 2U);
    EXPECT_EQ(name.count, 10U);
    for (const char* other :
         {"b.gguf", "b-00003-of-00002.gguf", "b-00000-of-00002.gguf", "b-0001-of-00002.gguf", ""})
        EXPECT_EQ(gguf_part_name(other).count, 1U) << other;
}

}  // namespace
}  // namespace refold
