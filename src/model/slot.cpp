#include "model/slot.h"

#include <vector>

#include "core/error.h"
#include "core/text.h"
#include "model/config.h"

namespace refold {

static int64_t size_of(Extent extent, const ModelConfig& c, size_t layer) {
    switch (extent) {
        case Extent::one: return 1;
        case Extent::n_embd: return c.n_embd;
        case Extent::q: return c.n_head_of(layer) * c.head_dim;
        case Extent::kv: return c.n_head_kv_of(layer) * c.head_dim;
        case Extent::head_dim: return c.head_dim;
        case Extent::n_ff: return c.n_ff_of(layer);
        case Extent::n_vocab: return c.n_vocab;
        case Extent::positions: return c.n_learned_positions;
        case Extent::token_types: return c.n_token_types;
        case Extent::prefix: return c.n_prefix;
        case Extent::rotations: return c.rope.dims / 2;
        case Extent::embedding: return c.embedding_width();
        case Extent::heads: return c.n_head_of(layer);
        case Extent::experts: return c.n_expert_of(layer);
        case Extent::expert_ff: return c.n_ff_expert;
        case Extent::experts_ff: return c.n_expert_of(layer) * c.n_ff_expert;
        case Extent::experts_embd: return c.n_expert_of(layer) * c.n_embd;
        case Extent::streams: return c.n_stream;
        case Extent::streams_squared: return c.n_stream * c.n_stream;
        case Extent::added_streams: return (c.n_stream - 1) * c.n_embd;
        case Extent::laurel: return c.n_laurel;
        case Extent::layer_input: return c.n_layer_input;
        case Extent::layer_inputs: return c.n_layer_input * c.n_input_layer;
    }
    return 0;
}

Slot slot_from_name(const std::string& name) {
    std::vector<std::string> known;
    for (const SlotProperties& slot : kSlots) {
        if (name == slot.name) return slot.slot;
        known.emplace_back(slot.name);
    }
    fail(ErrorCode::input, "topology", "unknown slot '{}'; {}", name, suggestion(name, known));
}

SlotShape slot_shape(Slot slot, const ModelConfig& config, size_t layer) {
    const SlotProperties& s = properties(slot);
    return {size_of(s.in, config, layer), size_of(s.out, config, layer)};
}

int64_t normalized_width(Slot slot, const ModelConfig& config, size_t layer) {
    return config.norm_by_head && properties(slot).units ? config.head_dim
                                                         : slot_shape(slot, config, layer).in;
}

int64_t slot_blocks(Slot slot, const ModelConfig& config, size_t layer) {
    if (consists_of_experts(slot)) return config.n_expert_of(layer);
    if (!consists_of_heads(slot)) return 0;
    return has_query_heads(slot) ? config.n_head_of(layer) : config.n_head_kv_of(layer);
}

int64_t block_size(Slot slot, const ModelConfig& config) {
    if (consists_of_streams(slot)) return config.n_embd;
    if (!consists_of_experts(slot)) return config.head_dim;
    return properties(slot).out == Extent::experts_ff ? config.n_ff_expert : config.n_embd;
}

std::vector<int64_t> tensor_shape(Slot slot, const ModelConfig& config, size_t layer) {
    const SlotShape shape = slot_shape(slot, config, layer);
    if (consists_of_experts(slot) || consists_of_streams(slot)) {
        const int64_t rows = block_size(slot, config);
        return {shape.in, rows, shape.out / rows};
    }
    return is_vector(slot) ? std::vector{shape.in} : std::vector{shape.in, shape.out};
}

}  // namespace refold
