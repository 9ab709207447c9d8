#include "model/families/common/hf_config.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/activation.h"
#include "model/families/common/gguf_keys.h"

namespace refold {

static constexpr int64_t kMaxLayers = 4096;

nlohmann::json with_older_fields(nlohmann::json config) {
    const auto parameters = config.find("rope_parameters");
    if (parameters == config.end() || !parameters->is_object()) return config;
    const nlohmann::json given = *parameters;
    const bool by_layer = given.contains("full_attention") || given.contains("sliding_attention");
    const nlohmann::json all = by_layer ? given.value("full_attention", nlohmann::json::object()) : given;
    if (all.is_object()) {
        for (const char* field : {"rope_theta", "partial_rotary_factor"}) {
            if (all.contains(field)) config[field] = all[field];
        }
        config["rope_scaling"] = all;
    }
    if (by_layer) {
        const nlohmann::json local = given.value("sliding_attention", nlohmann::json::object());
        if (local.is_object() && local.contains("rope_theta"))
            config["rope_local_base_freq"] = local["rope_theta"];
    }
    return config;
}

const nlohmann::json* HfConfig::find(const char* field) const {
    const auto found = json_.find(field);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
}

int64_t HfConfig::integer(const char* field) const {
    const nlohmann::json* value = find(field);
    if (value == nullptr) fail(ErrorCode::input, "config.json", "field '{}' is missing", field);
    // 2048.0 is 2048 to Python too.
    const bool whole =
        value->is_number_integer() ||
        (value->is_number_float() && value->get<double>() == std::floor(value->get<double>()) &&
         std::abs(value->get<double>()) < 1e15);
    const double number = whole ? value->get<double>() : -1;
    if (!whole || number < 0 || number > static_cast<double>(kMaxSize))
        fail(ErrorCode::input, "config.json", "field '{}' must be a whole number from 0 to {}, got {}", field,
             kMaxSize, value->dump());
    return value->is_number_integer() ? value->get<int64_t>() : static_cast<int64_t>(number);
}

int64_t HfConfig::integer(const char* field, int64_t fallback) const {
    return has(field) ? integer(field) : fallback;
}

double HfConfig::real(const char* field) const {
    const nlohmann::json* value = find(field);
    if (value == nullptr) fail(ErrorCode::input, "config.json", "field '{}' is missing", field);
    if (!value->is_number() || !std::isfinite(value->get<double>()))
        fail(ErrorCode::input, "config.json", "field '{}' must be a number, got {}", field, value->dump());
    return value->get<double>();
}

double HfConfig::real(const char* field, double fallback) const {
    return has(field) ? real(field) : fallback;
}

bool HfConfig::boolean(const char* field, bool fallback) const {
    const nlohmann::json* value = find(field);
    if (value == nullptr) return fallback;
    if (!value->is_boolean())
        fail(ErrorCode::input, "config.json", "field '{}' must be true or false, got {}", field,
             value->dump());
    return value->get<bool>();
}

std::string HfConfig::string(const char* field, const std::string& fallback) const {
    const nlohmann::json* value = find(field);
    if (value == nullptr) return fallback;
    if (!value->is_string())
        fail(ErrorCode::input, "config.json", "field '{}' must be a text, got {}", field, value->dump());
    return value->get<std::string>();
}

void FamilyWriter::integer(const std::string& key, int64_t value) {
    metadata_.set(std::string(family_) + "." + key, GgufValue::u32(static_cast<uint32_t>(value)));
}
void FamilyWriter::real(const std::string& key, double value) {
    metadata_.set(std::string(family_) + "." + key, GgufValue::f32(static_cast<float>(value)));
}
void FamilyWriter::boolean(const std::string& key, bool value) {
    metadata_.set(std::string(family_) + "." + key, GgufValue::boolean(value));
}
void FamilyWriter::string(const std::string& key, const std::string& value) {
    metadata_.set(std::string(family_) + "." + key, GgufValue::string(value));
}
void FamilyWriter::flags(const std::string& key, const std::vector<bool>& values) {
    auto array = std::make_shared<GgufArray>();
    array->element = GgufType::Bool;
    array->count = values.size();
    for (const bool value : values) array->packed.push_back(value ? std::byte{1} : std::byte{0});
    metadata_.set(std::string(family_) + "." + key, {GgufType::Array, std::move(array)});
}
void FamilyWriter::activation(const std::string& name) {
    metadata_.set(kActivationKey, GgufValue::string(name));
}

void write_common(const HfConfig& config, const HfFields& fields, NormKind norm, Activation activation,
                  double default_epsilon, FamilyWriter& out) {
    const auto size = [&](const char* field) {
        const int64_t value = config.integer(field);
        if (value == 0) fail(ErrorCode::input, "config.json", "field '{}' must not be 0", field);
        return value;
    };
    const int64_t hidden = size(fields.hidden), heads = size(fields.heads);
    const int64_t heads_kv = config.integer(fields.heads_kv, heads);
    if (heads_kv == 0 || heads % heads_kv != 0)
        fail(ErrorCode::input, "config.json",
             "fields contradict each other: '{}' ({}) is not a multiple of '{}' ({})", fields.heads, heads,
             fields.heads_kv, heads_kv);
    out.integer("vocab_size", size("vocab_size"));
    out.integer("embedding_length", hidden);
    const int64_t layers = size(fields.layers);
    if (layers > kMaxLayers)
        fail(ErrorCode::input, "config.json", "field '{}' must be at most {}, got {}", fields.layers,
             kMaxLayers, layers);
    out.integer("block_count", layers);
    out.integer("attention.head_count", heads);
    out.integer("attention.head_count_kv", heads_kv);
    if (config.has("head_dim")) {
        out.integer("attention.key_length", size("head_dim"));
        out.integer("attention.value_length", size("head_dim"));
    } else if (hidden % heads != 0) {
        fail(ErrorCode::input, "config.json",
             "fields contradict each other: '{}' ({}) is not a multiple of '{}' ({}), and there is no "
             "'head_dim'",
             fields.hidden, hidden, fields.heads, heads);
    }
    out.integer("feed_forward_length", config.has(fields.inner) || std::string(fields.inner) != "n_inner"
                                           ? size(fields.inner)
                                           : 4 * hidden);
    out.integer("context_length", size(fields.context));
    const double epsilon = config.real(fields.epsilon, default_epsilon);
    if (!(epsilon > 0))
        fail(ErrorCode::input, "config.json", "field '{}' must be positive, got {}", fields.epsilon, epsilon);
    out.real(norm == NormKind::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
             epsilon);
    const std::string name = config.string(fields.activation, activation_name(activation));
    if (activation_from_name(name, "config.json") != activation) out.activation(name);
}

// "rope_type" in new files, "type" in old ones.
static std::string scaling_type(const nlohmann::json& scaling) {
    const HfConfig fields(scaling);
    return fields.string("rope_type", fields.string("type", "default"));
}

void write_rope(const HfConfig& config, double default_theta, FamilyWriter& out) {
    out.real("rope.freq_base", config.real("rope_theta", default_theta));
    const nlohmann::json* object = config.find("rope_scaling");
    if (object == nullptr) return;
    if (!object->is_object())
        fail(ErrorCode::input, "config.json", "field 'rope_scaling' must be an object, got {}",
             object->dump());
    const HfConfig scaling(*object);
    const std::string type = scaling_type(*object);
    if (type == "default" || type == "llama3") return;
    if (type != "linear" && type != "dynamic" && type != "yarn") {
        fail(ErrorCode::unsupported, "config.json",
             "rope_scaling type '{}' is not supported; known: default, linear, dynamic, llama3, yarn", type);
    }
    const double factor = scaling.real("factor");
    if (!(factor >= 1))
        fail(ErrorCode::input, "config.json", "field 'rope_scaling.factor' must be at least 1, got {}",
             factor);
    out.string("rope.scaling.type", type);
    out.real("rope.scaling.factor", factor);
    if (type != "yarn") return;
    if (const int64_t original = scaling.integer("original_max_position_embeddings", 0); original > 0)
        out.integer("rope.scaling.original_context_length", original);
    out.real("rope.scaling.yarn_beta_fast", scaling.real("beta_fast", 32));
    out.real("rope.scaling.yarn_beta_slow", scaling.real("beta_slow", 1));
    const double usual = 0.1 * std::log(factor) + 1;
    out.real("rope.scaling.attn_factor", scaling.real("attention_factor", usual) / usual);
    for (const char* field : {"mscale", "mscale_all_dim", "truncate"}) {
        if (scaling.has(field))
            fail(ErrorCode::unsupported, "config.json", "field 'rope_scaling.{}' is not supported", field);
    }
}

std::vector<float> llama3_factors(const nlohmann::json& json, int64_t dims) {
    const HfConfig config(json);
    const nlohmann::json* object = config.find("rope_scaling");
    if (object == nullptr || !object->is_object() || scaling_type(*object) != "llama3") return {};
    const HfConfig scaling(*object);
    const double factor = scaling.real("factor"), low = scaling.real("low_freq_factor"),
                 high = scaling.real("high_freq_factor"),
                 original = scaling.real("original_max_position_embeddings"),
                 theta = config.real("rope_theta", 10000.0);
    if (!(factor >= 1) || !(low > 0) || !(high > low) || !(original > 0))
        fail(ErrorCode::input, "config.json", "field 'rope_scaling' contradicts itself: {}", object->dump());
    std::vector<float> factors;
    for (int64_t i = 0; i < dims / 2; ++i) {
        const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dims));
        const double wavelength = 2 * M_PI / frequency;
        double scale = 1;
        if (wavelength > original / low) {
            scale = factor;
        } else if (wavelength >= original / high) {
            const double smooth = (original / wavelength - low) / (high - low);
            scale = 1 / ((1 - smooth) / factor + smooth);
        }
        factors.push_back(static_cast<float>(scale));
    }
    return factors;
}

std::vector<bool> layers_with_window(const HfConfig& config, const std::function<bool(size_t layer)>& usual) {
    std::vector<bool> windowed(static_cast<size_t>(config.integer("num_hidden_layers")));
    const nlohmann::json* types = config.find("layer_types");
    if (types != nullptr && (!types->is_array() || types->size() != windowed.size())) {
        fail(ErrorCode::input, "config.json", "field 'layer_types' must have one entry for each of {} layers",
             windowed.size());
    }
    for (size_t l = 0; l < windowed.size(); ++l)
        windowed[l] = types != nullptr ? (*types)[l] == "sliding_attention" : usual(l);
    return windowed;
}

void write_windows(int64_t window, const std::vector<bool>& windowed, FamilyWriter& out) {
    if (std::none_of(windowed.begin(), windowed.end(), [](bool w) { return w; })) return;
    if (window <= 0)
        fail(ErrorCode::input, "config.json", "field 'sliding_window' must be positive, got {}", window);
    out.integer("attention.sliding_window", window);
    for (size_t period = 0; period <= windowed.size(); ++period) {
        bool fits = true;
        for (size_t l = 0; l < windowed.size() && fits; ++l)
            fits = windowed[l] == (period == 0 || l % period != period - 1);
        if (!fits) continue;
        out.integer("attention.sliding_window_pattern", static_cast<int64_t>(period));
        return;
    }
    out.flags("attention.sliding_window_pattern", windowed);
}

// ---- back ----

// 1e-06 rather than 9.999999974752427e-07.
static double shortest(float value) { return std::stod(fmt::format("{}", value)); }

nlohmann::json hf_common(const Model& model, const HfFields& fields, const char* architecture,
                         const char* model_type) {
    const ModelConfig& c = model.config;
    nlohmann::json out = {{"architectures", {architecture}},
                          {"model_type", model_type},
                          {"vocab_size", c.n_vocab},
                          {fields.hidden, c.n_embd},
                          {fields.layers, model.topology.layers.size()},
                          {fields.heads, c.n_head},
                          {fields.inner, c.n_ff},
                          {fields.context, c.context_length},
                          {fields.epsilon, shortest(c.norm_eps)},
                          {fields.activation, activation_name(c.activation)}};
    if (c.n_head_kv != c.n_head) out[fields.heads_kv] = c.n_head_kv;
    if (c.head_dim * c.n_head != c.n_embd) out["head_dim"] = c.head_dim;
    const auto& globals = model.topology.globals;
    if (const auto output = globals.find(Slot::output); output != globals.end())
        out["tie_word_embeddings"] = output->second == globals.at(Slot::token_embd);
    for (const auto& [field, key] : {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                     {"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                     {"pad_token_id", "tokenizer.ggml.padding_token_id"}}) {
        if (model.metadata.has(key)) out[field] = model.metadata.integer(key);
    }
    return out;
}

void hf_rope(const Model& model, nlohmann::json& config) {
    const Rope& rope = model.config.rope;
    config["rope_theta"] = rope.base;
    if (model.topology.globals.contains(Slot::rope_freqs)) {
        fail(ErrorCode::unsupported, "export",
             "the rope factors of this GGUF do not say which rope_scaling they came from - export from the "
             "Hugging Face checkpoint");
    }
    if (rope.ext_factor > 0) {
        config["rope_scaling"] = {{"rope_type", "yarn"},
                                  {"factor", 1.0 / rope.frequency_scale},
                                  {"original_max_position_embeddings", rope.original_context},
                                  {"beta_fast", rope.beta_fast},
                                  {"beta_slow", rope.beta_slow}};
    } else if (rope.dynamic_factor > 0) {
        config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", rope.dynamic_factor}};
    } else if (rope.frequency_scale != 1.0F) {
        config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 1.0 / rope.frequency_scale}};
    }
}

}  // namespace refold
