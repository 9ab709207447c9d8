#include "model/families/common/stock.h"

#include "core/error.h"

namespace refold {

void fail_stock(const Model& model, const std::string& what) {
    fail(ErrorCode::unsupported, "export", "stock llama.cpp cannot express {} of this {} model", what,
         model.family->name);
}

void refuse_in_stock(const Model& model, std::initializer_list<Slot> slots) {
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        for (const Slot slot : slots)
            if (model.topology.has(l, slot)) fail_stock(model, slot_name(slot));
    }
}

void refuse_rotation_in_stock(const Model& model, bool reads_factors) {
    if (model.config.rope.dynamic_factor > 0) fail_stock(model, "dynamic rope scaling");
    if (!reads_factors && model.topology.globals.contains(Slot::rope_freqs))
        fail_stock(model, "the factors of the rotation's frequencies");
}

void refuse_head_width_in_stock(const Model& model) {
    const ModelConfig& c = model.config;
    if (c.n_head * c.head_dim != c.n_embd) fail_stock(model, fmt::format("heads of {} elements", c.head_dim));
}

Model with_own_output(const Model& model) {
    Model out = model;
    const Expression embedding = out.topology.globals.at(Slot::token_embd);
    if (out.topology.globals.at(Slot::output) != embedding) return out;
    const std::string name = tensor_name(*model.family, Slot::output, 0);
    out.tensors[name] = out.tensor(std::get<Dense>(embedding).tensor);
    out.topology.globals[Slot::output] = Dense{name};
    return out;
}

Model with_gains_as_rows(const Model& model) {
    Model out = model;
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        for (const Slot slot : {Slot::attn_q_norm_all, Slot::attn_k_norm_all}) {
            if (!model.topology.has(l, slot)) continue;
            Tensor& gains = out.tensors.at(std::get<Dense>(model.topology.at(l, slot)).tensor);
            gains.shape = {model.config.head_dim, gains.elements() / model.config.head_dim};
        }
    }
    return out;
}

GgufMetadata renamed_metadata(const GgufMetadata& metadata, const std::string& from, const std::string& to) {
    GgufMetadata out;
    for (const auto& [key, value] : metadata.entries()) {
        if (key.starts_with("refold.checkpoint")) continue;
        out.set(key.starts_with(from + ".") ? to + key.substr(from.size()) : key, value);
    }
    out.set("general.architecture", GgufValue::string(to));
    return out;
}

}  // namespace refold
