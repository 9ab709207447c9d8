// Random adapters, and models with an adapter's terms in their topology.
#pragma once

#include <random>
#include <vector>

#include "engine/expression_models.h"
#include "model/adapter/adapter.h"

namespace refold {

inline const std::vector<Slot> kAdapted = {Slot::attn_q,   Slot::attn_k, Slot::attn_v,   Slot::attn_o,
                                           Slot::ffn_gate, Slot::ffn_up, Slot::ffn_down, Slot::output};

// Of some of these slots, with different ranks.
inline Adapter random_adapter(const Model& model, uint32_t seed, const std::vector<Slot>& slots = kAdapted) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.2F);
    Adapter out{"adapter " + std::to_string(seed), {}};
    const auto add = [&](size_t layer, Slot slot) {
        const Topology& topology = model.topology;
        const Slots& slots_there = layer == kWholeModel ? topology.globals : topology.layers[layer];
        if (!slots_there.contains(slot) || random() % 5 == 0) return;
        const SlotShape shape = slot_shape(slot, model.config, layer);
        Adapter::Term term;
        term.layer = layer;
        term.slot = slot;
        term.rank = 1 + static_cast<int64_t>(random() % 20);
        term.scale = random() % 2 == 0 ? 2.0F : 0.7F;
        term.a.resize(static_cast<size_t>(term.rank * shape.in));
        term.b.resize(static_cast<size_t>(term.rank * shape.out));
        for (auto* factor : {&term.a, &term.b})
            for (float& x : *factor) x = normal(random);
        out.terms.push_back(std::move(term));
    };
    for (const Slot slot : slots) {
        if (slot == Slot::output)
            add(kWholeModel, slot);
        else
            for (size_t l = 0; l < model.topology.layers.size(); ++l) add(l, slot);
    }
    return out;
}

inline Model with_adapter(Model model, const Adapter& adapter) {
    const auto put = [&](const std::string& name, std::vector<int64_t> shape, std::vector<float> values) {
        Tensor tensor{DType::F32, std::move(shape), {}, {}};
        tensor.produce = [values = std::move(values)] {
            return quantize(DType::F32, values, static_cast<int64_t>(values.size()));
        };
        model.tensors[name] = std::move(tensor);
    };
    for (const Adapter::Term& term : adapter.terms) {
        Slots& slots = term.layer == kWholeModel ? model.topology.globals : model.topology.layers[term.layer];
        const std::string name = fmt::format("adapter.{}.{}", term.layer, slot_name(term.slot));
        std::vector<float> a = term.a;
        for (float& x : a) x *= term.scale;
        const auto in = static_cast<int64_t>(a.size()) / term.rank,
                   rows = static_cast<int64_t>(term.b.size()) / term.rank;
        put(name + ".u", {term.rank, rows}, term.b);
        put(name + ".v", {in, term.rank}, std::move(a));
        const Base base = std::visit(
            [](const auto& e) -> Base {
                if constexpr (std::is_constructible_v<Base, decltype(e)>) return e;
                fail(ErrorCode::internal, "test", "no base for a LoRA");
            },
            slots.at(term.slot));
        slots.at(term.slot) = Plus{base, LowRank{.u = name + ".u", .v = name + ".v"}};
    }
    return model;
}

}  // namespace refold
