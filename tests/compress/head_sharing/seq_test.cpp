#include <nlohmann/json.hpp>

#include "compress/small_model.h"

namespace refold {
namespace {

using nlohmann::json;

TEST(Seq, LatterLayersShareInPairs) {
    const Model model = small_model({.layers = 10}, scattered);
    StepReport report;
    const Model shared = run_method("seq", model, {}, &report);
    EXPECT_EQ(json::parse(report.details)["groups"], json::parse("[[4,5],[6,7],[8,9]]"));
    for (size_t p : {5, 7, 9}) {
        for (const Slot slot : kQkvo) EXPECT_EQ(shared.topology.at(p, slot), model.topology.at(p - 1, slot));
        EXPECT_EQ(shared.topology.at(p, Slot::ffn_up), model.topology.at(p, Slot::ffn_up));
        EXPECT_EQ(shared.topology.at(p, Slot::attn_norm), model.topology.at(p, Slot::attn_norm));
    }
    for (size_t p : {0, 3, 4, 6, 8}) EXPECT_EQ(shared.topology.layers[p], model.topology.layers[p]);
    EXPECT_EQ(parameters(model) - parameters(shared), 3U * 64);
    const Model qkv = run_method("seq", model, {"share=qkv"});
    EXPECT_EQ(parameters(model) - parameters(qkv), 3U * 48);
    EXPECT_EQ(qkv.topology.at(9, Slot::attn_o), model.topology.at(9, Slot::attn_o));
}

TEST(Seq, WholeLayers) {
    const Model model = small_model({.layers = 7, .ff = 2}, scattered);
    const Model all = run_method("seq", model, {"share=layer", "group=3", "part=0.9"});  // 6 layers: 1-6
    for (size_t p : {2, 3}) EXPECT_EQ(all.topology.layers[p], model.topology.layers[1]);
    for (size_t p : {5, 6}) EXPECT_EQ(all.topology.layers[p], model.topology.layers[4]);
    const Model own = run_method("seq", model, {"share=layer", "group=3", "layers=1-3", "norms=keep"});
    EXPECT_EQ(own.topology.at(3, Slot::ffn_down), model.topology.at(1, Slot::ffn_down));
    EXPECT_EQ(own.topology.at(3, Slot::ffn_norm), model.topology.at(3, Slot::ffn_norm));
    EXPECT_EQ(own.topology.layers[5], model.topology.layers[5]);
    expect_identical(run_method("seq", model, {"group=1"}), model);
    expect_identical(run_method("seq", model, {"part=0"}), model);
}

// A layer has two heads of 32 weights: 6, 4, 5 and 18 heads are to be shared.
TEST(Seq, EqualSize) {
    const Model model = small_model({.layers = 10}, scattered);
    const auto difference = [&](const char* ratio, const char* groups) {
        StepReport report;
        const Model shared = run_method("seq", model, {ratio}, &report);
        const json details = json::parse(report.details);
        EXPECT_EQ(details["groups"], json::parse(groups)) << ratio;
        EXPECT_EQ(details["equal_size"]["reached"], parameters(shared));
        return details["equal_size"]["difference"].get<int64_t>();
    };
    EXPECT_EQ(difference("ratio=0.3", "[[4,5],[6,7],[8,9]]"), 0);
    EXPECT_EQ(difference("ratio=0.2", "[[6,7],[8,9]]"), 0);
    EXPECT_EQ(difference("ratio=0.25", "[[6,7],[8,9]]"), 32);
    EXPECT_EQ(difference("ratio=0.9", "[[0,1],[2,3],[4,5],[6,7],[8,9]]"), 8 * 32);
}

TEST(Seq, WhatDoesNotFitIsRefused) {
    const Model model = small_model({.layers = 5}, scattered);
    expect_error(ErrorCode::usage, {"3 layers", "groups of 2"},
                 [&] { run_method("seq", model, {"layers=1-3"}); });
    expect_error(ErrorCode::usage, {"1, 3", "not consecutive"},
                 [&] { run_method("seq", model, {"layers=1,3"}); });
    const Model dropped = run_method("drop", model, {"layers=3"});
    expect_error(ErrorCode::unsupported, {"layers 3 and 4", "attention"},
                 [&] { run_method("seq", dropped, {"layers=3,4"}); });
    run_method("seq", dropped, {"layers=1,2", "share=layer"});
    const Model headless = run_method("drop", model, {"layers=3", "modules=ffn"});
    expect_error(ErrorCode::unsupported, {"layers 3 and 4", "FFN"}, [&] {
        run_method("seq", headless, {"layers=3,4", "share=layer"});
    });
}

}  // namespace
}  // namespace refold
