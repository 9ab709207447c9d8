#include "model/hf/description.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/json_text.h"
#include "core/stored_text.h"
#include "core/text.h"
#include "model/families/common/hf_config.h"
#include "model/hf/known_fields.h"
#include "model/hf/readable_config.h"

namespace refold {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Models that also see or hear, and the text models in them.
struct Whole {
    const char* model_type;
    const char* text_type;
};
constexpr Whole kWholes[] = {{"gemma3", "gemma3_text"}, {"gemma3n", "gemma3n_text"}, {"mistral3", "mistral"}};

const Family* find_by_type(const std::string& type) {
    for (const Family* family : families()) {
        for (const char* name : family->hf_model_types) {
            if (type == name) return family;
        }
    }
    return nullptr;
}

const Family& family_of(const HfConfig& config) {
    const std::string type = config.string("model_type", "");
    if (type.empty()) fail(ErrorCode::input, "config.json", "field 'model_type' is missing");
    if (const Family* family = find_by_type(type)) return *family;
    std::vector<std::string> known;
    for (const Family* family : families())
        known.insert(known.end(), family->hf_model_types.begin(), family->hf_model_types.end());
    fail(ErrorCode::unsupported, "config.json", "model_type '{}' is not supported; known: {}", type,
         fmt::join(known, ", "));
}

// The configuration of the text model within that of a model which also sees or hears. Nothing for other
// models.
std::optional<json> text_part(const json& whole) {
    const std::string type = HfConfig(whole).string("model_type", "");
    const auto found = std::ranges::find_if(kWholes, [&](const Whole& w) { return type == w.model_type; });
    if (found == std::end(kWholes)) return std::nullopt;
    const auto text = whole.find("text_config");
    if (text == whole.end() || !text->is_object())
        fail(ErrorCode::input, "config.json", "field 'text_config' of model_type '{}' must be an object",
             type);
    json out = *text;
    if (!out.contains("model_type")) out["model_type"] = found->text_type;
    if (out["model_type"] != found->text_type)
        fail(ErrorCode::unsupported, "config.json",
             "the text model of model_type '{}' has model_type {}, which is not supported; known: '{}'", type,
             out["model_type"].dump(), found->text_type);
    constexpr const char* kTied = "tie_word_embeddings";
    if (const auto tied = whole.find(kTied); tied != whole.end() && !tied->is_null()) {
        if (out.contains(kTied) && out[kTied] != *tied)
            fail(ErrorCode::unsupported, "config.json",
                 "field '{}' is {} and 'text_config.{}' {}, and versions of transformers disagree about "
                 "which holds; write the same in both",
                 kTied, tied->dump(), kTied, out[kTied].dump());
        out[kTied] = *tied;
    }
    check_fields_of_whole(whole);
    return out;
}

// The folder's name, or the repository's in the hub's cache.
std::string name_of(const fs::path& folder) {
    const fs::path path = fs::weakly_canonical(folder);
    if (path.parent_path().filename() != "snapshots") return path.filename();
    const std::string repository = path.parent_path().parent_path().filename();
    const size_t dashes = repository.rfind("--");
    return dashes == std::string::npos ? repository : repository.substr(dashes + 2);
}

// What config.json says about tensors that not every checkpoint of the family has. A field that transformers'
// class does not have says nothing: check_fields() refuses it.
void read_announcements(const HfConfig& config, HfDescription& out) {
    const Family& family = *out.model.family;
    const auto says = [&](const char* field, Slot slot) {
        const bool has =
            std::ranges::any_of(family.layer_slots, [&](const auto& d) { return d.slot == slot; });
        return has && config.boolean(field, false);
    };
    out.attention_biases =
        says(family.hf_bias != nullptr ? family.hf_bias : "attention_bias", Slot::attn_q_bias);
    out.ffn_biases = says(family.hf_bias != nullptr ? family.hf_bias : "mlp_bias", Slot::ffn_up_bias);
    out.head_norms = family.hf_norms != nullptr && says(family.hf_norms, Slot::attn_q_norm_all);
}

}  // namespace

HfDescription read_hf_description(const std::string& config_file, const std::string& folder) {
    HfDescription out;
    out.text = read_stored_text(config_file);
    const json object = parse_json(out.text, "checkpoint", "'" + config_file + "'");
    if (!object.is_object()) fail(ErrorCode::input, "checkpoint", "'{}' is not a JSON object", config_file);
    const auto part = text_part(object);
    if (part) out.text.clear();
    out.is_part = part.has_value();
    const json own = part.value_or(object);
    Model& model = out.model;
    model.label = folder;
    model.family = &family_of(HfConfig(own));
    const ReadableConfig readable = readable_config(own, out.is_part);
    out.fields = readable.fields;
    const HfConfig config(out.fields);
    model.metadata.set("general.architecture", GgufValue::string(model.family->name));
    model.metadata.set("general.name", GgufValue::string(name_of(folder)));
    model.family->read_hf_config(config, model.metadata);
    model.family = &find_family(model.metadata.string("general.architecture"));
    model.config = model.family->read_config(model.metadata);
    out.layers =
        static_cast<size_t>(model.metadata.integer(std::string(model.family->name) + ".block_count"));
    const bool shares_embedding = config.boolean("share_embedding", false);  // MobileLLM
    out.tied = config.boolean("tie_word_embeddings", false) || shares_embedding;
    read_announcements(config, out);
    const HfRepeats& repeats = model.family->hf_repeats;
    if (repeats.of_layer != nullptr) out.repeats = repeats.of_layer(config);
    constexpr int64_t kMostLoops = 64;
    if (repeats.loops != nullptr) {
        const int64_t loops = config.integer(repeats.loops);
        if (loops < 1 || loops > kMostLoops)
            fail(ErrorCode::input, "config.json", "field '{}' must be 1 to {}, got {}", repeats.loops,
                 kMostLoops, loops);
        out.loops = static_cast<size_t>(loops);
    }
    check_fields(config, readable, *model.family);
    return out;
}

bool is_announced(const SlotDescription& slot, const HfDescription& description) {
    const SlotProperties& slot_is = properties(slot.slot);
    if (slot_is.kind == SlotKind::rope_factors) return false;  // made from config.json
    if (slot.slot == Slot::output) return !description.tied;
    if (slot.required || slot.slot == Slot::output_bias || slot_is.module == SlotModule::exit) return true;
    if (slot_is.kind == SlotKind::norm_gain && slot_is.projection) return description.head_norms;
    if (slot.slot == Slot::ffn_norm || slot.slot == Slot::ffn_norm_bias)
        return !description.model.config.parallel_residual;
    if (slot_is.kind != SlotKind::bias) return true;
    return slot_is.module == SlotModule::ffn ? description.ffn_biases : description.attention_biases;
}

Topology described_topology(const HfDescription& description) {
    const Model& model = description.model;
    Topology topology =
        implied_topology(*model.family, model.config, description.layers,
                         [&](const std::string& name) { return model.tensors.contains(name); });
    std::vector<Slots> layers;
    for (const Slots& stored : topology.layers) layers.insert(layers.end(), description.repeats, stored);
    topology.layers.clear();
    for (size_t i = 0; i < description.loops; ++i)
        topology.layers.insert(topology.layers.end(), layers.begin(), layers.end());
    topology.loops = static_cast<int64_t>(description.loops);
    return topology;
}

void add_rope_factors(HfDescription& description) {
    Model& model = description.model;
    const auto add = [&](Slot slot, const std::vector<float>& factors) {
        if (factors.empty()) return;
        const auto& slots = model.family->model_slots;
        if (std::none_of(slots.begin(), slots.end(), [&](const auto& d) { return d.slot == slot; }))
            fail(ErrorCode::unsupported, "config.json",
                 "the type of rope_scaling is not supported for family '{}'", model.family->name);
        const auto bytes = std::as_bytes(std::span(factors));
        model.tensors[tensor_name(*model.family, slot, 0)] = {
            DType::F32,
            {static_cast<int64_t>(factors.size())},
            {},
            [owned = std::vector<std::byte>(bytes.begin(), bytes.end())] { return owned; }};
    };
    const int64_t dims = model.config.rope.dims;
    add(Slot::rope_freqs, llama3_factors(description.fields, dims));
    add(Slot::rope_freqs, longrope_factors(description.fields, "short_factor", dims));
    add(Slot::rope_freqs, yarn_factors(description.fields, dims));
    const std::vector<float> long_factors = longrope_factors(description.fields, "long_factor", dims);
    add(Slot::rope_freqs_long, long_factors);
    model.config.rope.long_factors = !long_factors.empty();
}

}  // namespace refold
