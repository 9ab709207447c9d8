#include "model/topology.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace refold {
namespace {

Topology two_layers() {
    Topology t;
    for (const char* layer : {"blk.0.", "blk.1."}) {
        t.layers.push_back({{Slot::attn_q, Dense{layer + std::string("attn_q.weight")}},
                            {Slot::attn_o, Dense{layer + std::string("attn_output.weight")}}});
    }
    t.globals = {{Slot::token_embd, Dense{"token_embd.weight"}}, {Slot::output, Dense{"token_embd.weight"}}};
    return t;
}

std::string error_of(const std::string& json, ErrorCode code = ErrorCode::input) {
    try {
        topology_from_json(json, two_layers());
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        return error.what();
    }
    ADD_FAILURE() << "accepted: " << json;
    return "";
}

TEST(Topology, ImpliedTopologyIsEmptyJson) {
    EXPECT_EQ(topology_to_json(two_layers(), two_layers()), R"({"layers":[{},{}],"version":2})");
    EXPECT_EQ(topology_from_json(R"({"layers":[{},{}],"version":2})", two_layers()), two_layers());
}

TEST(Topology, SharingRoundTrips) {
    Topology t = two_layers();
    t.layers[1][Slot::attn_q] = Heads{{{"blk.0.attn_q.weight", 2, 1}, {"blk.1.attn_q.weight", 0, 3}}};
    t.layers[1][Slot::ffn_up] = Dense{"blk.0.ffn_up.weight"};
    t.layers[0].erase(Slot::attn_o);
    t.layers.push_back(t.layers[1]);
    t.globals[Slot::output] = Dense{"output.weight"};
    const std::string json = topology_to_json(t, two_layers());
    EXPECT_NE(json.find(R"({"like":1})"), std::string::npos) << json;
    EXPECT_EQ(topology_from_json(json, two_layers()), t);
}

TEST(Topology, HeadsExpandAndCollapse) {
    const Heads heads{{{"a", 1, 2}, {"b", 0, 1}, {"a", 3, 1}}};
    const std::vector<HeadRef> refs = {{"a", 1}, {"a", 2}, {"b", 0}, {"a", 3}};
    EXPECT_EQ(expand(heads), refs);
    EXPECT_EQ(collapse(refs), heads);
    EXPECT_EQ(collapse({{"a", 0}, {"a", 1}, {"a", 0}}), (Heads{{{"a", 0, 2}, {"a", 0, 1}}}));
    EXPECT_EQ(tensors_of(heads), (std::vector<std::string>{"a", "b"}));
}

TEST(Topology, ErrorsNameThePlace) {
    EXPECT_NE(error_of("{").find("not valid JSON"), std::string::npos);
    EXPECT_NE(error_of("{}").find("version"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":3,"layers":[{}]})", ErrorCode::unsupported).find("version 3"),
              std::string::npos);
    EXPECT_NE(error_of(R"({"version":2,"layers":[{}],"magic":1})").find("magic"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":2})").find("layers"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":2,"layers":[]})").find("layers"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":2,"layers":[{},7]})").find("layer 1"), std::string::npos);
    const std::string slot = error_of(R"({"version":2,"layers":[{"attn.qq":"x"}]})");
    EXPECT_NE(slot.find("did you mean 'attn.q'"), std::string::npos) << slot;
    const std::string field =
        error_of(R"({"version":2,"layers":[{},{"attn.q":{"heads":[["x",0,1]],"axis":0}}]})");
    EXPECT_NE(field.find("layer 1 attn.q"), std::string::npos) << field;
    for (const char* run :
         {"[]", R"([["x",0]])", R"([["x",-1,1]])", R"([["x",0,0]])", R"([[3,0,1]])", R"(["x"])",
          R"([["x",0,1.5]])", R"([["x",1,9223372036854775807]])", R"([["x",18446744073709551615,1]])"}) {
        error_of(fmt::format(R"({{"version":2,"layers":[{{"attn.q":{{"heads":{}}}}}]}})", run));
    }
}

TEST(Topology, EveryExpressionRoundTrips) {
    const LowRank plain{"u", "v"}, scaled{"u", "v", "s", 2, true};
    const Tucker tucker{"c", "m", "h", "r", 3};
    Tucker turned = tucker;
    turned.transposed = turned.halves = true;
    const Heads heads{{{"x", 2, 1}, {"y", 0, 3}}};
    for (const Expression& expression : {Expression(Dense{"x"}), Expression(heads), Expression(plain),
                                         Expression(scaled), Expression(tucker), Expression(turned),
                                         Expression(Plus{Dense{"x"}, plain}), Expression(Plus{heads, scaled}),
                                         Expression(Plus{scaled, plain}), Expression(Plus{turned, scaled})}) {
        Topology t = two_layers();
        t.layers[1][Slot::attn_q] = expression;
        t.globals[Slot::output] = expression;
        t.loops = 2;
        EXPECT_EQ(topology_from_json(topology_to_json(t, two_layers()), two_layers()), t);
    }
    // The documented form.
    Topology t = two_layers();
    t.layers[1][Slot::attn_q] = Plus{turned, scaled};
    EXPECT_EQ(
        topology_to_json(t, two_layers()),
        R"({"layers":[{},{"attn.q":{"plus":[{"tucker":{"core":"c","halves":true,"head":"h","model":"m",)"
        R"("role":3,"roles":"r","transposed":true}},{"low_rank":{"row":2,"scale":"s","transposed":true,)"
        R"("u":"u","v":"v"}}]}}],"version":2})");
}

TEST(Topology, TensorsOfExpressions) {
    const LowRank term{"u", "v", "s", 0};
    const Plus plus{Tucker{"c", "m", "h", "r", 0}, term};
    EXPECT_EQ(tensors_of(plus), (std::vector<std::string>{"c", "m", "h", "r", "u", "v", "s"}));
    EXPECT_EQ(tensors_of(Plus{Dense{"u"}, term}), (std::vector<std::string>{"u", "v", "s"}));
    EXPECT_EQ(tensors_of(LowRank{"u", "v"}), (std::vector<std::string>{"u", "v"}));
    for (const auto& [name, small] :
         {std::pair("c", false), {"m", false}, {"h", true}, {"r", true}, {"u", false}, {"s", true}})
        EXPECT_EQ(is_small_factor(plus, name), small) << name;
    EXPECT_FALSE(is_small_factor(Dense{"s"}, "s"));
    EXPECT_EQ(base_of(plus), (Expression(Tucker{"c", "m", "h", "r", 0})));
    EXPECT_EQ(base_of(term), Expression(term));
}

TEST(Topology, MalformedExpressionsAreRefused) {
    const std::string low_rank = R"({"low_rank":{"u":"u","v":"v"}})";
    for (const auto& [json, part] : std::vector<std::pair<std::string, std::string>>{
             {"7", "expected a tensor name"},
             {"[]", "expected a tensor name"},
             {"{}", "expected a tensor name"},
             {R"({"sparse":{}})", "expected a tensor name"},
             {R"({"low_rank":{"u":"u","v":"v"},"heads":[["x",0,1]]})", "expected a tensor name"},
             {R"({"low_rank":[]})", "expected an object"},
             {R"({"low_rank":"u"})", "expected an object"},
             {R"({"low_rank":{"u":"u"}})", "\"v\" is missing"},
             {R"({"low_rank":{"v":"v"}})", "\"u\" is missing"},
             {R"({"low_rank":{"u":1,"v":"v"}})", "\"u\" must be a tensor's name"},
             {R"({"low_rank":{"u":"","v":"v"}})", "\"u\" must be a tensor's name"},
             {R"({"low_rank":{"u":"u","v":"v","rank":3}})", "unknown field \"rank\""},
             {R"({"low_rank":{"u":"u","v":"v","scale":"s"}})", "\"row\" is missing"},
             {R"({"low_rank":{"u":"u","v":"v","row":1}})", "unknown field \"row\""},
             {R"({"low_rank":{"u":"u","v":"v","scale":"s","row":-1}})", "\"row\" must be an index"},
             {R"({"low_rank":{"u":"u","v":"v","scale":"s","row":1.0}})", "\"row\" must be an index"},
             {R"({"low_rank":{"u":"u","v":"v","scale":"s","row":1e30}})", "\"row\" must be an index"},
             {R"({"low_rank":{"u":"u","v":"v","scale":"s","row":18446744073709551615}})",
              "\"row\" must be an index"},
             {R"({"low_rank":{"u":"u","v":"v","scale":"s","row":1099511627777}})",
              "\"row\" must be an index"},
             {R"({"low_rank":{"u":"u","v":"v","transposed":1}})", "\"transposed\" must be true or false"},
             {R"({"low_rank":{"u":"u","v":"v","transposed":null}})", "\"transposed\" must be true or false"},
             {R"({"low_rank":{"u":"u","v":"v","halves":true}})", "unknown field \"halves\""},
             {R"({"tucker":{"core":"c","model":"m","head":"h","roles":"r"}})", "\"role\" is missing"},
             {R"({"tucker":{"core":"c","model":"m","head":"h","role":0}})", "\"roles\" is missing"},
             {R"({"tucker":{"core":"c","model":"m","roles":"r","role":0}})", "\"head\" is missing"},
             {R"({"tucker":{"core":"c","head":"h","roles":"r","role":0}})", "\"model\" is missing"},
             {R"({"tucker":{"model":"m","head":"h","roles":"r","role":0}})", "\"core\" is missing"},
             {R"({"tucker":{"core":"c","model":"m","head":"h","roles":"r","role":-1}})",
              "\"role\" must be an index"},
             {R"({"tucker":{"core":"c","model":"m","head":"h","roles":"r","role":18446744073709551615}})",
              "\"role\" must be an index"},
             {R"({"tucker":{"core":"c","model":"m","head":"h","roles":"r","role":0,"halves":"yes"}})",
              "\"halves\" must be true or false"},
             {R"({"tucker":{"core":"c","model":"m","head":"h","roles":"r","role":0,"axis":1}})",
              "unknown field \"axis\""},
             {R"({"plus":"x"})", "\"plus\" must be"},
             {R"({"plus":["x"]})", "\"plus\" must be"},
             {R"({"plus":["x",)" + low_rank + "," + low_rank + "]}", "\"plus\" must be"},
             {R"({"plus":["x","y"]})", "must be low_rank"},
             {R"({"plus":["x",{"heads":[["x",0,1]]}]})", "must be low_rank"},
             {R"({"plus":[)" + low_rank + R"(,"x"]})", "must be low_rank"},
             {R"({"plus":[{"plus":["x",)" + low_rank + "]}," + low_rank + "]}", "expected a tensor name"},
             {R"({"plus":["x",{"plus":["x",)" + low_rank + "]}]}", "expected a tensor name"},
             {R"({"plus":[null,)" + low_rank + "]}", "expected a tensor name"}}) {
        const std::string where = error_of(R"({"version":2,"layers":[{},{"attn.q":)" + json + "}]}");
        EXPECT_NE(where.find("layer 1 attn.q"), std::string::npos) << where;
        EXPECT_NE(where.find(part), std::string::npos) << json << ": " << where;
        const std::string model = error_of(R"({"version":2,"layers":[{}],"model":{"output":)" + json + "}}");
        EXPECT_NE(model.find("model output"), std::string::npos) << model;
    }
}

TEST(Topology, LoopsDivideTheLayers) {
    const auto with_loops = [](const std::string& loops) {
        return R"({"version":2,"layers":[{},{},{},{}],"loops":)" + loops + "}";
    };
    for (const char* loops : {"1", "2", "4"})
        EXPECT_EQ(topology_from_json(with_loops(loops), two_layers()).loops, std::stoi(loops));
    for (const char* loops : {"0", "3", "8", "-2", "2.0", "\"2\"", "null", "true", "18446744073709551614"})
        EXPECT_NE(error_of(with_loops(loops)).find("loops"), std::string::npos) << loops;
}

// The chain may be as long as the file makes it.
TEST(Topology, LongChainsOfLike) {
    std::string json = R"({"version":2,"layers":[)";
    constexpr size_t kLayers = 100000;
    for (size_t p = 1; p < kLayers; ++p) json += fmt::format("{{\"like\":{}}},", p);
    const Topology t = topology_from_json(json + R"({"attn.q":"x"}]})", two_layers());
    EXPECT_EQ(t.layers.size(), kLayers);
    EXPECT_EQ(t.layers[0].at(Slot::attn_q), Expression(Dense{"x"}));
    EXPECT_NE(error_of(json + R"({"like":5}]})").find("cycle"), std::string::npos);
}

TEST(Topology, CyclesOfLikeAreRefused) {
    EXPECT_NE(error_of(R"({"version":2,"layers":[{"like":1},{"like":0}]})").find("cycle"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":2,"layers":[{"like":0},{}]})").find("cycle"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":2,"layers":[{"like":2},{}]})").find("below 2"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":2,"layers":[{"like":"x"},{}]})").find("like"), std::string::npos);
    // Forward references and overrides are fine.
    const Topology t =
        topology_from_json(R"({"version":2,"layers":[{"like":1,"attn.o":null},{}]})", two_layers());
    EXPECT_EQ(t.layers[0].size(), 1u);
    EXPECT_EQ(t.layers[0].at(Slot::attn_q), two_layers().layers[1].at(Slot::attn_q));
}

TEST(Topology, StoredLayersHaveAMatrixOfTheirOwn) {
    Topology t = two_layers();
    EXPECT_EQ(t.stored_layers(), 2U);
    t.layers.insert(t.layers.end(), {t.layers[1], t.layers[0]});  // rounds in opposite orders
    t.loops = 2;
    EXPECT_EQ(t.stored_layers(), 2U);
    // Norms, LoRA, W_c and exit maps do not make another layer of it.
    t.layers[2][Slot::attn_norm] = Dense{"blk.2.attn_norm.weight"};
    t.layers[2][Slot::attn_q] = Plus{Dense{"blk.1.attn_q.weight"}, LowRank{"b", "a"}};
    t.layers[3][Slot::attn_comp] = Dense{"blk.3.attn.comp"};
    t.layers[1][Slot::exit_map] = LowRank{"u", "v"};
    EXPECT_EQ(t.stored_layers(), 2U);
    // The matrices of two other layers are no new one, heads of two are.
    t.layers.push_back(
        {{Slot::attn_q, t.layers[0][Slot::attn_q]}, {Slot::attn_o, t.layers[1][Slot::attn_o]}});
    EXPECT_EQ(t.stored_layers(), 2U);
    t.layers[4][Slot::attn_q] = Heads{{{"blk.0.attn_q.weight", 0, 1}, {"blk.1.attn_q.weight", 0, 1}}};
    EXPECT_EQ(t.stored_layers(), 3U);
    // A pruned layer stores nothing.
    t.layers.emplace_back();
    EXPECT_EQ(t.stored_layers(), 3U);
    // A matrix of a decomposition that several layers have in common is its layer's own.
    t.layers[2][Slot::attn_q] = Tucker{"c", "m", "h", "r", 0};
    t.layers[3][Slot::attn_q] = Tucker{"c", "m", "h", "r", 1};
    EXPECT_EQ(t.stored_layers(), 5U);
}

}  // namespace
}  // namespace refold
