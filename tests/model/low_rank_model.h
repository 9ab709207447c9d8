// Looped and low-rank topologies made by hand.
#pragma once

#include "model/small_model.h"
#include "model/validate.h"

namespace refold {

// Loops over the first layers / loops layers.
inline Model looped(Model model, size_t loops) {
    auto& layers = model.topology.layers;
    const size_t block = layers.size() / loops;
    for (size_t p = block; p < layers.size(); ++p) layers[p] = layers[p % block];
    model.topology.loops = static_cast<int64_t>(loops);
    model.drop_unreferenced();
    validate(model);
    return model;
}

// Adds float32 LoRA of `rank` to the layer's weight; its elements are at most `size`.
inline void add_lora(Model& model, size_t layer, Slot slot, int64_t rank, float size = 0.3F) {
    const SlotShape shape = slot_shape(slot, model.config, layer);
    const std::string name = fmt::format("lora.{}.{}", layer, slot_name(slot));
    const auto add = [&](const std::string& tensor, size_t salt, int64_t width, int64_t rows) {
        std::vector<float> values;
        for (int64_t i = 0; i < width * rows; ++i)
            values.push_back(size * scattered(layer + salt, slot, i / width, i % width));
        model.tensors[tensor] = float_tensor({width, rows}, values);
    };
    add(name + ".b", 101, rank, shape.out);
    add(name + ".a", 202, shape.in, rank);
    auto& expression = model.topology.layers[layer].at(slot);
    expression = Plus{std::get<Dense>(expression), LowRank{name + ".b", name + ".a"}};
    validate(model);
}

}  // namespace refold
