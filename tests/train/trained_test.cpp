// Selection of the tensors to train.
#include "train/trained.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error_of.h"
#include "train/tiny_run.h"

namespace refold {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(const Model& model, const std::string& selection) {
    return error_of([&] { trained_tensors(model, selection); }, ErrorCode::usage);
}

TEST(Trained, GroupsAndPatternsInOrder) {
    const Model model = tiny_model(0.3F, 1);
    EXPECT_EQ(trained_tensors(model, "all").size(), model.tensors.size());
    EXPECT_THAT(trained_tensors(model, "norms"),
                ElementsAre("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"));
    EXPECT_THAT(trained_tensors(model, "blk.*.attn_?.weight, output_norm.weight"),
                ElementsAre("blk.0.attn_k.weight", "blk.0.attn_q.weight", "blk.0.attn_v.weight",
                            "output_norm.weight"));
    EXPECT_THAT(trained_tensors(model, "norms,-blk.*"), ElementsAre("output_norm.weight"));
    EXPECT_THAT(trained_tensors(model, "norms,-blk.*,blk.0.ffn_norm.weight"),
                ElementsAre("blk.0.ffn_norm.weight", "output_norm.weight"));
    EXPECT_EQ(trained_tensors(model, "-norms").size(), model.tensors.size() - 3);
}

TEST(Trained, LayersAndPackedTensors) {
    Model model = tiny_model(0.3F, 1);
    EXPECT_EQ(trained_tensors(model, "layers").size(), model.tensors.size() - 2);
    EXPECT_FALSE(trained_tensors(model, "layers").contains("token_embd.weight"));
    EXPECT_FALSE(trained_tensors(model, "layers").contains("output_norm.weight"));
    EXPECT_EQ(trained_tensors(model, "all,-packed"), trained_tensors(model, "all"));
    EXPECT_THAT(refusal(model, "packed"), HasSubstr("float32 or 16 bits"));
    model.tensors.at("blk.0.attn_q.weight").type = DType::Q8_0;
    EXPECT_THAT(trained_tensors(model, "packed"), ElementsAre("blk.0.attn_q.weight"));
    EXPECT_FALSE(trained_tensors(model, "layers,-packed").contains("blk.0.attn_q.weight"));
}

// The head of a model with tied embeddings is the embedding table.
TEST(Trained, TheHeadMayBeTheEmbeddings) {
    const Model model = tiny_model(0.3F, 1);
    ASSERT_FALSE(model.tensors.contains("output.weight"));
    EXPECT_THAT(trained_tensors(model, "head"), ElementsAre("token_embd.weight"));
}

TEST(Trained, LoraAndCompensation) {
    Model model = tiny_model(0.3F, 1);
    model.tensors["u"] = float_tensor({1, 4}, {1, 2, 3, 4});
    model.tensors["v"] = float_tensor({4, 1}, {1, 2, 3, 4});
    model.tensors["c"] = float_tensor({4, 4}, std::vector<float>(16, 0));
    auto& slots = model.topology.layers[0];
    slots[Slot::attn_q] = Plus{Dense{"blk.0.attn_q.weight"}, LowRank{"u", "v"}};
    slots[Slot::attn_comp] = Dense{"c"};
    EXPECT_THAT(trained_tensors(model, "lora"), ElementsAre("u", "v"));
    EXPECT_THAT(trained_tensors(model, "comp"), ElementsAre("c"));
}

TEST(Trained, ExitMaps) {
    Model model = tiny_model(0.3F, 2);
    EXPECT_THAT(refusal(model, "exit"), HasSubstr("exit_map"));
    model.tensors["u"] = float_tensor({1, 4}, {1, 2, 3, 4});
    model.tensors["v"] = float_tensor({4, 1}, {1, 2, 3, 4});
    model.topology.layers[0][Slot::exit_map] = LowRank{"u", "v"};
    EXPECT_THAT(trained_tensors(model, "exit"), ElementsAre("u", "v"));
}

TEST(Trained, NothingToTrainIsAnError) {
    const Model model = tiny_model(0.3F, 1);
    EXPECT_THAT(refusal(model, "blk.0.attn_w.weight"), HasSubstr("blk.0.attn_"));
    EXPECT_THAT(refusal(model, "blocks.*"), HasSubstr("matches no tensor"));
    EXPECT_THAT(refusal(model, "lora"), HasSubstr("relax"));
    EXPECT_THAT(refusal(model, "norms,,all"), HasSubstr("empty"));
    EXPECT_THAT(refusal(model, "norms,-norms"), HasSubstr("nothing is left"));
}

}  // namespace
}  // namespace refold
