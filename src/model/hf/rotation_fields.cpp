#include "model/hf/rotation_fields.h"

#include "core/error.h"
#include "model/families/common/hf_config.h"

namespace refold {
namespace {

using nlohmann::json;

constexpr const char *kParameters = "rope_parameters", *kScaling = "rope_scaling", *kTheta = "rope_theta",
                     *kPart = "partial_rotary_factor", *kLocalTheta = "rope_local_base_freq",
                     *kOriginal = "original_max_position_embeddings";

[[noreturn]] void fail_two(const std::string& what, const std::string& advice) {
    fail(ErrorCode::unsupported, "config.json",
         "{}, and versions of transformers disagree about which holds; {}", what, advice);
}

bool is_given(const json& object, const char* field) {
    const auto found = object.find(field);
    return found != object.end() && !found->is_null();
}

// An object that says something; nothing for null and {}.
const json* object_of(const json& config, const char* field) {
    if (!is_given(config, field)) return nullptr;
    const json& value = config[field];
    if (!value.is_object())
        fail(ErrorCode::input, "config.json", "field '{}' must be an object, got {}", field, value.dump());
    return value.empty() ? nullptr : &value;
}

// The value of a field that may be in two places, removed from both. Null counts as absent.
json united(json& inner, const char* inner_name, json& outer, const char* outer_name) {
    json values[2];
    size_t place = 0;
    for (const auto& [object, name] : {std::pair{&inner, inner_name}, {&outer, outer_name}}) {
        if (is_given(*object, name)) values[place] = (*object)[name];
        ++place;
    }
    if (!values[0].is_null() && !values[1].is_null() && values[0] != values[1])
        fail_two(
            fmt::format("fields '{}' ({}) and '{}'{} ({}) differ", outer_name, values[1].dump(), inner_name,
                        &inner == &outer ? "" : " of the rotation's parameters", values[0].dump()),
            "delete one of them");
    inner.erase(inner_name);
    if (!values[0].is_null() || !values[1].is_null()) outer.erase(outer_name);
    return values[0].is_null() ? values[1] : values[0];
}

// "rope_type" in new files, "type" in old ones.
std::string type_of(const json& rotation) {
    const HfConfig fields(rotation);
    return fields.string("rope_type", fields.string("type", "default"));
}

void unite_type(json& rotation) {
    if (is_given(rotation, "rope_type") && is_given(rotation, "type") &&
        rotation["rope_type"] != rotation["type"])
        fail_two(fmt::format("fields 'rope_type' ({}) and 'type' ({}) of the rotation differ",
                             rotation["rope_type"].dump(), rotation["type"].dump()),
                 "delete 'type'");
    const std::string type = type_of(rotation);
    rotation.erase("type");
    if (!rotation.empty()) rotation["rope_type"] = type == "su" ? "longrope" : type;  // its first name
}

// rope_scaling beside rope_parameters, which documentation tells users to add: transformers 5 takes it in
// place of the parameters, with its own base, the file's, or the class's default.
json only_one(const json& scaling, const json& parameters, const json& config, const json& defaults) {
    json meant = scaling, other = parameters;
    unite_type(meant);
    unite_type(other);
    for (const char* field : {kTheta, kPart}) {
        const json fallback = is_given(config, field) ? config[field] : defaults.value(field, json());
        if (!is_given(meant, field) && !fallback.is_null()) meant[field] = fallback;
        if (!is_given(other, field) && !fallback.is_null()) other[field] = fallback;
    }
    const bool unscaled = type_of(other) == "default";
    if (unscaled) {  // only the base and the rotated part have to agree
        other["rope_type"] = meant["rope_type"];
        for (const auto& [field, value] : meant.items())
            if (field != kTheta && field != kPart) other[field] = value;
    }
    if (meant != other)
        fail_two(fmt::format("fields '{}' ({}) and '{}' ({}) are both there", kParameters, parameters.dump(),
                             kScaling, scaling.dump()),
                 fmt::format("write all of it into '{}'", kParameters));
    return scaling;
}

// GPT-NeoX has names of its own for the two. transformers 5 reads these alone; in 4 the usual names overwrite
// them.
void unite_gpt_neox(const json& rotation, json& config, const json& defaults) {
    for (const auto& [own, field] : {std::pair{"rotary_emb_base", kTheta}, {"rotary_pct", kPart}}) {
        if (!is_given(config, own) && !is_given(rotation, field) && is_given(config, field))
            config[own] = defaults[field];
        if (const json value = united(config, own, config, field); !value.is_null()) config[field] = value;
    }
}

// All layers rotate alike.
void unite_for_all(json& config, const json& defaults) {
    const json *parameters = object_of(config, kParameters), *scaling = object_of(config, kScaling);
    for (const char* kind : {"full_attention", "sliding_attention"}) {
        if (parameters != nullptr && parameters->contains(kind))
            fail(ErrorCode::unsupported, "config.json",
                 "field '{}.{}' is not supported for model_type {}: {}", kParameters, kind,
                 config.at("model_type").dump(), parameters->dump());
    }
    const bool said = parameters != nullptr || scaling != nullptr || is_given(config, kParameters);
    json rotation = json::object();
    if (parameters != nullptr && scaling != nullptr)
        rotation = only_one(*scaling, *parameters, config, defaults);
    else if (said)
        rotation = scaling != nullptr ? *scaling : config[kParameters];
    const bool old_form = scaling != nullptr;
    config.erase(kParameters);
    if (config["model_type"] == "gpt_neox") unite_gpt_neox(rotation, config, defaults);
    for (const char* field : {kTheta, kPart}) {
        if (const json value = united(rotation, field, config, field); !value.is_null())
            config[field] = value;
    }
    unite_type(rotation);
    // Phi-3's first files say "yarn" and mean LongRoPE, which its class makes of it.
    const bool has_original = defaults.contains(kOriginal);
    if (has_original && is_given(rotation, "rope_type") && rotation["rope_type"] == "yarn")
        rotation["rope_type"] = "longrope";
    if (has_original && is_given(rotation, kOriginal)) {
        const json outer = is_given(config, kOriginal) ? config[kOriginal] : defaults[kOriginal];
        if (rotation[kOriginal] != outer)
            fail_two(fmt::format("field '{}' is {} within the rotation's parameters and {} outside of them{}",
                                 kOriginal, rotation[kOriginal].dump(), outer.dump(),
                                 is_given(config, kOriginal) ? "" : " (the default)"),
                     "write the same number in both places");
        rotation.erase(kOriginal);
    }
    if (old_form && type_of(rotation) == "longrope" && is_given(rotation, "factor") &&
        !is_given(rotation, "attention_factor")) {
        const HfConfig fields(config), inner(rotation);
        const double context = fields.real("max_position_embeddings", 0),
                     original = fields.real(kOriginal, context), factor = inner.real("factor");
        if (original > 0 && factor * original != context)
            fail_two(
                fmt::format(
                    "field '{}.factor' ({}) is not the quotient of 'max_position_embeddings' ({}) and '{}' "
                    "({})",
                    kScaling, factor, context, kOriginal, original),
                "give 'attention_factor'");
    }
    if (said)
        config[kScaling] = rotation;
    else if (is_given(config, kScaling))
        config[kScaling] = nullptr;  // {} says as little
}

// Layers with a window rotate by a base of their own.
void unite_by_kind(json& config, const json& defaults) {
    const json *parameters = object_of(config, kParameters), *scaling = object_of(config, kScaling);
    json full = json::object(), local = json::object();
    if (parameters != nullptr) {
        for (const auto& [kind, value] : parameters->items()) {
            if (kind != "full_attention" && kind != "sliding_attention")
                fail(ErrorCode::unsupported, "config.json",
                     "field '{}.{}' ({}) is not known: transformers reads 'full_attention' and "
                     "'sliding_attention' for "
                     "model_type {}",
                     kParameters, kind, value.dump(), config.at("model_type").dump());
            if (value.is_null()) continue;
            if (!value.is_object())
                fail(ErrorCode::input, "config.json", "field '{}.{}' must be an object, got {}", kParameters,
                     kind, value.dump());
            (kind == "full_attention" ? full : local) = value;
        }
    }
    if (scaling != nullptr && !is_given(*scaling, "rope_type") && type_of(*scaling) != "default")
        fail_two(fmt::format("field '{}' has 'type' and no 'rope_type' ({})", kScaling, scaling->dump()),
                 "rename 'type' to 'rope_type'");
    if (scaling != nullptr) full = full.empty() ? *scaling : only_one(*scaling, full, config, defaults);
    const bool said = parameters != nullptr || scaling != nullptr;
    config.erase(kParameters);
    if (const json value = united(full, kTheta, config, kTheta); !value.is_null()) config[kTheta] = value;
    if (const json value = united(local, kTheta, config, kLocalTheta); !value.is_null())
        config[kLocalTheta] = value;
    unite_type(full);
    unite_type(local);
    if (type_of(local) != "default")
        fail(ErrorCode::unsupported, "config.json",
             "field '{}.sliding_attention' scales the rotation of layers with windows, which is not "
             "supported: {}",
             kParameters, local.dump());
    const HfConfig windowed(local);
    windowed.find("rope_type");
    check_asked(windowed, "rope_parameters.sliding_attention");
    if (said) config[kScaling] = full;
}

}  // namespace

void unite_rotation_fields(json& config, const json& defaults) {
    if (!defaults.contains(kScaling)) return;  // no rotation that fields describe
    if (defaults.contains(kLocalTheta))
        unite_by_kind(config, defaults);
    else
        unite_for_all(config, defaults);
}

}  // namespace refold
