// Random looped models whose loops differ in LoRA, norms and biases, and the same models with fewer loops.
#pragma once

#include <vector>

#include "engine/expression_models.h"

namespace refold {

struct LoopedShape {
    int64_t loops = 3, layers = 2;  // of the block
    bool lora = true;               // of every layer, of different ranks; some matrices have none
    bool vectors = true;            // norms and biases of every layer's own
    int64_t rank = 5;               // the smallest
    bool exit_maps = false;         // of all loops but the last, of different ranks
    bool exit_outputs = false;      // likewise
    ExpressionShape sizes = {};
};

inline ExpressionBuilder looped_builder(const std::string& family, const LoopedShape& shape, uint32_t seed) {
    ExpressionShape sizes = shape.sizes;
    sizes.layers = shape.loops * shape.layers;
    ExpressionBuilder b(family, seed, sizes);
    b.loop(shape.loops);
    for (size_t p = 0; p < b.n_layer(); ++p) {
        for (auto& [slot, expression] : b.model.topology.layers[p]) {
            const auto loop = static_cast<int64_t>(p) / shape.layers;
            if (is_vector(slot)) {
                if (shape.vectors) expression = Dense{b.own_tensor(p, slot)};
            } else if (shape.lora && !(slot == Slot::attn_k && loop == 1)) {
                expression =
                    b.plus(p, slot, std::get<Dense>(expression), shape.rank + loop * shape.rank, loop == 2);
            }
        }
        const auto next = static_cast<int64_t>(p) + 1, end = static_cast<int64_t>(b.n_layer());
        if (shape.exit_maps && next % shape.layers == 0 && next < end)
            b.model.topology.layers[p][Slot::exit_map] = b.low_rank(p, Slot::exit_map, 2 + next, next == 2);
        if (shape.exit_outputs && next % shape.layers == 0 && next < end)
            b.model.topology.layers[p][Slot::exit_output] =
                b.low_rank(p, Slot::exit_output, 1 + next, next == 2);
    }
    return b;
}

inline Model looped_model(const std::string& family, const LoopedShape& shape = {}, uint32_t seed = 1) {
    return looped_builder(family, shape, seed).finish();
}

inline Model first_loops(Model model, int64_t loops) {
    Topology& topology = model.topology;
    const size_t block = topology.layers.size() / static_cast<size_t>(topology.loops);
    topology.layers.resize(block * static_cast<size_t>(loops));
    topology.loops = loops;
    std::erase_if(topology.sources, [&](const auto& entry) { return entry.first >= topology.layers.size(); });
    return model;
}

}  // namespace refold
