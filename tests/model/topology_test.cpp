#include "model/topology.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace refold {
namespace {

Topology two_layers() {
    Topology t;
    for (const char* layer : {"blk.0.", "blk.1."}) {
        t.positions.push_back({{Slot::attn_q, Dense{layer + std::string("attn_q.weight")}},
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
    EXPECT_EQ(topology_to_json(two_layers(), two_layers()), R"({"positions":[{},{}],"version":1})");
    EXPECT_EQ(topology_from_json(R"({"positions":[{},{}],"version":1})", two_layers()), two_layers());
}

TEST(Topology, SharingRoundTrips) {
    Topology t = two_layers();
    t.positions[1][Slot::attn_q] = Heads{{{"blk.0.attn_q.weight", 2, 1}, {"blk.1.attn_q.weight", 0, 3}}};
    t.positions[1][Slot::ffn_up] = Dense{"blk.0.ffn_up.weight"};
    t.positions[0].erase(Slot::attn_o);
    t.positions.push_back(t.positions[1]);
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
    EXPECT_NE(error_of(R"({"version":2,"positions":[{}]})", ErrorCode::unsupported).find("version 2"),
              std::string::npos);
    EXPECT_NE(error_of(R"({"version":1,"positions":[{}],"magic":1})").find("magic"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":1})").find("positions"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":1,"positions":[]})").find("positions"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":1,"positions":[{},7]})").find("position 1"), std::string::npos);
    const std::string slot = error_of(R"({"version":1,"positions":[{"attn.qq":"x"}]})");
    EXPECT_NE(slot.find("did you mean 'attn.q'"), std::string::npos) << slot;
    const std::string field =
        error_of(R"({"version":1,"positions":[{},{"attn.q":{"heads":[["x",0,1]],"axis":0}}]})");
    EXPECT_NE(field.find("position 1 attn.q"), std::string::npos) << field;
    for (const char* run : {"[]", R"([["x",0]])", R"([["x",-1,1]])", R"([["x",0,0]])", R"([[3,0,1]])",
                            R"(["x"])", R"([["x",0,1.5]])"}) {
        error_of(fmt::format(R"({{"version":1,"positions":[{{"attn.q":{{"heads":{}}}}}]}})", run));
    }
}

TEST(Topology, CyclesOfLikeAreRefused) {
    EXPECT_NE(error_of(R"({"version":1,"positions":[{"like":1},{"like":0}]})").find("cycle"),
              std::string::npos);
    EXPECT_NE(error_of(R"({"version":1,"positions":[{"like":0},{}]})").find("cycle"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":1,"positions":[{"like":2},{}]})").find("below 2"), std::string::npos);
    EXPECT_NE(error_of(R"({"version":1,"positions":[{"like":"x"},{}]})").find("like"), std::string::npos);
    // Forward references and overrides are fine.
    const Topology t =
        topology_from_json(R"({"version":1,"positions":[{"like":1,"attn.o":null},{}]})", two_layers());
    EXPECT_EQ(t.positions[0].size(), 1u);
    EXPECT_EQ(t.positions[0].at(Slot::attn_q), two_layers().positions[1].at(Slot::attn_q));
}

TEST(Topology, SlotNamesAreABijection) {
    for (int s = 0; s <= static_cast<int>(Slot::rope_freqs); ++s) {
        const auto slot = static_cast<Slot>(s);
        EXPECT_EQ(slot_from_name(slot_name(slot)), slot);
    }
}

}  // namespace
}  // namespace refold
