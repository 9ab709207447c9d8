// Methods on a model of several residual streams whose last layers take keys and values from earlier ones
// (Gemma 3n): what goes together computes the same as its materialized form, the rest is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "compress/compress.h"
#include "core/error.h"
#include "core/temp_folder.h"
#include "engine/compare.h"
#include "model/load.h"
#include "model/save.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

using Options = std::vector<std::string>;

Model fixture() { return load_model(std::string(REFOLD_FIXTURES) + "/hf/gemma3n"); }

std::vector<float> logits_of(const Model& model) {
    return all_logits(model, random_tokens(40, model.config.n_vocab, 3), {.threads = 1, .f32 = true});
}

TEST(SeveralStreams, MethodsThatGoWithThem) {
    const Model dense = fixture();
    const std::vector<float> before = logits_of(dense);
    for (const auto& [method, options] :
         std::vector<std::pair<std::string, Options>>{{"drop", {"layers=3"}},
                                                      {"drop", {"layers=0", "modules=ffn"}},
                                                      {"drop", {"layers=2", "modules=block"}},
                                                      {"direct_share", {"ratio=0.2"}},
                                                      {"ffn_share", {"ratio=0.3"}}}) {
        SCOPED_TRACE(method + " " + options.front());
        const Compression result = plan(dense, recipe_from_method(method, options));
        EXPECT_LT(result.after().parameters, result.before.parameters);
        const auto expected = logits_of(without_sharing(result.model));
        EXPECT_GT(largest_difference(before, expected), 1e-3);
        EXPECT_LE(largest_difference(logits_of(result.model), expected), 1e-4);
        const TempFolder folder;
        save_model(result.model, folder / "smaller.gguf", false);
        const Model back = load_model(folder / "smaller.gguf");
        EXPECT_EQ(back.topology, result.model.topology);
        EXPECT_LE(largest_difference(logits_of(back), expected), 1e-4);
    }
}

TEST(SeveralStreams, WhatDoesNotGoWithThemIsNamed) {
    const auto message = [](const std::string& method, const Options& options) -> std::string {
        try {
            plan(fixture(), recipe_from_method(method, options));
        } catch (const Error& error) {
            EXPECT_NE(error.code(), ErrorCode::internal) << error.what();
            return error.what();
        }
        return "no error";
    };
    using testing::HasSubstr;
    // Another layer reads its keys and values.
    EXPECT_THAT(message("drop", {"layers=1"}), HasSubstr("layer 3 takes its attention from elsewhere"));
    EXPECT_THAT(message("prune_magnitude", {"ratio=0.34", "what=ffn", "multiple=8"}),
                HasSubstr("its FFN cuts off gates"));
    EXPECT_THAT(message("repeat", {"layers=0-1,0-1"}),
                HasSubstr("each of the 4 layers has inputs of its own"));
    EXPECT_THAT(message("recursive", {"loops=2"}),
                HasSubstr("has 3 residual streams and inputs of each layer"));
}

}  // namespace
}  // namespace refold
