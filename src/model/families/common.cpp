#include "model/families/common.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace refold {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 30;
// Kept only where a checkpoint's activation is not its family's usual one.
constexpr const char* kActivationKey = "refold.activation";

struct ActivationName {
    const char* name;
    Activation activation;
};
// The first name of an activation is the one that is written.
constexpr ActivationName kActivations[] = {
    {"silu", Activation::silu},
    {"swish", Activation::silu},
    {"gelu", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
    {"gelu_fast", Activation::gelu_tanh},
    {"relu", Activation::relu},
};

Activation activation_from_name(const std::string& name, const char* where) {
    std::string known;
    for (const auto& entry : kActivations) {
        if (name == entry.name) return entry.activation;
        known += (known.empty() ? "" : ", ") + std::string(entry.name);
    }
    fail(ErrorCode::unsupported, "model", "{}: activation '{}' is not supported; known: {}", where, name,
         known);
}

}  // namespace

const char* activation_name(Activation activation) {
    return std::find_if(std::begin(kActivations), std::end(kActivations),
                        [&](const ActivationName& entry) { return entry.activation == activation; })
        ->name;
}

void fail_stock(const Model& model, const std::string& what) {
    fail(ErrorCode::unsupported, "export", "stock llama.cpp cannot express {} of this {} model", what,
         model.family->name);
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

// ---- GGUF metadata -> ModelConfig ----

int64_t FamilyKeys::size(const std::string& key) const {
    const uint64_t value = metadata_.integer(name(key));
    if (value == 0 || value > static_cast<uint64_t>(kMaxSize))
        fail(ErrorCode::input, family_, "key '{}' is out of range: {}", name(key), value);
    return static_cast<int64_t>(value);
}

int64_t FamilyKeys::size(const std::string& key, int64_t fallback) const {
    return has(key) ? size(key) : fallback;
}

float FamilyKeys::positive(const std::string& key, double fallback) const {
    const double value = metadata_.real(name(key), fallback);
    if (!(value > 0) || !std::isfinite(value))
        fail(ErrorCode::input, family_, "key '{}' must be positive, got {}", name(key), value);
    return static_cast<float>(value);
}

float FamilyKeys::at_least_zero(const std::string& key, double fallback) const {
    const double value = metadata_.real(name(key), fallback);
    if (!(value >= 0) || !std::isfinite(value))
        fail(ErrorCode::input, family_, "key '{}' must not be negative, got {}", name(key), value);
    return static_cast<float>(value);
}

ModelConfig read_common(const FamilyKeys& keys, NormKind norm, Activation activation) {
    if (const uint64_t experts = keys.metadata().integer(keys.name("expert_count"), 0); experts > 0) {
        fail(ErrorCode::unsupported, keys.family(), "mixture of experts is not supported (key '{}' is {})",
             keys.name("expert_count"), experts);
    }
    ModelConfig c;
    c.family = keys.family();
    c.n_embd = keys.size("embedding_length");
    c.n_head = keys.size("attention.head_count");
    c.n_head_kv = keys.size("attention.head_count_kv", c.n_head);
    if (c.n_head % c.n_head_kv != 0) {
        fail(ErrorCode::input, keys.family(), "key '{}' ({}) must be a multiple of '{}' ({})",
             keys.name("attention.head_count"), c.n_head, keys.name("attention.head_count_kv"), c.n_head_kv);
    }
    if (!keys.has("attention.key_length") && c.n_embd % c.n_head != 0) {
        fail(ErrorCode::input, keys.family(), "key '{}' ({}) is not a multiple of '{}' ({})",
             keys.name("embedding_length"), c.n_embd, keys.name("attention.head_count"), c.n_head);
    }
    c.head_dim = keys.size("attention.key_length", std::max<int64_t>(1, c.n_embd / c.n_head));
    if (const int64_t values = keys.size("attention.value_length", c.head_dim);
        c.head_dim > 4096 || values != c.head_dim) {
        fail(ErrorCode::unsupported, keys.family(), "keys '{}' ({}) and '{}' ({}) must be equal",
             keys.name("attention.key_length"), c.head_dim, keys.name("attention.value_length"), values);
    }
    c.n_ff = keys.size("feed_forward_length");
    c.n_vocab = keys.size("vocab_size", 0);
    c.context_length = keys.size("context_length");
    c.norm = norm;
    c.norm_eps = keys.positive(
        norm == NormKind::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", 1e-5);
    c.activation = activation;
    if (keys.metadata().has(kActivationKey))
        c.activation = activation_from_name(keys.metadata().string(kActivationKey), kActivationKey);
    c.attention_scale =
        keys.positive("attention.scale", 1.0 / std::sqrt(static_cast<double>(c.head_dim)));
    return c;
}

// Keys and defaults as llama.cpp reads them: linear is the default type; of YaRN's magnitude factor
// 1 + 0.1 ln(scale) ggml's rope multiplies by itself, so only the extra `attn_factor` is kept here.
Rope read_rope(const FamilyKeys& keys, const ModelConfig& config, RopeKind kind) {
    Rope rope;
    rope.kind = kind;
    const int64_t dims = keys.size("rope.dimension_count", config.head_dim);
    if (dims % 2 != 0 || dims > config.head_dim) {
        fail(ErrorCode::input, keys.family(), "key '{}' must be even and at most {}, got {}",
             keys.name("rope.dimension_count"), config.head_dim, dims);
    }
    rope.dims = static_cast<int>(dims);
    rope.base = keys.positive("rope.freq_base", 10000.0);
    double factor = keys.at_least_zero("rope.scaling.factor", 0.0);
    if (factor == 0.0) factor = keys.at_least_zero("rope.scale_linear", 0.0);
    rope.original_context =
        static_cast<int>(keys.size("rope.scaling.original_context_length", config.context_length));
    rope.beta_fast = keys.positive("rope.scaling.yarn_beta_fast", 32.0);
    rope.beta_slow = keys.positive("rope.scaling.yarn_beta_slow", 1.0);
    rope.attention_factor = keys.positive("rope.scaling.attn_factor", 1.0);
    const std::string type = keys.string("rope.scaling.type", "linear");
    if (type == "none") return rope;
    if (type == "dynamic") {
        rope.dynamic_factor = static_cast<float>(factor);
        return rope;
    }
    if (type != "linear" && type != "yarn") {
        fail(ErrorCode::unsupported, keys.family(),
             "rope scaling type '{}' is not supported; known: none, linear, dynamic, yarn", type);
    }
    if (factor != 0.0) rope.frequency_scale = static_cast<float>(1.0 / factor);
    if (type == "yarn") {
        rope.ext_factor = keys.at_least_zero("rope.scaling.yarn_ext_factor", 1.0);
        if (keys.has("rope.scaling.yarn_log_multiplier")) {
            fail(ErrorCode::unsupported, keys.family(), "key '{}' is not supported",
                 keys.name("rope.scaling.yarn_log_multiplier"));
        }
    }
    return rope;
}

std::vector<int64_t> read_windows(const FamilyKeys& keys, int64_t period) {
    const int64_t window = keys.size("attention.sliding_window", 0);
    if (window == 0) return {};
    const auto layers = static_cast<size_t>(keys.size("block_count"));
    const std::string name = keys.name("attention.sliding_window_pattern");
    std::vector<int64_t> windows(layers, 0);
    if (const GgufValue* value = keys.metadata().find(name);
        value != nullptr && value->type == GgufType::Array) {
        const auto& flags = *std::get<std::shared_ptr<const GgufArray>>(value->value);
        if (flags.count != layers || flags.packed.size() % layers != 0) {
            fail(ErrorCode::input, keys.family(), "key '{}' has {} entries, expected one for each of {} layers",
                 name, flags.count, layers);
        }
        const size_t width = flags.packed.size() / layers;
        for (size_t l = 0; l < layers; ++l) {
            const auto flag = std::span(flags.packed).subspan(l * width, width);
            if (std::any_of(flag.begin(), flag.end(), [](std::byte b) { return b != std::byte{0}; }))
                windows[l] = window;
        }
        return windows;
    }
    if (keys.metadata().has(name)) period = static_cast<int64_t>(keys.metadata().integer(name));
    for (size_t l = 0; l < layers; ++l) {
        const auto p = static_cast<size_t>(period);
        if (p == 0 || l % p != p - 1) windows[l] = window;
    }
    return windows;
}

// ---- config.json -> GGUF metadata ----

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
    const bool whole = value->is_number_integer() ||
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

double HfConfig::real(const char* field, double fallback) const { return has(field) ? real(field) : fallback; }

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
        fail(ErrorCode::input, "config.json", "fields contradict each other: '{}' ({}) is not a multiple of '{}' ({})",
             fields.heads, heads, fields.heads_kv, heads_kv);
    out.integer("vocab_size", size("vocab_size"));
    out.integer("embedding_length", hidden);
    out.integer("block_count", size(fields.layers));
    out.integer("attention.head_count", heads);
    out.integer("attention.head_count_kv", heads_kv);
    if (config.has("head_dim")) {
        out.integer("attention.key_length", size("head_dim"));
        out.integer("attention.value_length", size("head_dim"));
    } else if (hidden % heads != 0) {
        fail(ErrorCode::input, "config.json",
             "fields contradict each other: '{}' ({}) is not a multiple of '{}' ({}), and there is no 'head_dim'",
             fields.hidden, hidden, fields.heads, heads);
    }
    out.integer("feed_forward_length",
                config.has(fields.inner) || std::string(fields.inner) != "n_inner" ? size(fields.inner) : 4 * hidden);
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
        fail(ErrorCode::input, "config.json", "field 'rope_scaling' must be an object, got {}", object->dump());
    const HfConfig scaling(*object);
    const std::string type = scaling_type(*object);
    if (type == "default" || type == "llama3") return;
    if (type != "linear" && type != "dynamic" && type != "yarn") {
        fail(ErrorCode::unsupported, "config.json",
             "rope_scaling type '{}' is not supported; known: default, linear, dynamic, llama3, yarn", type);
    }
    const double factor = scaling.real("factor");
    if (!(factor >= 1))
        fail(ErrorCode::input, "config.json", "field 'rope_scaling.factor' must be at least 1, got {}", factor);
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
    if (window <= 0) fail(ErrorCode::input, "config.json", "field 'sliding_window' must be positive, got {}", window);
    out.integer("attention.sliding_window", window);
    for (size_t period = 0; period <= windowed.size(); ++period) {
        bool fits = true;
        for (size_t l = 0; l < windowed.size(); ++l)
            fits &= windowed[l] == (period == 0 || l % period != period - 1);
        if (!fits) continue;
        out.integer("attention.sliding_window_pattern", static_cast<int64_t>(period));
        return;
    }
    out.flags("attention.sliding_window_pattern", windowed);
}

// ---- ModelConfig -> config.json ----

nlohmann::json hf_common(const Model& model, const HfFields& fields, const char* architecture,
                         const char* model_type) {
    const ModelConfig& c = model.config;
    nlohmann::json out = {{"architectures", {architecture}},
                          {"model_type", model_type},
                          {"vocab_size", c.n_vocab},
                          {fields.hidden, c.n_embd},
                          {fields.layers, model.topology.positions.size()},
                          {fields.heads, c.n_head},
                          {fields.inner, c.n_ff},
                          {fields.context, c.context_length},
                          {fields.epsilon, c.norm_eps},
                          {fields.activation, activation_name(c.activation)}};
    if (c.n_head_kv != c.n_head) out[fields.heads_kv] = c.n_head_kv;
    if (c.head_dim * c.n_head != c.n_embd) out["head_dim"] = c.head_dim;
    const auto& globals = model.topology.globals;
    if (const auto output = globals.find(Slot::output); output != globals.end())
        out["tie_word_embeddings"] = output->second == globals.at(Slot::token_embd);
    for (const auto& [field, key] :
         {std::pair{"bos_token_id", "tokenizer.ggml.bos_token_id"}, {"eos_token_id", "tokenizer.ggml.eos_token_id"},
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
