// Attention sources and W_c: files, refusals, costs, and exports, which refuse them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "core/error_of.h"
#include "core/temp_folder.h"
#include "engine/expression_models.h"
#include "model/accounting.h"
#include "model/hf/export.h"
#include "model/load.h"
#include "model/save.h"
#include "model/stock.h"
#include "model/validate.h"
#include "model/without_sharing.h"

namespace refold {
namespace {

using testing::HasSubstr;

Topology four_layers() { return ExpressionBuilder("llama").finish().topology; }

Topology parsed(const std::string& layers) {
    return topology_from_json(R"({"version":2,"layers":)" + layers + "}", four_layers());
}

// ---- the topology ----

TEST(Sources, OfLayers) {
    Topology t = four_layers();
    EXPECT_TRUE(t.source(1).own());
    t.sources[1] = {0, std::nullopt};
    t.sources[3] = {std::nullopt, 2};
    EXPECT_EQ(t.source(1).probabilities, 0U);
    EXPECT_FALSE(t.source(1).own());
    EXPECT_EQ(t.source(3).kv, 2U);
    EXPECT_FALSE(t.source(3).own());
    EXPECT_TRUE(t.source(0).own());
    EXPECT_TRUE(t.lends_probabilities(0));
    EXPECT_FALSE(t.lends_probabilities(2));
    EXPECT_TRUE(t.lends_kv(2));
    EXPECT_FALSE(t.lends_kv(0));
    const std::vector<Slot> queries = {Slot::attn_q, Slot::attn_q_bias, Slot::attn_q_norm},
                            keys = {Slot::attn_k, Slot::attn_k_bias, Slot::attn_k_norm},
                            values = {Slot::attn_v, Slot::attn_v_bias},
                            kept = {Slot::attn_o, Slot::attn_o_bias, Slot::attn_norm, Slot::attn_comp,
                                    Slot::ffn_up};
    for (const auto& [slots, by_probabilities, by_kv] : {std::tuple(queries, true, false),
                                                         {keys, true, true},
                                                         {values, false, true},
                                                         {kept, false, false}}) {
        for (const Slot slot : slots) {
            EXPECT_FALSE(t.is_replaced(0, slot)) << slot_name(slot);
            EXPECT_EQ(t.is_replaced(1, slot), by_probabilities) << slot_name(slot);
            EXPECT_EQ(t.is_replaced(3, slot), by_kv) << slot_name(slot);
        }
    }
}

TEST(Sources, RoundTrip) {
    Topology t = four_layers();
    t.layers[2] = t.layers[0];
    t.layers[3] = t.layers[0];
    t.sources[2] = {1, std::nullopt};
    t.sources[3] = {std::nullopt, 1};
    const std::string json = topology_to_json(t, four_layers());
    // The same slots with another source.
    EXPECT_THAT(json, HasSubstr(R"({"attention":{"probabilities":1},"like":0})"));
    EXPECT_THAT(json, HasSubstr(R"({"attention":{"kv":1},"like":0})"));
    EXPECT_EQ(topology_from_json(json, four_layers()), t);
    // "like" does not copy the source.
    const Topology like = parsed(R"([{},{"attention":{"probabilities":0}},{"like":1},{}])");
    EXPECT_EQ(like.sources.size(), 1U);
    EXPECT_EQ(like.sources.at(1), (AttentionSource{0, std::nullopt}));
    EXPECT_EQ(like.layers[2], like.layers[1]);
}

TEST(Sources, TheDocumentedForm) {
    ExpressionBuilder b("llama");
    b.share_probabilities(1, 0);
    b.compensate(1, Slot::attn_comp);
    b.share_kv(3, 2);
    EXPECT_EQ(topology_to_json(b.finish().topology, four_layers()),
              R"({"layers":[{},{"attention":{"probabilities":0},"attn.comp":"blk.1.attn.comp",)"
              R"("attn.k":null,"attn.q":null},{},{"attention":{"kv":2},"attn.k":null,"attn.v":null}],)"
              R"("version":2})");
}

TEST(Sources, MalformedOnesAreRefused) {
    for (const auto& [json, part] : std::vector<std::pair<std::string, std::string>>{
             {"7", "expected an object"},
             {"null", "expected an object"},
             {"[0]", "expected an object"},
             {R"("own")", "expected an object"},
             {"{}", "must name one of \"probabilities\" and \"kv\""},
             {R"({"probabilities":0,"kv":0})", "must name one of"},
             {R"({"queries":0})", "unknown field \"queries\""},
             {R"({"probabilities":0,"scale":2})", "unknown field \"scale\""},
             {R"({"probabilities":-1})", "\"probabilities\" must be an index"},
             {R"({"probabilities":0.5})", "\"probabilities\" must be an index"},
             {R"({"probabilities":null})", "\"probabilities\" must be an index"},
             {R"({"probabilities":"0"})", "\"probabilities\" must be an index"},
             {R"({"kv":18446744073709551615})", "\"kv\" must be an index"},
             {R"({"kv":1099511627777})", "\"kv\" must be an index"},
             {R"({"kv":[0]})", "\"kv\" must be an index"}}) {
        const std::string text = error_of([&] { parsed(R"([{},{"attention":)" + json + "}]"); });
        EXPECT_THAT(text, HasSubstr("layer 1")) << json;
        EXPECT_THAT(text, HasSubstr(part)) << json;
    }
    EXPECT_THAT(error_of([] { parsed(R"([{},{"attentoin":{"kv":0}}])"); }), HasSubstr("unknown slot"));
    EXPECT_THAT(error_of([] {
                    topology_from_json(R"({"version":2,"layers":[{}],"model":{"attention":{"kv":0}}})",
                                       four_layers());
                }),
                HasSubstr("unknown slot 'attention'"));
}

// ---- validate() ----

struct Misfit {
    const char* what;
    std::function<void(ExpressionBuilder&)> change;
    std::vector<std::string> message;
    ErrorCode code = ErrorCode::input;
};

const std::vector<Misfit>& misfits() {
    static const std::vector<Misfit> all = {
        {"outside the model",
         [](ExpressionBuilder& b) {
             b.model.topology.sources[4] = {0, std::nullopt};
         },
         {"layer 4", "no such layer"}},
        {"itself",
         [](ExpressionBuilder& b) { b.share_probabilities(1, 1); },
         {"layer 1", "layer 1 is not an earlier one"}},
        {"a later one",
         [](ExpressionBuilder& b) { b.share_kv(1, 2); },
         {"layer 1", "layer 2 is not an earlier one"}},
        {"far outside",
         [](ExpressionBuilder& b) { b.share_kv(1, size_t{1} << 40); },
         {"layer 1", "is not an earlier one"}},
        {"both",
         [](ExpressionBuilder& b) {
             b.share_kv(1, 0);
             b.model.topology.sources[1].probabilities = 0;
         },
         {"layer 1", "either"}},
        {"a chain of probabilities",
         [](ExpressionBuilder& b) {
             b.share_probabilities(1, 0);
             b.share_probabilities(2, 1);
         },
         {"layer 2", "layer 1 has none of its own"}},
        {"probabilities of one that borrows keys",
         [](ExpressionBuilder& b) {
             b.share_kv(1, 0);
             b.share_probabilities(2, 1);
         },
         {"layer 2", "layer 1 has none of its own"}},
        {"another number of heads",
         [](ExpressionBuilder& b) {
             b.prune_heads(1, 1);
             b.share_probabilities(1, 0);
         },
         {"layer 1", "1 key/value heads, layer 0 has 2"}},
        {"of a layer without attention",
         [](ExpressionBuilder& b) {
             b.prune_heads(0, 0);
             b.share_kv(1, 0);
         },
         {"layer 1", "layer 0 has 0"}},
        {"for a layer without attention",
         [](ExpressionBuilder& b) {
             b.prune_heads(0, 0);
             b.prune_heads(1, 0);
             b.share_kv(1, 0);
         },
         {"layer 1", "0 key/value heads"}},
        {"beside a prefix",
         [](ExpressionBuilder& b) {
             b.prefix(2);
             b.share_kv(1, 0);
         },
         {"layer 1", "without prefixes"},
         ErrorCode::unsupported},
        {"queries that nobody needs",
         [](ExpressionBuilder& b) {
             b.model.topology.sources[1] = {0, std::nullopt};
         },
         {"layer 1 attn.q", "takes its attention from another"}},
        {"keys that nobody needs",
         [](ExpressionBuilder& b) {
             const Expression key = b.at(1, Slot::attn_k);
             b.share_kv(1, 0);
             b.model.topology.layers[1][Slot::attn_k] = key;
         },
         {"layer 1 attn.k", "takes its attention from another"}},
        {"a bias that nobody needs",
         [](ExpressionBuilder& b) {
             b.share_kv(1, 0);
             b.model.tensors["bias"] = b.model.tensor("blk.1.attn_norm.weight");
             b.model.tensors["bias"].shape = {32};
             b.model.topology.layers[1][Slot::attn_v_bias] = Dense{"bias"};
         },
         {"layer 1 attn.v.bias", "takes its attention from another"}},
        {"values that are missing",
         [](ExpressionBuilder& b) {
             b.share_probabilities(1, 0);
             b.model.topology.layers[1].erase(Slot::attn_v);
         },
         {"layer 1 attn.v is missing"}},
        {"queries that are missing",
         [](ExpressionBuilder& b) {
             b.share_kv(1, 0);
             b.model.topology.layers[1].erase(Slot::attn_q);
         },
         {"layer 1 attn.q is missing"}},
        {"W_c of another shape",
         [](ExpressionBuilder& b) {
             b.compensate(1, Slot::attn_comp);
             b.model.topology.layers[1][Slot::attn_comp] = Dense{"blk.1.ffn_up.weight"};
         },
         {"layer 1 attn.comp", "[64, 96]", "[64, 64]"}},
        {"W_c of the values of another shape",
         [](ExpressionBuilder& b) {
             b.share_probabilities(1, 0);
             b.model.topology.layers[1][Slot::attn_comp_v] = Dense{"blk.1.attn_output.weight"};
         },
         {"layer 1 attn.comp_v", "[64, 64]", "[32, 64]"}},
        {"W_c of heads",
         [](ExpressionBuilder& b) {
             b.model.topology.layers[1][Slot::attn_comp] = Heads{{{"blk.1.attn_q.weight", 0, 4}}};
         },
         {"layer 1 attn.comp", "consist of heads"}},
        {"W_c of values with own attention",
         [](ExpressionBuilder& b) { b.compensate(1, Slot::attn_comp_v); },
         {"layer 1 attn.comp_v", "no use"}},
        {"W_c of values with borrowed keys",
         [](ExpressionBuilder& b) {
             b.share_kv(1, 0);
             b.compensate(1, Slot::attn_comp_v);
         },
         {"layer 1 attn.comp_v", "no use"}},
        {"W_c into attn.o that is not there",
         [](ExpressionBuilder& b) {
             b.prune_heads(1, 0);
             b.model.topology.layers[1][Slot::attn_comp_o] = Dense{"blk.1.ffn_up.weight"};
         },
         {"layer 1 attn.comp_o", "no use", "no attention"}},
        {"W_c after attn.o that is not there",
         [](ExpressionBuilder& b) {
             b.prune_heads(1, 0);
             b.compensate(1, Slot::attn_comp_norm);
         },
         {"layer 1 attn.comp_norm", "no use", "no attention"}},
        {"W_c of the whole model",
         [](ExpressionBuilder& b) {
             b.model.topology.globals[Slot::attn_comp] = Dense{"blk.1.attn_q.weight"};
         },
         {"attn.comp: not a slot of this place"}},
        {"an exit map of a model without loops",
         [](ExpressionBuilder& b) {
             b.model.topology.layers[3][Slot::exit_map] = b.low_rank(3, Slot::exit_map, 2);
         },
         {"layer 3 exit.map", "tokens do not exit here"}},
        {"an exit's output of a model without loops",
         [](ExpressionBuilder& b) {
             b.model.topology.layers[3][Slot::exit_output] = b.low_rank(3, Slot::exit_output, 2);
         },
         {"layer 3 exit.output", "tokens do not exit here"}},
        {"an exit map within a loop",
         [](ExpressionBuilder& b) {
             b.loop(2);
             b.model.topology.layers[0][Slot::exit_map] = b.low_rank(0, Slot::exit_map, 2);
         },
         {"layer 0 exit.map", "tokens do not exit here"}},
        {"an exit map in one piece",
         [](ExpressionBuilder& b) {
             b.loop(2);
             b.model.topology.layers[1][Slot::exit_map] = Dense{"blk.1.attn_output.weight"};
         },
         {"layer 1 exit.map", "two factors"}},
        {"a transposed exit map",
         [](ExpressionBuilder& b) {
             b.loop(2);
             b.model.topology.layers[1][Slot::exit_map] = b.low_rank(1, Slot::exit_map, 2, false, true);
         },
         {"layer 1 exit.map", "two factors"}},
        {"an exit map of another shape",
         [](ExpressionBuilder& b) {
             b.loop(2);
             b.model.topology.layers[1][Slot::exit_map] = b.low_rank(1, Slot::ffn_up, 2);
         },
         {"layer 1 exit.map", "96"}},
    };
    return all;
}

TEST(Sources, WhatDoesNotFitIsRefused) {
    for (const auto& misfit : misfits()) {
        ExpressionBuilder b("llama");
        misfit.change(b);
        const std::string text = error_of([&] { validate(b.model); }, misfit.code);
        for (const auto& part : misfit.message) EXPECT_THAT(text, HasSubstr(part)) << misfit.what;
    }
}

TEST(Sources, EncodersHaveNone) {
    Model model = load_model(std::string(REFOLD_FIXTURES) + "/hf/bert_encoder");
    model.topology.sources[1] = {0, std::nullopt};
    EXPECT_THAT(error_of([&] { validate(model); }, ErrorCode::unsupported), HasSubstr("decoders"));
}

// ---- costs ----

// A 64-wide model with 4 heads of 16, 2 of keys and values.
TEST(Sources, CostByHand) {
    const Accounting plain = account(ExpressionBuilder("llama").finish());
    EXPECT_EQ(plain.model.kv_bytes_per_token, 4U * 2 * 2 * 16 * 2);
    EXPECT_EQ(plain.model.attention_flops_per_context_token, 4U * 4 * 64);

    ExpressionBuilder probabilities("llama");
    expressions::superblock(probabilities);
    const Accounting uniattn = account(probabilities.finish());
    EXPECT_EQ(uniattn.model.kv_bytes_per_token, (2U + 3) * 2 * 16 * 2);
    EXPECT_EQ(uniattn.model.attention_flops_per_context_token, (4U + 3 * 2) * 64);
    EXPECT_EQ(plain.model.parameters - uniattn.model.parameters, 3U * (64 * 64 + 32 * 64));
    EXPECT_EQ(plain.model.flops_per_token - uniattn.model.flops_per_token, 2U * 3 * (64 * 64 + 32 * 64));

    ExpressionBuilder keys("llama");
    keys.share_kv(1, 0);
    keys.share_kv(3, 2);
    const Accounting cla = account(keys.finish());
    EXPECT_EQ(cla.model.kv_bytes_per_token, 2U * 2 * 2 * 16 * 2);
    EXPECT_EQ(cla.model.attention_flops_per_context_token, plain.model.attention_flops_per_context_token);
    EXPECT_EQ(plain.model.parameters - cla.model.parameters, 2U * 2 * 32 * 64);
    EXPECT_EQ(plain.model.flops_per_token - cla.model.flops_per_token, 2U * 2 * 2 * 32 * 64);

    ExpressionBuilder compensated = probabilities;
    compensated.compensate(1, Slot::attn_comp);
    compensated.compensate(2, Slot::attn_comp_v);
    compensated.compensate(3, Slot::attn_comp_o);
    compensated.at(3, Slot::attn_comp_o) = compensated.low_rank(3, Slot::attn_comp_o, 5);
    const uint64_t more = 64 * 64 + 32 * 64 + 5 * (64 + 64);
    const Accounting with = account(compensated.finish());
    EXPECT_EQ(with.model.parameters - uniattn.model.parameters, more);
    EXPECT_EQ(with.model.flops_per_token - uniattn.model.flops_per_token, 2 * more);
    EXPECT_EQ(with.model.kv_bytes_per_token, uniattn.model.kv_bytes_per_token);
}

// Accounting::dense is the model that it was made from.
TEST(Sources, DenseIsTheOriginal) {
    for (const auto& family : kExpressionFamilies) {
        for (const bool biases : {false, true}) {
            if (biases && family != "llama") continue;
            ExpressionBuilder b(family);
            if (biases) {  // the biases that a Llama may have
                for (size_t p = 0; p < b.n_layer(); ++p) {
                    for (const auto& [slot, width] : {std::pair(Slot::attn_q_bias, 64),
                                                      {Slot::attn_k_bias, 32},
                                                      {Slot::attn_v_bias, 32}}) {
                        const std::string name = b.own_tensor(p, slot);
                        b.model.tensors[name] = RandomWeights(1).tensor({width, 1}, 0.0F, 1.0F);
                        b.model.topology.layers[p][slot] = Dense{name};
                    }
                }
            }
            const Cost plain = account(b.finish()).model;
            const std::vector<std::function<void(ExpressionBuilder&)>> changes = {
                [](ExpressionBuilder& c) { expressions::superblock(c); },
                [](ExpressionBuilder& c) {
                    c.share_kv(1, 0);
                    c.share_probabilities(3, 2);
                    c.compensate(3, Slot::attn_comp);
                },
                [](ExpressionBuilder& c) { c.compensate(2, Slot::attn_comp_ffn); },
                [](ExpressionBuilder& c) {
                    c.prune_heads(2, 0);
                    c.compensate(2, Slot::attn_comp);
                    c.share_probabilities(3, 1);
                }};
            for (size_t i = 0; i < changes.size(); ++i) {
                ExpressionBuilder changed = b;
                changes[i](changed);
                const Model model = changed.finish();
                EXPECT_TRUE(model.has_sharing());
                const Cost dense = account(model).dense;
                SCOPED_TRACE(fmt::format("{}, change {}", family, i));
                EXPECT_EQ(dense.parameters, plain.parameters);
                EXPECT_EQ(dense.bytes, plain.bytes);
                EXPECT_EQ(dense.flops_per_token, plain.flops_per_token);
                EXPECT_EQ(dense.kv_bytes_per_token, plain.kv_bytes_per_token);
                EXPECT_EQ(dense.attention_flops_per_context_token, plain.attention_flops_per_context_token);
            }
        }
    }
}

// ---- exports ----

TEST(Sources, HaveNoExport) {
    const TempFolder folder;
    const auto refused = [&](const std::function<void(ExpressionBuilder&)>& change,
                             const std::vector<std::string>& parts) {
        ExpressionBuilder b("llama");
        change(b);
        const Model model = b.finish();
        for (const auto& body :
             std::vector<std::function<void()>>{[&] { without_sharing(model); }, [&] { for_stock(model); },
                                                [&] { save_hf_model(model, folder / "hf", {}); }}) {
            const std::string text = error_of(body, ErrorCode::unsupported);
            for (const auto& part : parts) EXPECT_THAT(text, HasSubstr(part));
        }
        EXPECT_FALSE(std::filesystem::exists(folder / "hf"));
    };
    refused(
        [](ExpressionBuilder& b) { b.share_probabilities(2, 1); },
        {"llama model 1", "layer 2 takes its attention probabilities from layer 1", "refold's own format"});
    refused([](ExpressionBuilder& b) { b.share_kv(3, 1); },
            {"llama model 1", "layer 3 takes its keys and values from layer 1", "refold's own format"});
    refused([](ExpressionBuilder& b) { b.compensate(1, Slot::attn_comp); },
            {"llama model 1", "layer 1 has attn.comp", "refold's own format"});
}

TEST(Sources, SurviveTheFile) {
    const TempFolder folder;
    for (uint32_t seed = 1; seed <= 20; ++seed) {
        const Model model = random_expression_model(seed, {.sizes = true, .prefix = false, .sources = true});
        save_model(model, folder / "model.gguf", true);
        const Model loaded = load_model(folder / "model.gguf");
        EXPECT_EQ(loaded.topology, model.topology) << seed;
        EXPECT_EQ(loaded.has_sharing(), model.has_sharing()) << seed;
        EXPECT_EQ(account(loaded).model.kv_bytes_per_token, account(model).model.kv_bytes_per_token) << seed;
    }
}

}  // namespace
}  // namespace refold
