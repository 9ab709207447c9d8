#include "model/hf/description.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "core/json_text.h"
#include "core/stored_text.h"
#include "core/text.h"
#include "model/families/common/hf_config.h"
#include "model/hf/known_fields.h"

namespace refold {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kUsualLoops = 4;  // of Ouro

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

// The text model of one that also sees or hears, whose configuration has one for each part and leaves out
// what transformers supplies. Nothing for other models.
std::optional<json> text_part(const json& whole) {
    const auto text = whole.find("text_config");
    if (text == whole.end() || !text->is_object()) return std::nullopt;
    const Family* family = find_by_type(HfConfig(*text).string("model_type", ""));
    if (family == nullptr) return std::nullopt;
    json out = family->hf_text_defaults == nullptr
                   ? json::object()
                   : parse_json(family->hf_text_defaults, "checkpoint", "the defaults");
    if (const auto tied = whole.find("tie_word_embeddings"); tied != whole.end()) out[tied.key()] = *tied;
    out.update(*text);
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

}  // namespace

HfDescription read_hf_description(const std::string& config_file, const std::string& folder) {
    HfDescription out;
    out.text = read_stored_text(config_file);
    const json object = parse_json(out.text, "checkpoint", "'" + config_file + "'");
    if (!object.is_object()) fail(ErrorCode::input, "checkpoint", "'{}' is not a JSON object", config_file);
    const auto part = text_part(object);
    if (part) out.text.clear();
    out.fields = with_older_fields(part.value_or(object));
    const HfConfig config(out.fields);
    Model& model = out.model;
    model.label = folder;
    model.family = &family_of(config);
    model.metadata.set("general.architecture", GgufValue::string(model.family->name));
    model.metadata.set("general.name", GgufValue::string(name_of(folder)));
    model.family->read_hf_config(config, model.metadata);
    model.family = &find_family(model.metadata.string("general.architecture"));
    model.config = model.family->read_config(model.metadata);
    out.layers =
        static_cast<size_t>(model.metadata.integer(std::string(model.family->name) + ".block_count"));
    const bool shares_embedding = config.boolean("share_embedding", false);  // MobileLLM
    out.tied = config.boolean("tie_word_embeddings", model.family->hf_tied) || shares_embedding;
    const HfRepeats& repeats = model.family->hf_repeats;
    if (repeats.of_layer != nullptr) out.repeats = repeats.of_layer(config);
    constexpr int64_t kMostLoops = 64;
    if (repeats.loops != nullptr) {
        const int64_t loops = config.integer(repeats.loops, kUsualLoops);
        if (loops < 1 || loops > kMostLoops)
            fail(ErrorCode::input, "config.json", "field '{}' must be 1 to {}, got {}", repeats.loops,
                 kMostLoops, loops);
        out.loops = static_cast<size_t>(loops);
    }
    check_fields(config, *model.family);
    return out;
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
    add(Slot::rope_freqs_long, longrope_factors(description.fields, "long_factor", dims));
}

}  // namespace refold
