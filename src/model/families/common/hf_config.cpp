#include "model/families/common/hf_config.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "core/error.h"
#include "model/activation.h"
#include "model/families/common/gguf_keys.h"
#include "model/materialize.h"

namespace refold {

static constexpr int64_t kMaxLayers = 4096;

static std::string scaling_type(const HfConfig& scaling) { return scaling.string("rope_type", "default"); }

void check_asked(const HfConfig& object, const std::string& name) {
    for (const auto& [field, value] : object.json().items()) {
        if (!value.is_null() && !object.asked(field))
            fail(ErrorCode::unsupported, "config.json",
                 "field '{}.{}' ({}) is not known for this type of rotation", name, field, value.dump());
    }
}

const nlohmann::json* HfConfig::find(const char* field) const {
    asked_.insert(field);
    const auto found = json_.find(field);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
}

bool HfConfig::given(const char* field) const {
    asked_.insert(field);
    return json_.contains(field);
}

static int64_t whole_number(const nlohmann::json& value, const char* field) {
    // 2048.0 is 2048 to Python too.
    const bool whole = value.is_number_integer() ||
                       (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()) &&
                        std::abs(value.get<double>()) < 1e15);
    const double number = whole ? value.get<double>() : -1;
    if (!whole || number < 0 || number > static_cast<double>(kMaxSize))
        fail(ErrorCode::input, "config.json", "field '{}' must be a whole number from 0 to {}, got {}", field,
             kMaxSize, value.dump());
    return value.is_number_integer() ? value.get<int64_t>() : static_cast<int64_t>(number);
}

int64_t HfConfig::integer(const char* field) const {
    const nlohmann::json* value = find(field);
    if (value == nullptr) fail(ErrorCode::input, "config.json", "field '{}' is missing", field);
    return whole_number(*value, field);
}

int64_t HfConfig::integer_of_layers(const char* field) const {
    const nlohmann::json* value = find(field);
    if (value == nullptr || !value->is_array() || value->empty()) return integer(field);
    const auto differs = [&](const nlohmann::json& item) { return item != value->front(); };
    if (std::any_of(value->begin(), value->end(), differs))
        fail(ErrorCode::unsupported, "config.json", "field '{}' differs from layer to layer: {}", field,
             value->dump());
    return whole_number(value->front(), field);
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

std::optional<size_t> label_count(const HfConfig& config) {
    const nlohmann::json* const classes = config.find("architectures");
    const nlohmann::json* const labels = config.find("id2label");
    if (classes == nullptr || !classes->is_array() || classes->empty() || !classes->front().is_string() ||
        !classes->front().get_ref<const std::string&>().ends_with("ForSequenceClassification"))
        return std::nullopt;
    if (labels != nullptr && !labels->is_object())
        fail(ErrorCode::input, "config.json", "field 'id2label' must be an object, got {}", labels->dump());
    return labels != nullptr ? labels->size() : static_cast<size_t>(config.integer("num_labels", 2));
}

bool scores_texts(const HfConfig& config) { return label_count(config) == 1; }

std::string HfConfig::string(const char* field, const std::string& fallback) const {
    return has(field) ? string(field) : fallback;
}

std::string HfConfig::string(const char* field) const {
    const nlohmann::json* value = find(field);
    if (value == nullptr) fail(ErrorCode::input, "config.json", "field '{}' is missing", field);
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
void FamilyWriter::reals(const std::string& key, const std::vector<float>& values) {
    auto array = std::make_shared<GgufArray>();
    array->element = GgufType::F32;
    array->count = values.size();
    const auto bytes = std::as_bytes(std::span(values));
    array->packed.assign(bytes.begin(), bytes.end());
    metadata_.set(std::string(family_) + "." + key, {GgufType::Array, std::move(array)});
}
void FamilyWriter::activation(const std::string& name) {
    metadata_.set(kActivationKey, GgufValue::string(name));
}

void write_common(const HfConfig& config, const HfFields& fields, NormKind norm, Activation activation,
                  FamilyWriter& out) {
    const auto size = [&](const char* field) {
        const int64_t value = config.integer(field);
        if (value == 0) fail(ErrorCode::input, "config.json", "field '{}' must not be 0", field);
        return value;
    };
    const int64_t hidden = size(fields.hidden), heads = size(fields.heads);
    const int64_t heads_kv = fields.heads_kv == nullptr ? heads : config.integer(fields.heads_kv, heads);
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
        const int64_t head_dim = size("head_dim");
        out.integer("attention.key_length", head_dim);
        out.integer("attention.value_length", head_dim);
    } else if (hidden % heads != 0) {
        fail(ErrorCode::input, "config.json",
             "fields contradict each other: '{}' ({}) is not a multiple of '{}' ({}), and there is no "
             "'head_dim'",
             fields.hidden, hidden, fields.heads, heads);
    }
    const bool usual_inner = std::string_view(fields.inner) == "n_inner" && !config.has(fields.inner);
    const int64_t inner = usual_inner              ? 4 * hidden
                          : fields.inner_of_layers ? config.integer_of_layers(fields.inner)
                                                   : config.integer(fields.inner);
    if (inner == 0) fail(ErrorCode::input, "config.json", "field '{}' must not be 0", fields.inner);
    if (fields.inner_of_layers && config.find(fields.inner)->is_array() &&
        static_cast<int64_t>(config.find(fields.inner)->size()) != layers)
        fail(ErrorCode::input, "config.json", "field '{}' must have one entry for each of {} layers",
             fields.inner, layers);
    out.integer("feed_forward_length", inner);
    out.integer("context_length", size(fields.context));
    const double epsilon = config.real(fields.epsilon);
    if (!(epsilon > 0))
        fail(ErrorCode::input, "config.json", "field '{}' must be positive, got {}", fields.epsilon, epsilon);
    out.real(norm == NormKind::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
             epsilon);
    const std::string name = config.string(fields.activation);
    if (activation_from_name(name, "config.json") != activation) out.activation(name);
}

// YaRN's factor of cosines and sines, as transformers computes it.
static double yarn_attention_factor(const HfConfig& scaling, double factor) {
    const auto magnitude = [&](double scale) { return 0.1 * scale * std::log(factor) + 1; };
    const double scale = scaling.real("mscale", 0), scale_all = scaling.real("mscale_all_dim", 0);
    const double usual =
        scale != 0 && scale_all != 0 ? magnitude(scale) / magnitude(scale_all) : magnitude(1);
    return scaling.real("attention_factor", usual);
}

// Null is false to Python.
static bool truncates(const HfConfig& scaling) {
    return scaling.given("truncate") ? scaling.boolean("truncate", false) : true;
}

static void write_yarn(const HfConfig& scaling, double factor, FamilyWriter& out) {
    if (const int64_t original = scaling.integer("original_max_position_embeddings", 0); original > 0)
        out.integer("rope.scaling.original_context_length", original);
    out.real("rope.scaling.yarn_beta_fast", scaling.real("beta_fast", 32));
    out.real("rope.scaling.yarn_beta_slow", scaling.real("beta_slow", 1));
    out.real("rope.scaling.attn_factor",
             yarn_attention_factor(scaling, factor) / (0.1 * std::log(factor) + 1));
    if (!truncates(scaling)) out.boolean(kYarnTruncateKey, false);  // see yarn_factors()
}

static double usual_longrope_magnitude(double factor, double original) {
    return factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1.0;
}

// As transformers: the factor of cosines and sines follows from how far the context was stretched.
static void write_longrope(const HfConfig& config, const HfConfig& scaling, FamilyWriter& out) {
    const int64_t context = config.integer("max_position_embeddings");
    const int64_t original = config.integer("original_max_position_embeddings", context);
    if (original < 2)
        fail(ErrorCode::input, "config.json",
             "field 'original_max_position_embeddings' must be at least 2, got {}", original);
    const double factor =
        scaling.real("factor", static_cast<double>(context) / static_cast<double>(original));
    const double usual = usual_longrope_magnitude(factor, static_cast<double>(original));
    out.integer("rope.scaling.original_context_length", original);
    out.real("rope.scaling.attn_factor", scaling.real("attention_factor", usual));
    for (const char* field : {"short_factor", "long_factor"}) {  // tensors: see longrope_factors()
        if (!scaling.has(field))
            fail(ErrorCode::input, "config.json", "field 'rope_scaling.{}' is missing", field);
    }
}

void write_rope(const HfConfig& config, FamilyWriter& out) {
    out.real("rope.freq_base", config.real("rope_theta"));
    const nlohmann::json* object = config.find("rope_scaling");
    if (object == nullptr) return;
    if (!object->is_object())
        fail(ErrorCode::input, "config.json", "field 'rope_scaling' must be an object, got {}",
             object->dump());
    const HfConfig scaling(*object);
    const std::string type = scaling_type(scaling);
    if (type == "linear" || type == "dynamic" || type == "yarn") {
        const double factor = scaling.real("factor");
        if (!(factor >= 1))
            fail(ErrorCode::input, "config.json", "field 'rope_scaling.factor' must be at least 1, got {}",
                 factor);
        out.string("rope.scaling.type", type);
        out.real("rope.scaling.factor", factor);
        if (type == "yarn") write_yarn(scaling, factor, out);
    } else if (type == "llama3") {  // a tensor: see llama3_factors()
        for (const char* field :
             {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
            scaling.real(field);
    } else if (type == "longrope") {
        write_longrope(config, scaling, out);
    } else if (type != "default") {
        fail(ErrorCode::unsupported, "config.json",
             "rope_scaling type '{}' is not supported; known: default, linear, dynamic, llama3, longrope, "
             "yarn",
             type);
    }
    check_asked(scaling, "rope_scaling");
}

int64_t head_dim_of(const HfConfig& config) {
    return config.integer("head_dim", config.integer("hidden_size") / config.integer("num_attention_heads"));
}

void write_rotated_part(const HfConfig& config, FamilyWriter& out) {
    const double part = config.real("partial_rotary_factor");
    out.integer("rope.dimension_count",
                static_cast<int64_t>(static_cast<double>(head_dim_of(config)) * part));
}

double rotated_part(const ModelConfig& config) {
    return static_cast<double>(config.rope.dims) / static_cast<double>(config.head_dim);
}

std::vector<float> longrope_factors(const nlohmann::json& json, const char* field, int64_t dims) {
    const nlohmann::json* object = HfConfig(json).find("rope_scaling");
    if (object == nullptr) return {};
    const HfConfig scaling(*object);
    if (scaling_type(scaling) != "longrope") return {};
    const nlohmann::json* given = scaling.find(field);
    const bool numbers =
        given != nullptr && given->is_array() &&
        std::all_of(given->begin(), given->end(), [](const auto& x) { return x.is_number(); });
    if (!numbers || static_cast<int64_t>(given->size()) != dims / 2)
        fail(ErrorCode::input, "config.json", "field 'rope_scaling.{}' must be a list of {} numbers", field,
             dims / 2);
    return given->get<std::vector<float>>();
}

// As transformers' _compute_yarn_parameters.
std::vector<float> yarn_factors(const nlohmann::json& json, int64_t dims) {
    const HfConfig config(json);
    const nlohmann::json* object = config.find("rope_scaling");
    if (object == nullptr || !object->is_object()) return {};
    const HfConfig scaling(*object);
    if (scaling_type(scaling) != "yarn" || truncates(scaling)) return {};
    const double factor = scaling.real("factor"), theta = config.real("rope_theta");
    const auto original = static_cast<double>(
        scaling.integer("original_max_position_embeddings", config.integer("max_position_embeddings")));
    const auto width = static_cast<double>(dims);
    const auto dimension_of = [&](double rotations) {
        return width * std::log(original / (rotations * 2 * M_PI)) / (2 * std::log(theta));
    };
    const double low = std::max(0.0, dimension_of(scaling.real("beta_fast", 32)));
    double high = std::min(width - 1, dimension_of(scaling.real("beta_slow", 1)));
    if (low == high) high += 0.001;
    std::vector<float> factors;
    for (int64_t i = 0; i < dims / 2; ++i) {
        const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        factors.push_back(static_cast<float>(1 / (ramp / factor + 1 - ramp)));
    }
    return factors;
}

std::vector<float> llama3_factors(const nlohmann::json& json, int64_t dims) {
    const HfConfig config(json);
    const nlohmann::json* object = config.find("rope_scaling");
    if (object == nullptr || !object->is_object()) return {};
    const HfConfig scaling(*object);
    if (scaling_type(scaling) != "llama3") return {};
    const double factor = scaling.real("factor"), low = scaling.real("low_freq_factor"),
                 high = scaling.real("high_freq_factor"),
                 original = scaling.real("original_max_position_embeddings"),
                 theta = config.real("rope_theta");
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

static bool is_windowed(const nlohmann::json& layer_type) {
    if (layer_type != "sliding_attention" && layer_type != "full_attention")
        fail(ErrorCode::unsupported, "config.json",
             "field 'layer_types' has {}, which is not supported; known: sliding_attention, full_attention",
             layer_type.dump());
    return layer_type == "sliding_attention";
}

std::vector<bool> layers_with_window(const HfConfig& config, const std::function<bool(size_t layer)>& usual) {
    std::vector<bool> windowed(static_cast<size_t>(config.integer("num_hidden_layers")));
    const nlohmann::json* types = config.find("layer_types");
    if (types != nullptr && (!types->is_array() || types->size() != windowed.size())) {
        fail(ErrorCode::input, "config.json", "field 'layer_types' must have one entry for each of {} layers",
             windowed.size());
    }
    for (size_t l = 0; l < windowed.size(); ++l)
        windowed[l] = types != nullptr ? is_windowed((*types)[l]) : usual(l);
    return windowed;
}

void check_windows_are_used(const std::vector<bool>& windowed, bool used) {
    if (!used && std::find(windowed.begin(), windowed.end(), true) != windowed.end())
        fail(ErrorCode::unsupported, "config.json",
             "field 'layer_types' names layers with a window, but 'use_sliding_window' is false or "
             "'sliding_window' is missing: change one of them");
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
    if (fields.heads_kv != nullptr)
        out[fields.heads_kv] = c.n_head_kv;  // where it is absent, classes have defaults of their own
    else if (c.n_head_kv != c.n_head)
        fail(ErrorCode::unsupported, "export",
             "a configuration of '{}' has no field for {} key/value heads of {} query heads", model_type,
             c.n_head_kv, c.n_head);
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

void windows_to_hf(const Model& model, nlohmann::json& config) {
    const ModelConfig& c = model.config;
    nlohmann::json types = nlohmann::json::array();
    for (size_t l = 0; l < model.topology.layers.size(); ++l) {
        types.push_back(c.window(l) > 0 ? "sliding_attention" : "full_attention");
        if (c.window(l) > 0) config["sliding_window"] = c.window(l);
    }
    config["layer_types"] = std::move(types);
}

// rope_scaling with the factors of each frequency, which only LongRoPE has as tensors that say so.
// transformers 4 takes these three fields alone.
static nlohmann::json hf_longrope(const Model& model) {
    const auto factors = [&](Slot slot) {
        return nlohmann::json(materialize(model, model.topology.globals.at(slot), slot));
    };
    nlohmann::json out = {{"type", "longrope"},
                          {"short_factor", factors(Slot::rope_freqs)},
                          {"long_factor", factors(Slot::rope_freqs_long)}};
    const Rope& rope = model.config.rope;
    const double usual = usual_longrope_magnitude(
        static_cast<double>(model.config.context_length) / rope.original_context, rope.original_context);
    if (std::abs(rope.attention_factor / usual - 1) > 1e-6) out["attention_factor"] = rope.attention_factor;
    return out;
}

void hf_rope(const Model& model, nlohmann::json& config) {
    const Rope& rope = model.config.rope;
    config["rope_theta"] = rope.base;
    if (model.topology.globals.contains(Slot::rope_freqs_long)) {
        config["original_max_position_embeddings"] = rope.original_context;
        config["rope_scaling"] = hf_longrope(model);
    } else if (model.topology.globals.contains(Slot::rope_freqs)) {
        fail(ErrorCode::unsupported, "export",
             "the rope factors of this GGUF do not say which rope_scaling they came from - export from the "
             "Hugging Face checkpoint");
    } else if (rope.ext_factor > 0) {
        const double factor = 1.0 / rope.frequency_scale;
        config["rope_scaling"] = {{"rope_type", "yarn"},
                                  {"factor", factor},
                                  {"original_max_position_embeddings", rope.original_context},
                                  {"beta_fast", rope.beta_fast},
                                  {"beta_slow", rope.beta_slow}};
        if (rope.attention_factor != 1.0F)
            config["rope_scaling"]["attention_factor"] = rope.attention_factor * (0.1 * std::log(factor) + 1);
    } else if (rope.dynamic_factor > 0) {
        config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", rope.dynamic_factor}};
    } else if (rope.frequency_scale != 1.0F) {
        config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 1.0 / rope.frequency_scale}};
    }
}

}  // namespace refold
