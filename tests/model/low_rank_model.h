// Looped and low-rank topologies made by hand.
#pragma once

#include "model/small_model.h"

namespace refold {

// The first layers / loops positions again and again.
inline Model looped(Model model, size_t loops) {
    auto& positions = model.topology.positions;
    const size_t block = positions.size() / loops;
    for (size_t p = block; p < positions.size(); ++p) positions[p] = positions[p % block];
    model.topology.loops = static_cast<int64_t>(loops);
    model.drop_unreferenced();
    validate(model);
    return model;
}

// A float32 LoRA of `rank` beside what the position has; its elements are at most `size`.
inline void add_lora(Model& model, size_t position, Slot slot, int64_t rank, float size = 0.3F) {
    const SlotShape shape = slot_shape(slot, model.config, position);
    const std::string name = fmt::format("lora.{}.{}", position, slot_name(slot));
    const auto add = [&](const std::string& tensor, size_t salt, int64_t width, int64_t rows) {
        std::vector<float> values;
        for (int64_t i = 0; i < width * rows; ++i)
            values.push_back(size * scattered(position + salt, slot, i / width, i % width));
        model.tensors[tensor] = float_tensor({width, rows}, values);
    };
    add(name + ".b", 101, rank, shape.out);
    add(name + ".a", 202, shape.in, rank);
    auto& expression = model.topology.positions[position].at(slot);
    expression = Plus{std::get<Dense>(expression), LowRank{name + ".b", name + ".a"}};
    validate(model);
}

}  // namespace refold
