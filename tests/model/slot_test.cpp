// The slot table: what a family's description and the shapes of real checkpoints say about it.
#include "model/slot.h"

#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "model/family.h"

namespace refold {
namespace {

TEST(Slot, NamesAreABijection) {
    std::set<std::string> names;
    for (const SlotProperties& slot : kSlots) {
        EXPECT_EQ(slot_from_name(slot.name), slot.slot);
        names.insert(slot.name);
    }
    EXPECT_EQ(names.size(), kSlotCount);
    EXPECT_THROW(slot_from_name("attn.qq"), Error);
}

TEST(Slot, GroupsAreMultipliedWithTheSameInput) {
    const auto group = [](Slot slot) { return to_vector(product_group(slot)); };
    EXPECT_EQ(group(Slot::attn_v), (std::vector{Slot::attn_q, Slot::attn_k, Slot::attn_v}));
    EXPECT_EQ(group(Slot::ffn_gate), (std::vector{Slot::ffn_gate, Slot::ffn_up}));
    EXPECT_EQ(group(Slot::attn_o), std::vector{Slot::attn_o});
    EXPECT_EQ(group(Slot::exit_map), std::vector{Slot::exit_map});
    size_t matrices = 0;
    for (const Slot first : kProductGroups) matrices += product_group(first).size();
    EXPECT_EQ(matrices, kMatrices.size());
}

// Every slot with each of its sizes, written down independently of the table.
TEST(Slot, ShapesFollowTheConfiguration) {
    ModelConfig c;
    c.n_embd = 48;
    c.n_head = 6;
    c.n_head_kv = 3;
    c.head_dim = 10;
    c.n_ff = 100;
    c.n_vocab = 1000;
    c.n_learned_positions = 77;
    c.n_token_types = 2;
    c.n_prefix = 5;
    c.rope.dims = 8;
    c.heads_kv = {3, 2};
    c.ffs = {100, 64};
    const auto shape = [&](Slot slot, size_t layer = kWholeModel) {
        const SlotShape s = slot_shape(slot, c, layer);
        return std::pair(s.in, s.out);
    };
    using Shape = std::pair<int64_t, int64_t>;
    EXPECT_EQ(shape(Slot::attn_q), Shape(48, 60));
    EXPECT_EQ(shape(Slot::attn_k), Shape(48, 30));
    EXPECT_EQ(shape(Slot::attn_v, 1), Shape(48, 20));
    EXPECT_EQ(shape(Slot::attn_o, 1), Shape(40, 48));
    EXPECT_EQ(shape(Slot::attn_q_bias), Shape(60, 1));
    EXPECT_EQ(shape(Slot::attn_k_bias), Shape(30, 1));
    EXPECT_EQ(shape(Slot::attn_v_bias, 1), Shape(20, 1));
    EXPECT_EQ(shape(Slot::attn_q_norm), Shape(10, 1));
    EXPECT_EQ(shape(Slot::attn_k_norm), Shape(10, 1));
    EXPECT_EQ(shape(Slot::attn_prefix_k), Shape(30, 5));
    EXPECT_EQ(shape(Slot::attn_prefix), Shape(48, 5));
    EXPECT_EQ(shape(Slot::attn_prefix_v, 1), Shape(20, 5));
    EXPECT_EQ(shape(Slot::attn_comp), Shape(48, 48));
    EXPECT_EQ(shape(Slot::attn_comp_norm), Shape(48, 48));
    EXPECT_EQ(shape(Slot::attn_comp_ffn), Shape(48, 48));
    EXPECT_EQ(shape(Slot::attn_comp_o), Shape(48, 60));
    EXPECT_EQ(shape(Slot::attn_comp_v, 1), Shape(20, 40));
    EXPECT_EQ(shape(Slot::ffn_gate), Shape(48, 100));
    EXPECT_EQ(shape(Slot::ffn_up, 1), Shape(48, 64));
    EXPECT_EQ(shape(Slot::ffn_down, 1), Shape(64, 48));
    EXPECT_EQ(shape(Slot::ffn_gate_bias), Shape(100, 1));
    EXPECT_EQ(shape(Slot::ffn_up_bias, 1), Shape(64, 1));
    EXPECT_EQ(shape(Slot::token_embd), Shape(48, 1000));
    EXPECT_EQ(shape(Slot::output), Shape(48, 1000));
    EXPECT_EQ(shape(Slot::output_bias), Shape(1000, 1));
    EXPECT_EQ(shape(Slot::position_embd), Shape(48, 77));
    EXPECT_EQ(shape(Slot::token_types), Shape(48, 2));
    EXPECT_EQ(shape(Slot::rope_freqs), Shape(4, 1));
    EXPECT_EQ(shape(Slot::exit_output, 0), Shape(48, 1000));
    for (const Slot slot : {Slot::head_dense, Slot::pooler, Slot::exit_map})
        EXPECT_EQ(shape(slot), Shape(48, 48)) << slot_name(slot);
    for (const Slot slot : {Slot::attn_norm,        Slot::attn_norm_bias,   Slot::attn_o_bias,
                            Slot::attn_post_norm,   Slot::attn_output_norm, Slot::attn_output_norm_bias,
                            Slot::ffn_norm,         Slot::ffn_norm_bias,    Slot::ffn_down_bias,
                            Slot::ffn_post_norm,    Slot::ffn_output_norm,  Slot::ffn_output_norm_bias,
                            Slot::embd_norm,        Slot::embd_norm_bias,   Slot::output_norm,
                            Slot::output_norm_bias, Slot::head_dense_bias,  Slot::head_norm,
                            Slot::head_norm_bias,   Slot::pooler_bias})
        EXPECT_EQ(shape(slot), Shape(48, 1)) << slot_name(slot);
    EXPECT_EQ(slot_blocks(Slot::attn_q, c), 6);
    EXPECT_EQ(slot_blocks(Slot::attn_o, c, 1), 4);
    EXPECT_EQ(slot_blocks(Slot::attn_v, c, 1), 2);
    EXPECT_EQ(slot_blocks(Slot::attn_comp_o, c), 0);
    EXPECT_EQ(slot_blocks(Slot::ffn_down, c), 0);
}

// What methods may add is named by no family, and families describe slots where they belong.
TEST(Slot, FamiliesDescribeSlotsOfTheirScope) {
    for (const Family* family : families()) {
        std::set<Slot> seen;
        for (const auto& slot : family->layer_slots) {
            EXPECT_EQ(properties(slot.slot).scope, SlotScope::layer) << family->name;
            EXPECT_NE(properties(slot.slot).origin, SlotOrigin::method) << family->name;
            EXPECT_TRUE(seen.insert(slot.slot).second) << family->name << ' ' << slot_name(slot.slot);
        }
        for (const auto& slot : family->model_slots) {
            EXPECT_EQ(properties(slot.slot).scope, SlotScope::model) << family->name;
            EXPECT_TRUE(seen.insert(slot.slot).second) << family->name << ' ' << slot_name(slot.slot);
        }
    }
}

}  // namespace
}  // namespace refold
