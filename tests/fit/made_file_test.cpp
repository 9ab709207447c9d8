// Files that an earlier run has made stay, and only those.
#include "fit/made_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "compress/calibrated.h"
#include "compress/small_model.h"
#include "core/code_of.h"
#include "core/temp_folder.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

namespace fs = std::filesystem;

class MadeFile : public testing::Test {
protected:
    void SetUp() override {
        const SmallShape shape{
            .layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 32, .embd = 64, .ff = 96, .vocab = 48};
        model_ = small_model(shape, scattered_small);
        model_.metadata.set("refold.provenance", GgufValue::string(R"({"of": "a"})"));
        save_model(model_, folder_ / "source.gguf", false);
        source_ = load_model(folder_ / "source.gguf");
        text_ = random_text(source_, 8, 32);
        record_.plan.types = "ffn.down=q4_0";
        record_.plan.bytes = 1234;
        record_.plan.of_matrices = 0.5;
        record_.plan.of_tables = 0.25;
        record_.plan.resolve = false;
        record_.factors = {0.3, 0.9};
        record_.divergence = 0.7;
        record_.recipe = "steps: []\n";
    }

    std::string inputs(uint64_t bytes = 1000) { return fit_inputs(source_, text_, options_, bytes); }

    TempFolder folder_;
    Model model_, source_;
    Calibration text_;
    FitOptions options_{.texts = {}, .version = "1"};
    FitRecord record_;
    std::string file_ = folder_ / "small.gguf";
};

TEST_F(MadeFile, IsKeptForTheSameInputs) {
    EXPECT_FALSE(made_before(file_, inputs(), false));
    write_made(file_, inputs(), record_, model_);
    EXPECT_EQ(read_all(folder_ / "small.recipe.yaml"), record_.recipe);
    const auto found = made_before(file_, inputs(), false);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->plan.types, record_.plan.types);
    EXPECT_EQ(found->plan.bytes, 1234U);
    EXPECT_EQ(found->plan.divergence(), 0.75);
    EXPECT_FALSE(found->plan.resolve);
    EXPECT_EQ(found->factors.matrices, 0.3);
    EXPECT_EQ(found->factors.tables, 0.9);
    EXPECT_EQ(found->divergence, 0.7);
    EXPECT_EQ(found->recipe, record_.recipe);
}

TEST_F(MadeFile, IsMadeAnewAfterAnInterruption) {
    write_made(file_, inputs(), record_, model_);
    fs::remove(file_);
    EXPECT_FALSE(made_before(file_, inputs(), false));
}

TEST_F(MadeFile, OfOtherInputsIsReplacedOnlyWhenAsked) {
    write_made(file_, inputs(), record_, model_);
    std::set<std::string> all = {inputs(), inputs(1001)};
    options_.layout = RowLayout::whole_blocks;
    all.insert(inputs());
    options_.probe_tokens += 1;
    all.insert(inputs());
    options_.version = "2";
    all.insert(inputs());
    text_ = random_text(source_, 8, 32, 2);
    text_.hash = "other";
    all.insert(inputs());
    EXPECT_EQ(all.size(), 6U);
    const auto other = [&](bool overwrite) { return made_before(file_, inputs(), overwrite); };
    EXPECT_EQ(code_of([&] { other(false); }, "was made from something else"), ErrorCode::usage);
    EXPECT_FALSE(other(true));
}

// A file that another recipe has written there since.
TEST_F(MadeFile, ARecordOfAnotherFileDoesNotCount) {
    write_made(file_, inputs(), record_, model_);
    model_.metadata.set("refold.provenance", GgufValue::string(R"({"of": "b"})"));
    save_model(model_, file_, true);
    EXPECT_EQ(code_of([&] { made_before(file_, inputs(), false); }, "something else"), ErrorCode::usage);
    EXPECT_FALSE(made_before(file_, inputs(), true));
}

TEST_F(MadeFile, WhatRefoldHasNotWrittenIsNeverReplaced) {
    write_made(file_, inputs(), record_, model_);
    for (const std::string& path : {file_, recipe_path(file_), record_path(file_)}) {
        const std::string before = read_all(path);
        write_all(path, "{\"mine\": 1}");
        for (const bool overwrite : {false, true})
            EXPECT_EQ(code_of([&] { made_before(file_, inputs(1001), overwrite); },
                              overwrite ? path + "' would be replaced" : ""),
                      ErrorCode::usage);
        write_all(path, before);
    }
    EXPECT_FALSE(made_before(file_, inputs(1001), true));
}

}  // namespace
}  // namespace refold
