// A llama with random weights of one type.
#pragma once

#include <map>
#include <random>

#include "model/small_model.h"

namespace refold {

constexpr SmallShape kRandomShape{
    .layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 32, .embd = 64, .ff = 96, .vocab = 96};

// All matrices are of `type`, vectors around 1.
inline Model random_model(DType type, uint32_t seed, const SmallShape& shape = kRandomShape) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 0.15F);
    const auto weight = [&](size_t, Slot slot, int64_t, int64_t) {
        return is_vector(slot) ? 1.0F + normal(random) : normal(random);
    };
    std::map<Slot, DType> types;
    for (const Slot slot : {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o, Slot::ffn_gate,
                            Slot::ffn_up, Slot::ffn_down, Slot::token_embd})
        types[slot] = type;
    return small_model(shape, weight, types);
}

}  // namespace refold
