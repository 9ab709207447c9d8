// Compares the choice of heads with an independent implementation, on a model with random weights in which
// some heads resemble heads of earlier layers.
#include <fstream>
#include <nlohmann/json.hpp>

#include "compress/small_model.h"
#include "model/load.h"
#include "model/validate.h"

#ifndef REFOLD_FIXTURES
#define REFOLD_FIXTURES "tests/fixtures"
#endif

namespace refold {
namespace {

using nlohmann::json;

std::vector<Slot> slots_of(const std::string& letters) {
    std::vector<Slot> slots;
    for (const char c : letters)
        slots.push_back(c == 'q' ? Slot::attn_q : c == 'k' ? Slot::attn_k : Slot::attn_v);
    return slots;
}

class DirectShareGolden : public testing::TestWithParam<std::string> {
protected:
    static json golden() {
        std::ifstream file(REFOLD_FIXTURES "/directshare/directshare.json");
        return json::parse(file)["strategies"][GetParam()];
    }
    static Model model() { return load_model(REFOLD_FIXTURES "/llama/model.gguf"); }
};

TEST_P(DirectShareGolden, Matches) {
    const auto matches = best_head_matches(model(), slots_of(GetParam()), kQkvo);
    const json expected = golden()["match"];
    ASSERT_EQ(matches.size(), expected.size());
    for (size_t i = 0; i < matches.size(); ++i) {
        const json& e = expected[i];
        EXPECT_EQ(matches[i].later, (Unit{e["layer"], e["head"]}));
        EXPECT_EQ(matches[i].former, (Unit{e["match_layer"], e["match_head"]}));
        EXPECT_NEAR(matches[i].cosine, e["cosine"], 1e-9);
    }
}

std::vector<Replacement> replacements_of(const json& entries) {
    std::vector<Replacement> out;
    for (const auto& e : entries) out.push_back({{e["layer"], e["head"]}, {e["from_layer"], e["from_head"]}});
    return out;
}

TEST_P(DirectShareGolden, PairsAndChains) {
    const Model original = model();
    const auto matches = best_head_matches(original, slots_of(GetParam()), kQkvo);
    const json ratios = golden()["ratios"];
    ASSERT_FALSE(ratios.empty());
    for (const auto& [ratio, expected] : ratios.items()) {
        const auto selected = largest(matches, static_cast<size_t>(std::stod(ratio) * 16 + 1e-9));
        const auto all_pairs = resolve(selected, Chain::one_hop);
        const auto effective = resolve(selected, Chain::repo);
        EXPECT_EQ(all_pairs, replacements_of(expected["pairs"])) << ratio;
        EXPECT_EQ(effective, replacements_of(expected["effective"])) << ratio;
        EXPECT_EQ(selected.size() - effective.size(), expected["restored"].size()) << ratio;

        std::vector<Requantized> none;
        for (const auto& replacements : {all_pairs, effective}) {
            const Model shared = share_heads(original, replacements, kQkvo, none);
            validate(shared);
            std::map<Unit, Unit> source;
            for (const auto& r : replacements) source[r.unit] = r.source;
            expect_units(shared, original, source, kQkvo);
        }
        EXPECT_TRUE(none.empty());
    }
}

INSTANTIATE_TEST_SUITE_P(Strategies, DirectShareGolden, testing::Values("qk", "q", "k", "v", "qkv"),
                         [](const auto& strategy) { return strategy.param; });

}  // namespace
}  // namespace refold
