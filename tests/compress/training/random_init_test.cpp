#include <cmath>
#include <nlohmann/json.hpp>

#include "compress/calibrated.h"

namespace refold {
namespace {

double deviation(const std::vector<float>& values) {
    double square = 0;
    for (const float x : values) square += static_cast<double>(x) * x;
    return std::sqrt(square / static_cast<double>(values.size()));
}

TEST(RandomInit, EveryWeightIsReplaced) {
    for (const char* name : {"llama_gqa", "gpt_neox", "gemma"}) {
        SCOPED_TRACE(name);
        const Model model = fixture_model(name);
        const Compression made = planned(model, {"random_init std=0.05 seed=3 type=f32"});
        const Model out = saved_and_loaded(made.model);
        EXPECT_EQ(out.topology, model.topology);
        // The rotation's frequencies stay.
        const auto& globals = out.topology.globals;
        const uint64_t kept = globals.contains(Slot::rope_freqs)
                                  ? materialize(out, globals.at(Slot::rope_freqs), Slot::rope_freqs).size()
                                  : 0;
        EXPECT_EQ(details_of(made)["parameters"], account(model).model.parameters - kept);
        for (size_t p = 0; p < model.topology.layers.size(); ++p) {
            for (const auto& [slot, expression] : model.topology.layers[p]) {
                const auto values = weight(out, p, slot);
                if (is_matrix(slot)) {
                    EXPECT_NEAR(deviation(values), 0.05, 0.006) << slot_name(slot);
                } else {
                    const bool gain = properties(slot).kind == SlotKind::norm_gain;
                    EXPECT_EQ(values, std::vector<float>(values.size(), gain ? 1.0F : 0.0F))
                        << slot_name(slot);
                }
            }
        }
        EXPECT_NE(weight(out, 0, Slot::attn_q), weight(out, 1, Slot::attn_q));
        for (const Slot slot : {Slot::token_embd, Slot::output})
            EXPECT_NEAR(deviation(materialize(out, globals.at(slot), slot)), 0.05, 0.006);
    }
}

TEST(RandomInit, OfASmallerAndOfALoopedModel) {
    const Model model = fixture_model("llama_gqa");
    const Model smaller = planned(model, {"repeat layers=0", "random_init"}).model;
    EXPECT_EQ(smaller.topology.layers.size(), 1U);
    const Model looped = planned(model, {"recursive loops=2", "random_init seed=1"}).model;
    EXPECT_EQ(looped.topology.loops, 2);
    EXPECT_EQ(weight(looped, 0, Slot::attn_q),
              weight(looped, model.topology.layers.size() / 2, Slot::attn_q));
    EXPECT_EQ(weight(looped, 0, Slot::attn_q),
              weight(planned(model, {"random_init seed=1"}).model, 0, Slot::attn_q));
    expect_error(ErrorCode::unsupported, {"random_init", "layer", "do this step first"}, [&] {
        planned(model, {"direct_share ratio=0.3", "random_init"});
    });
}

}  // namespace
}  // namespace refold
