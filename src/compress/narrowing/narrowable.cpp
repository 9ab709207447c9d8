#include "compress/narrowing/narrowable.h"

#include <algorithm>
#include <set>

#include "compress/method/selection.h"
#include "compress/rewrite/channels.h"
#include "compress/rewrite/heads.h"
#include "core/error.h"

namespace refold {
namespace {

bool is_own(const Model& model, size_t layer, Slot slot) {
    if (!model.topology.has(layer, slot)) return true;
    const auto* dense = std::get_if<Dense>(&model.topology.at(layer, slot));
    return dense != nullptr && !is_read_elsewhere(model, dense->tensor, layer);
}

bool is_narrowable_attention(const Model& model, size_t layer) {
    const Topology& topology = model.topology;
    return topology.has(layer, Slot::attn_o) && !topology.sources.contains(layer) &&
           !topology.lends_probabilities(layer) && !topology.lends_kv(layer) &&
           std::all_of(kQkvo.begin(), kQkvo.end(), [&](Slot slot) { return is_own(model, layer, slot); });
}

int64_t group_parameters(const Model& model, size_t layer) {
    int64_t out = 0;
    for (const Slot slot : kQkvo) {
        const SlotShape shape = slot_shape(slot, model.config, layer);
        out += shape.in * shape.out / model.config.n_head_kv_of(layer);
    }
    return out;
}

}  // namespace

std::vector<Narrowable> narrowable_modules(const Model& model, const std::vector<size_t>& layers,
                                           bool attentions) {
    const ModelConfig& c = model.config;
    std::set<size_t> with_ffn;
    const auto& described = model.family->layer_slots;
    const bool has_ffn = std::any_of(described.begin(), described.end(),
                                     [](const SlotDescription& d) { return d.slot == Slot::ffn_down; });
    const std::vector<Slot> slots = has_ffn ? parse_slots("ffn", *model.family) : std::vector<Slot>{};
    for (const TiedLayers& tied : ffns_of(model, slots, layers, "narrow")) {
        if (tied.size() > 1)
            fail(ErrorCode::unsupported, "narrow",
                 "layers {} have one FFN, which cannot be narrowed for each of them - do this step first, or "
                 "use prune_magnitude",
                 layers_text(tied));
        with_ffn.insert(tied.front());
    }
    std::vector<Narrowable> out;
    for (const size_t p : layers) {
        if (attentions && is_narrowable_attention(model, p))
            out.push_back({p, &kOutputMaps[0], c.n_head_kv_of(p), c.q_per_kv() * c.head_dim,
                           group_parameters(model, p)});
        if (with_ffn.contains(p))
            out.push_back({p, &kOutputMaps[1], c.n_ff_of(p), 1, channel_parameters(model, p)});
    }
    if (out.empty())
        fail(ErrorCode::unsupported, "narrow",
             "the layers have no FFN of whole matrices that could be narrowed (experts cannot) - give "
             "attention=PART");
    return out;
}

Model without_parts(const Model& model, const Narrowable& from, const std::vector<int64_t>& parts,
                    std::vector<Requantized>& requantized) {
    if (from.is_attention()) {
        std::set<Unit> units;
        for (const int64_t part : parts) units.insert({from.layer, part});
        return drop_heads(model, units, requantized);
    }
    std::vector<int64_t> kept;
    for (int64_t part = 0; part < from.parts; ++part) {
        if (std::find(parts.begin(), parts.end(), part) == parts.end()) kept.push_back(part);
    }
    Model out = model;
    keep_channels(out, {from.layer}, kept, requantized);
    out.drop_unreferenced();
    return out;
}

}  // namespace refold
