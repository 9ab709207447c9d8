#include "model/families/common/experts.h"

#include <algorithm>

#include "core/error.h"
#include "model/families/common/stock.h"

namespace refold {

// llama.cpp's key, in some of its families: the weights are those of a softmax over the experts that are
// used.
static constexpr const char* kNormKey = "expert_weights_norm";

ModelConfig read_mixture(const FamilyKeys& keys, Activation activation, bool normalized) {
    ModelConfig c = read_sizes(keys, NormKind::rms, activation);
    c.norm_expert_weights = keys.boolean(kNormKey, normalized);
    if (keys.metadata().integer(keys.name("expert_count"), 0) == 0) return c;
    c.n_expert = keys.size("expert_count");
    c.n_expert_used = keys.size("expert_used_count");
    c.n_ff_expert = keys.size("expert_feed_forward_length", c.n_ff);
    constexpr int64_t kMostExperts = 1 << 16;
    if (c.n_expert > kMostExperts || c.n_expert_used > c.n_expert)
        fail(ErrorCode::input, keys.family(), "keys '{}' ({}) and '{}' ({}) contradict each other",
             keys.name("expert_count"), c.n_expert, keys.name("expert_used_count"), c.n_expert_used);
    for (const char* key :
         {"expert_shared_count", "expert_shared_feed_forward_length", "expert_group_count"}) {
        if (keys.metadata().integer(keys.name(key), 0) > 0)
            fail(ErrorCode::unsupported, keys.family(), "key '{}' is not supported", keys.name(key));
    }
    if (const auto layers = keys.flags(kExpertLayersKey)) {
        for (const bool mixture : *layers) c.experts.push_back(mixture ? c.n_expert : 0);
    }
    return c;
}

void write_experts(const HfConfig& config, const ExpertFields& fields, FamilyWriter& out) {
    const int64_t experts = config.integer(fields.experts), used = config.integer("num_experts_per_tok"),
                  width = config.integer(fields.width);
    if (used == 0 || used > experts || width == 0)
        fail(ErrorCode::input, "config.json",
             "fields contradict each other: '{}' ({}), 'num_experts_per_tok' ({}), '{}' ({})", fields.experts,
             experts, used, fields.width, width);
    out.integer("expert_count", experts);
    out.integer("expert_used_count", used);
    out.integer("expert_feed_forward_length", width);
    const auto layers = static_cast<size_t>(config.integer("num_hidden_layers"));
    const auto step = static_cast<size_t>(config.integer("decoder_sparse_step", 1));
    if (step == 0) fail(ErrorCode::input, "config.json", "field 'decoder_sparse_step' must not be 0");
    std::vector<bool> mixture(layers);
    for (size_t l = 0; l < layers; ++l) mixture[l] = (l + 1) % step == 0;
    if (const nlohmann::json* dense = config.find("mlp_only_layers")) {
        for (const auto& layer : *dense) {
            if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= layers)
                fail(ErrorCode::input, "config.json", "field 'mlp_only_layers': {} is not one of {} layers",
                     layer.dump(), layers);
            mixture[layer.get<size_t>()] = false;
        }
    }
    if (std::find(mixture.begin(), mixture.end(), false) != mixture.end())
        out.flags(kExpertLayersKey, mixture);
}

void write_expert_norm(const HfConfig& config, bool usual, FamilyWriter& out) {
    if (const bool normalized = config.boolean("norm_topk_prob", false); normalized != usual)
        out.boolean(kNormKey, normalized);
}

void experts_to_hf(const Model& model, const ExpertFields& fields, nlohmann::json& out) {
    const ModelConfig& c = model.config;
    out[fields.experts] = c.n_expert;
    out["num_experts_per_tok"] = c.n_expert_used;
    out[fields.width] = c.n_ff_expert;
}

std::vector<SlotDescription> expert_slots(const ExpertNames& names) {
    return {{Slot::ffn_router, "blk.{}.ffn_gate_inp.weight", true, names.router},
            {Slot::ffn_gate_exps, "blk.{}.ffn_gate_exps.weight", true, names.gate, names.stacked},
            {Slot::ffn_up_exps, "blk.{}.ffn_up_exps.weight", true, names.up, names.stacked},
            {Slot::ffn_down_exps, "blk.{}.ffn_down_exps.weight", true, names.down, names.down_layout}};
}

std::vector<SlotDescription> with_experts(std::vector<SlotDescription> slots,
                                          const std::vector<SlotDescription>& experts, bool beside_ffn) {
    if (!beside_ffn) std::erase_if(slots, [](const auto& d) { return !is_of_layer(d.slot, true); });
    slots.insert(slots.end(), experts.begin(), experts.end());
    return slots;
}

void check_mixture_in_stock(const Model& model, bool normalized) {
    const auto& experts = model.config.experts;
    if (std::any_of(experts.begin(), experts.end(), [&](int64_t n) { return n != model.config.n_expert; }))
        fail_stock(model, "which layers have experts");
    if (model.config.norm_expert_weights != normalized) fail_stock(model, "the weights of experts");
}

}  // namespace refold
