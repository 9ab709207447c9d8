#include "compress/rewrite/modules.h"

#include <algorithm>

namespace refold {
namespace {

// Sets one entry of the sizes by layer; the list is empty when every layer has `usual`.
void set_size(std::vector<int64_t>& sizes, size_t layers, int64_t usual, size_t layer, int64_t size) {
    if (sizes.empty()) sizes.assign(layers, usual);
    sizes[layer] = size;
    if (std::all_of(sizes.begin(), sizes.end(), [&](int64_t s) { return s == usual; })) sizes.clear();
}

}  // namespace

void set_heads_kv(Model& model, size_t layer, int64_t heads) {
    ModelConfig& c = model.config;
    set_size(c.heads_kv, model.topology.layers.size(), c.n_head_kv, layer, heads);
    if (heads == 0 && !c.alibi_heads.empty()) c.alibi_heads[layer].clear();
}

void keep_heads_kv(Model& model, size_t layer, const std::vector<int64_t>& kept) {
    ModelConfig& c = model.config;
    const auto stay = static_cast<int64_t>(kept.size());
    if (c.max_alibi_bias > 0 && stay < c.n_head_kv) {
        if (c.alibi_heads.empty()) c.alibi_heads.resize(model.topology.layers.size());
        std::vector<int64_t>& numbers = c.alibi_heads[layer];
        std::vector<int64_t> left;
        for (const int64_t u : kept) left.push_back(numbers.empty() ? u : numbers[static_cast<size_t>(u)]);
        numbers = std::move(left);
    }
    set_heads_kv(model, layer, stay);
}

void set_ff(Model& model, size_t layer, int64_t channels) {
    ModelConfig& c = model.config;
    set_size(c.ffs, model.topology.layers.size(), c.n_ff, layer, channels);
}

void remove_attention(Model& model, size_t layer) {
    Slots& slots = model.topology.layers[layer];
    // GPT-J's FFN and LAuReL read the attention's norm.
    const bool norm_is_shared =
        slots.contains(Slot::laurel_down) ||
        (model.config.parallel_residual && !slots.contains(Slot::ffn_norm) && has_ffn(model.topology, layer));
    std::erase_if(slots, [&](const auto& entry) {
        const bool norm = entry.first == Slot::attn_norm || entry.first == Slot::attn_norm_bias;
        return belongs_to_attention(entry.first) && !(norm && norm_is_shared);
    });
    model.topology.sources.erase(layer);
    set_heads_kv(model, layer, 0);
}

void remove_ffn(Model& model, size_t layer) {
    Slots& slots = model.topology.layers[layer];
    std::erase_if(slots, [](const auto& entry) { return belongs_to_ffn(entry.first); });
    if (!slots.contains(Slot::attn_o) &&
        !slots.contains(Slot::laurel_down))  // nothing reads the norm any more
        std::erase_if(slots, [](const auto& entry) { return belongs_to_attention(entry.first); });
    set_ff(model, layer, 0);
}

}  // namespace refold
