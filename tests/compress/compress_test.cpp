#include "compress/compress.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "compress/small_model.h"
#include "core/files.h"
#include "core/sha256.h"
#include "model/load.h"
#include "model/save.h"

namespace refold {
namespace {

using nlohmann::json;

Recipe recipe(const std::vector<std::string>& settings) {
    return recipe_from_method("direct_share", settings);
}

class CompressFile : public testing::Test {
protected:
    void SetUp() override {
        folder_ =
            std::filesystem::temp_directory_path() / ("refold_compress_test_" + std::to_string(getpid()));
        std::filesystem::create_directories(folder_);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }
    std::string path(const char* name) const { return (folder_ / name).string(); }

private:
    std::filesystem::path folder_;
};

TEST(Compress, PlanPredictsTheResultExactly) {
    const Model model =
        small_model({.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16}, scattered);
    const Compression planned = plan(model, recipe({"ratio=0.25"}));
    EXPECT_EQ(planned.before.parameters, account(model).model.parameters);
    EXPECT_EQ(planned.before.parameters - planned.after().parameters, 2U * 16 * 4 * 6);
    EXPECT_EQ(planned.after().flops_per_token, planned.before.flops_per_token);
    EXPECT_FALSE(planned.model.metadata.has("refold.provenance"));
    ASSERT_EQ(planned.steps.size(), 1U);
    EXPECT_FALSE(planned.steps[0].report.lines.empty());
    EXPECT_EQ(account(model).model.parameters, planned.before.parameters);  // the source is untouched
}

TEST(Compress, StepsAreAppliedInOrder) {
    const Model model =
        small_model({.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16}, scattered);
    const Recipe two = parse_recipe(
        "steps:\n  - {method: direct_share, ratio: 0.25}\n  - {method: direct_share, ratio: 0.125, share: "
        "qkv}\n",
        "two");
    const Compression result = plan(model, two);
    const Compression first = plan(model, recipe({"ratio=0.25"}));
    const Compression second = plan(first.model, recipe({"ratio=0.125", "share=qkv"}));
    ASSERT_EQ(result.steps.size(), 2U);
    EXPECT_EQ(result.steps[0].cost.parameters, first.after().parameters);
    EXPECT_EQ(result.after().parameters, second.after().parameters);
    EXPECT_EQ(result.model.topology, second.model.topology);
}

TEST(Compress, JsonHasEverything) {
    const Model model = small_model({}, scattered);
    const json out = json::parse(to_json(plan(model, recipe({"ratio=0.5"}))));
    EXPECT_EQ(out["before"]["parameters"], account(model).model.parameters);
    EXPECT_LT(out["after"]["bytes"], out["before"]["bytes"]);
    EXPECT_EQ(out["steps"][0]["method"], "direct_share");
    EXPECT_EQ(out["steps"][0]["options"]["ratio"], 0.5);
    EXPECT_EQ(out["steps"][0]["options"]["chain"], "root");
    EXPECT_EQ(out["steps"][0]["details"]["pairs"].size(), 3U);
}

TEST(Compress, TextShowsBeforeAndAfter) {
    const std::string text = to_text(plan(small_model({}, scattered), recipe({"ratio=0.5"})));
    for (const char* part : {"direct_share", "parameters stored", "before", "after", "<-"})
        EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST_F(CompressFile, SavedModelIsTheCompressedOneAndSaysWhereItComesFrom) {
    const Model model =
        small_model({.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16}, scattered);
    save_model(model, path("dense.gguf"), false);
    const Model source = load_model(path("dense.gguf"));
    Work work;
    const Compression once = compress(source, recipe({"ratio=0.25"}), "1.2.3", work);
    save_model(once.model, path("shared.gguf"), false);

    const Model read = load_model(path("shared.gguf"));
    EXPECT_EQ(read.topology, once.model.topology);
    EXPECT_EQ(account(read).model.parameters, once.after().parameters);
    EXPECT_EQ(account(read).model.bytes, once.after().bytes);
    for (const auto& [name, tensor] : once.model.tensors)
        EXPECT_EQ(bytes_of(read, name), bytes_of(once.model, name)) << name;

    const json provenance = json::parse(read.metadata.string("refold.provenance"));
    EXPECT_EQ(provenance["refold"], "1.2.3");
    EXPECT_EQ(provenance["recipe"], to_yaml(once.recipe));
    EXPECT_EQ(provenance["source"]["file"], "dense.gguf");
    EXPECT_EQ(provenance["source"]["sha256"], sha256_hex(MappedFile(path("dense.gguf")).bytes()));

    // A second step on the written file: shared heads work the same when read from a file.
    const Compression twice = compress(read, recipe({"ratio=0.125"}), "1.2.4", work);
    EXPECT_EQ(twice.model.topology, plan(once.model, recipe({"ratio=0.125"})).model.topology);
    const json chain = json::parse(twice.model.metadata.string("refold.provenance"));
    EXPECT_EQ(chain["source"]["provenance"], provenance);
}

// Every earlier model adds two levels, and there is a limit for what is read.
TEST(Compress, AnEarlierRecordThatIsTooDeepIsRefused) {
    Model model = small_model({}, scattered);
    const auto with_levels = [&](size_t levels) {
        model.metadata.set("refold.provenance",
                           GgufValue::string(R"({"source": )" + std::string(levels - 1, '[') +
                                             std::string(levels - 1, ']') + "}"));
        Work work;
        const Compression done = compress(model, recipe({"ratio=0"}), "1", work);
        return json::parse(done.model.metadata.string("refold.provenance"))["source"];
    };
    EXPECT_TRUE(with_levels(90).contains("provenance"));
    expect_error(ErrorCode::unsupported, {"refold.provenance", "more than 90 levels"},
                 [&] { with_levels(91); });
    expect_error(ErrorCode::unsupported, {"more than 90 levels"},
                 [&] { provenance_of_edits(model, "edited", "1"); });
}

TEST_F(CompressFile, RatioZeroWritesTheSameTensors) {
    save_model(small_model({}, scattered), path("dense.gguf"), false);
    const Model source = load_model(path("dense.gguf"));
    Work work;
    save_model(compress(source, recipe({"ratio=0"}), "1", work).model, path("same.gguf"), false);
    const Model same = load_model(path("same.gguf"));
    EXPECT_FALSE(same.metadata.has("refold.topology"));
    EXPECT_EQ(same.topology, source.topology);
    for (const auto& [name, tensor] : source.tensors)
        EXPECT_EQ(bytes_of(same, name), bytes_of(source, name)) << name;
}

TEST_F(CompressFile, TheSourceMayBeGoneWhenTheResultIsSaved) {
    save_model(small_model({.layers = 4}, scattered), path("dense.gguf"), false);
    Compression result = [&] { return plan(load_model(path("dense.gguf")), recipe({"ratio=0.5"})); }();
    result.model.source.reset();  // only producers of new tensors hold the file themselves
    for (const auto& [name, tensor] : result.model.tensors) {
        if (!tensor.produce) continue;
        EXPECT_EQ(bytes_of(result.model, name).size(), tensor.bytes());
    }
}

TEST(Compress, ErrorsNameTheStep) {
    const Model model = small_model({}, [](size_t layer, Slot slot, int64_t row, int64_t column) {
        return layer == 1 && slot == Slot::attn_q ? std::nanf("") : scattered(layer, slot, row, column);
    });
    expect_error(ErrorCode::input, {"not finite", "step 1: direct_share"}, [&] { plan(model, recipe({})); });
}

}  // namespace
}  // namespace refold
