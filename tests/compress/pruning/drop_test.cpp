#include "compress/small_model.h"

namespace refold {
namespace {

TEST(Drop, LeavesModulesOut) {
    const Model model = small_model({.layers = 4, .ff = 2}, scattered);
    const Model attention = run_method("drop", model, {"layers=1,3"});
    EXPECT_EQ(attention.config.heads_kv, (std::vector<int64_t>{2, 0, 2, 0}));
    EXPECT_EQ(parameters(model) - parameters(attention), 2U * (64 + 4));
    EXPECT_EQ(attention.topology.layers[0], model.topology.layers[0]);
    EXPECT_TRUE(attention.topology.has(3, Slot::ffn_norm));
    const Model ffn = run_method("drop", model, {"layers=0", "modules=ffn"});
    EXPECT_EQ(ffn.config.ffs, (std::vector<int64_t>{0, 2, 2, 2}));
    EXPECT_EQ(parameters(model) - parameters(ffn), 24U + 4);
    const Model block = run_method("drop", model, {"layers=2", "modules=block"});
    EXPECT_TRUE(block.topology.layers[2].empty());
    EXPECT_EQ(parameters(model) - parameters(block), 64U + 24 + 8);
    EXPECT_EQ(parameters(run_method("drop", unreadable(model), {"layers=2"})), parameters(model) - 68);
}

TEST(Drop, WhatDoesNotFitIsRefused) {
    const Model model = small_model({}, scattered);
    expect_error(ErrorCode::usage, {"layers is needed"}, [&] { run_method("drop", model, {}); });
    expect_error(ErrorCode::usage, {"layers 0 to 2"}, [&] { run_method("drop", model, {"layers=3"}); });
    const Model once = run_method("drop", model, {"layers=1"});
    expect_error(ErrorCode::unsupported, {"layer 1", "no attention"},
                 [&] { run_method("drop", once, {"layers=1"}); });
    run_method("drop", once, {"layers=1", "modules=ffn"});
}

}  // namespace
}  // namespace refold
