#include "model/hf/changed_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "vocab/gguf_arrays.h"
#include "vocab/trim.h"

namespace refold {
namespace {

using nlohmann::json;

// What the family itself would write, without factors of the rotation: a method does not change them, and not
// all can be written without the source's config.json.
json own_config(Model model, const ModelConfig& config) {
    model.config = config;
    for (const Slot slot : {Slot::rope_freqs, Slot::rope_freqs_long}) model.topology.globals.erase(slot);
    model.config.rope.long_factors = false;
    return model.family->write_hf_config(model);
}

// The fields that depend on sizes, under the family's own names.
void set_sizes(const ModelConfig& before, const Model& model, json& config) {
    const ModelConfig& c = model.config;
    ModelConfig now = before;
    bool changed = false;
    const auto set = [&](int64_t ModelConfig::*size) {
        changed |= before.*size != c.*size;
        now.*size = c.*size;
    };
    for (const auto size : {&ModelConfig::n_ff, &ModelConfig::n_expert, &ModelConfig::n_expert_used,
                            &ModelConfig::n_ff_expert, &ModelConfig::n_vocab})
        set(size);
    if (!changed) return;
    const json as_before = own_config(model, before), as_now = own_config(model, now);
    for (const auto& [field, value] : as_now.items()) {
        const auto found = as_before.find(field);
        if (found == as_before.end() || *found != value) config[field] = value;
    }
}

// Ids of tokens after some tokens were left out; special ones stay.
void renumber_tokens(const Model& model, json& config) {
    if (!model.metadata.has(kKeptTokensKey)) return;
    const std::vector<int32_t> kept = ints_of(model.metadata, kKeptTokensKey);
    const auto renumbered = [&](const json& id) -> json {
        const auto found = id.is_number_integer() ? std::ranges::find(kept, id.get<int64_t>()) : kept.end();
        return found == kept.end() ? json() : json(found - kept.begin());
    };
    for (auto& [field, value] : config.items()) {
        if (!field.ends_with("_token_id")) continue;
        if (!value.is_array()) {
            value = renumbered(value);
            continue;
        }
        for (json& id : value) id = renumbered(id);
        std::erase_if(value.get_ref<json::array_t&>(), [](const json& id) { return id.is_null(); });
    }
}

}  // namespace

json changed_config(json config, const ModelConfig& before, const Model& model) {
    const ModelConfig& c = model.config;
    const size_t layers = model.topology.layers.size();
    for (const char* field : {"num_hidden_layers", "n_layer"})
        if (config.contains(field)) config[field] = layers;
    set_sizes(before, model, config);
    for (const char* field : {"num_local_experts", "num_experts"})  // newer files have both
        if (config.contains(field) && c.n_expert > 0) config[field] = c.n_expert;
    if (config.contains("num_key_value_heads"))
        config["num_key_value_heads"] = c.n_head_kv;
    else if (c.n_head_kv != c.n_head)
        fail(ErrorCode::unsupported, "export",
             "the checkpoint's config.json has no num_key_value_heads: {} key/value heads for {} query heads "
             "cannot "
             "be written; --to gguf and --to native keep them",
             c.n_head_kv, c.n_head);
    if (const auto dense = config.find("mlp_only_layers"); dense != config.end()) {
        *dense = json::array();
        for (size_t l = 0; l < layers; ++l)
            if (c.n_expert_of(l) == 0) dense->push_back(l);
        config["decoder_sparse_step"] = 1;
    }
    constexpr const char* kInputVocabField = "vocab_size_per_layer_input";
    if (config.contains(kInputVocabField) && c.n_layer_input_vocab > 0)
        config[kInputVocabField] = std::min(c.n_layer_input_vocab, c.n_vocab);
    // Lists of layers; their contents follow.
    for (const char* field : {"layer_types", "no_rope_layers"}) {
        if (const auto list = config.find(field);
            list != config.end() && list->is_array() && list->size() != layers)
            config.erase(field);
    }
    renumber_tokens(model, config);
    return config;
}

bool set_layer_kinds(const ModelConfig& read, const Model& model, json& config) {
    const ModelConfig& c = model.config;
    bool windows = false, rotation = false;
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        windows |= read.window(l) != c.window(l);
        rotation |= read.rotates(l) != c.rotates(l);
    }
    if (windows) {
        json& types = config["layer_types"] = json::array();
        for (size_t l = 0; l < model.topology.layers.size(); ++l)
            types.push_back(c.window(l) > 0 ? "sliding_attention" : "full_attention");
    }
    if (rotation) {
        json& flags = config["no_rope_layers"] = json::array();
        for (size_t l = 0; l < model.topology.layers.size(); ++l) flags.push_back(c.rotates(l) ? 1 : 0);
    }
    return windows || rotation;
}

namespace {

// The field that announces an optional bias; null for slots that are none.
const char* bias_field(const Family& family, const SlotDescription& description) {
    const SlotProperties& slot = properties(description.slot);
    if (slot.kind != SlotKind::bias || description.required || description.hf == nullptr) return nullptr;
    if (family.hf_bias != nullptr) return family.hf_bias;
    return slot.module == SlotModule::ffn ? "mlp_bias" : "attention_bias";
}

// The first layer with a bias that a field announces, by field.
std::map<std::string, size_t> announced_biases(const Model& model) {
    std::map<std::string, size_t> out;
    for (const SlotDescription& description : model.family->layer_slots) {
        const char* field = bias_field(*model.family, description);
        for (size_t l = 0; field != nullptr && l < model.topology.layers.size(); ++l) {
            if (!model.topology.has(l, description.slot)) continue;
            const auto [found, added] = out.try_emplace(field, l);
            found->second = std::min(found->second, l);
        }
    }
    return out;
}

}  // namespace

Model with_announced_biases(const Model& model) {
    const auto announced = announced_biases(model);
    Model out = model;
    for (const SlotDescription& description : model.family->layer_slots) {
        const char* field = bias_field(*model.family, description);
        if (field == nullptr || !announced.contains(field)) continue;
        for (size_t l = 0; l < model.topology.layers.size(); ++l) {
            if (model.topology.has(l, description.slot) ||
                !is_of_layer(description.slot, model.config.n_expert_of(l) > 0) ||
                model.topology.is_replaced(l, description.slot))
                continue;
            const int64_t size = slot_shape(description.slot, model.config).in;
            const std::string name = tensor_name(description, l);
            out.tensors[name] = {DType::F32, {size}, {}, [size] {
                                     return std::vector<std::byte>(static_cast<size_t>(size) * sizeof(float));
                                 }};
            out.topology.layers[l][description.slot] = Dense{name};
        }
    }
    return out;
}

void announce_biases(const Model& model, json& config) {
    // Of the model types that refold reads with biases; transformers' classes of these have none.
    static const std::set<std::string> kWithoutBiases = {"mistral", "mixtral", "mobilellm"};
    const std::string type = config.value("model_type", "");
    for (const auto& [field, layer] : announced_biases(model)) {
        if (kWithoutBiases.contains(type))
            fail(ErrorCode::unsupported, "export",
                 "layer {} has biases, which a checkpoint of model_type '{}' has no place for; --to gguf and "
                 "--to "
                 "native keep them, or leave them out (refit and narrow with bias=no)",
                 layer, type);
        config[field] = true;
    }
}

}  // namespace refold
