#include <nlohmann/json.hpp>

#include "compress/calibrated.h"
#include "compress/loop_fixtures.h"
#include "train/trained.h"

namespace refold {
namespace {

const SmallShape kSix{.layers = 6, .heads = 2, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 24};

TEST(ExitLora, EveryExitGetsOneThatChangesNothing) {
    const Model looped = planned(small_model(kSix, scattered_small), {"recursive loops=3"}).model;
    const Compression made = planned(looped, {"exit_lora rank=3 type=f32"});
    EXPECT_EQ(made.after().parameters - made.before.parameters, 2U * 3 * (16 + 24));
    EXPECT_EQ(details_of(made)["parameters"], 2 * 3 * (16 + 24));
    const Model out = saved_and_loaded(made.model);
    for (size_t p = 0; p < 6; ++p) EXPECT_EQ(out.topology.has(p, Slot::exit_output), p == 1 || p == 3) << p;
    EXPECT_EQ(weight(out, 1, Slot::exit_output), std::vector<float>(16U * 24, 0.0F));
    EXPECT_NE(std::get<LowRank>(out.topology.at(1, Slot::exit_output)).v,
              std::get<LowRank>(out.topology.at(3, Slot::exit_output)).v);
    EXPECT_EQ(trained_tensors(out, "exit").size(), 4U);
    EXPECT_EQ(outputs_of(out), outputs_of(looped));
}

TEST(ExitLora, WhatCannotHaveOneIsRefused) {
    const Model model = small_model(kSix, scattered_small);
    const auto fails = [&](ErrorCode code, const std::vector<std::string>& steps, const char* part) {
        expect_error(code, {"exit_lora", part}, [&] { planned(model, steps); });
    };
    fails(ErrorCode::unsupported, {"exit_lora"}, "no loops");
    fails(ErrorCode::unsupported, {"recursive", "prefix length=2", "exit_lora rank=2"}, "prefix");
    fails(ErrorCode::usage, {"recursive", "exit_lora rank=17"}, "rank=17");
    fails(ErrorCode::unsupported, {"recursive", "exit_lora rank=2", "exit_lora rank=2"}, "already");
}

}  // namespace
}  // namespace refold
