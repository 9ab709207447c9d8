#include "model/export/nanbeige.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "model/families/common.h"

namespace refold {
namespace {

constexpr const char* kName = "nanbeige";
constexpr size_t kMaxPositions = 512;  // LLAMA_MAX_LAYERS

bool same_layer(const Model& model, size_t a, size_t b) {
    const ModelConfig& c = model.config;
    return model.topology.positions[a] == model.topology.positions[b] && c.window(a) == c.window(b) &&
           c.n_head_kv_of(a) == c.n_head_kv_of(b) && c.n_ff_of(a) == c.n_ff_of(b);
}

// Positions of the shortest block that the model repeats; all of them when it repeats none.
size_t block_of(const Model& model) {
    const size_t positions = model.topology.positions.size();
    for (size_t block = 1; block < positions; ++block) {
        if (positions % block != 0) continue;
        bool repeats = true;
        for (size_t p = block; p < positions && repeats; ++p) repeats = same_layer(model, p, p % block);
        if (repeats) return block;
    }
    return positions;
}

// What nanbeige's blocks do not have; empty when nothing.
std::string inexpressible(const Model& model) {
    if (std::string(model.family->name) != "llama")
        return fmt::format("the blocks of family '{}' are not those of nanbeige", model.family->name);
    constexpr std::array kBiases = {Slot::attn_q_bias,  Slot::attn_k_bias,   Slot::attn_v_bias,
                                    Slot::attn_o_bias,  Slot::ffn_gate_bias, Slot::ffn_up_bias,
                                    Slot::ffn_down_bias};
    for (const Slot slot : kBiases) {
        if (model.topology.has(0, slot)) return fmt::format("nanbeige's blocks have no {}", slot_name(slot));
    }
    if (model.config.activation != Activation::silu) return "nanbeige's activation is SiLU";
    if (model.topology.positions.size() > kMaxPositions)
        return fmt::format("llama.cpp runs at most {} layers", kMaxPositions);
    return "";
}

}  // namespace

LoopedStock looped_stock(const Model& given) {
    const Model model = without_exit_maps(given);
    LoopedStock out;
    const size_t positions = model.topology.positions.size(), block = block_of(model);
    if (block == positions) {
        if (model.topology.loops > 1)
            out.reason = "the rounds are not alike: LoRA, norms or an order of their own";
        return out;
    }
    out.loops = static_cast<int64_t>(positions / block);
    out.reason = inexpressible(model);
    if (!out.reason.empty()) return out;

    Model once = model;
    once.topology.positions.resize(block);
    once.topology.loops = 1;
    if (!once.config.heads_kv.empty()) once.config.heads_kv.resize(block);
    if (!once.config.ffs.empty()) once.config.ffs.resize(block);
    out.stock = for_stock(once);
    GgufMetadata& metadata = out.stock->model.metadata;
    metadata = renamed_metadata(metadata, model.family->name, kName);
    metadata.set(std::string(kName) + ".num_loops", GgufValue::u32(static_cast<uint32_t>(out.loops)));
    // Without it llama.cpp puts the final norm between the rounds.
    metadata.set(std::string(kName) + ".skip_loop_final_norm", GgufValue::boolean(true));
    return out;
}

}  // namespace refold
