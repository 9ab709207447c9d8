// A model that shares heads, without weights.
#pragma once

#include "model/model.h"

namespace refold {

// Three layers of two KV groups with two query heads each. The second group of layer 2 uses the first group
// of layer 0.
inline Model shared_model() {
    Model model;
    model.label = "hand-made";
    model.family = &find_family("llama");
    model.config.n_embd = 8;
    model.config.n_head = 4;
    model.config.n_head_kv = 2;
    model.config.head_dim = 2;
    model.topology = implied_topology(*model.family, model.config, 3, [](const std::string& name) {
        return name.find("bias") == std::string::npos && name.find("ffn_gate_inp") == std::string::npos;
    });
    auto& slots = model.topology.layers[2];
    slots[Slot::attn_q] = Heads{{{"blk.2.attn_q.weight", 0, 2}, {"blk.0.attn_q.weight", 0, 2}}};
    slots[Slot::attn_k] = Heads{{{"blk.2.attn_k.weight", 0, 1}, {"blk.0.attn_k.weight", 0, 1}}};
    return model;
}

}  // namespace refold
