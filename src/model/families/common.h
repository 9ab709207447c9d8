// What most families' metadata and config.json have in common.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/family.h"
#include "model/model.h"

namespace refold {

// Nothing that a model counts is larger.
inline constexpr int64_t kMaxSize = int64_t{1} << 30;

// ---- GGUF metadata -> ModelConfig ----

// Typed access to the keys of one architecture; `key` is without the architecture's prefix. All throw
// Error(input) naming the key.
class FamilyKeys {
public:
    FamilyKeys(const GgufMetadata& metadata, const char* family) : metadata_(metadata), family_(family) {}

    std::string name(const std::string& key) const { return std::string(family_) + "." + key; }
    bool has(const std::string& key) const { return metadata_.has(name(key)); }
    int64_t size(const std::string& key) const;  // 1 to 2^30
    int64_t size(const std::string& key, int64_t fallback) const;
    float positive(const std::string& key, double fallback) const;  // finite and > 0
    float at_least_zero(const std::string& key, double fallback) const;
    bool boolean(const std::string& key, bool fallback) const {
        return metadata_.boolean(name(key), fallback);
    }
    std::string string(const std::string& key, const std::string& fallback) const {
        return metadata_.string(name(key), fallback);
    }
    const GgufMetadata& metadata() const { return metadata_; }
    const char* family() const { return family_; }

private:
    const GgufMetadata& metadata_;
    const char* family_;
};

// Sizes, context, norm, activation and attention scale. Defaults as llama.cpp's.
ModelConfig read_common(const FamilyKeys& keys, NormKind norm, Activation activation);
// Rotation with the scalings none, linear, dynamic and yarn.
Rope read_rope(const FamilyKeys& keys, const ModelConfig& config, RopeKind kind);
// attention.sliding_window and its pattern (a period n: every n-th layer sees all; or one flag per layer).
// `period` is used when the pattern is absent; 1: no layer has a window, 0: all have.
std::vector<int64_t> read_windows(const FamilyKeys& keys, int64_t period);

// ---- config.json -> GGUF metadata ----

// config.json in the older form that the families read: "rope_parameters" of newer files, for all layers or
// by kind of layer, become rope_theta, rope_scaling, partial_rotary_factor and rope_local_base_freq.
nlohmann::json with_older_fields(nlohmann::json config);

// config.json with typed access. All throw Error(input) naming the field; null counts as absent.
class HfConfig {
public:
    explicit HfConfig(const nlohmann::json& json) : json_(json) {}

    const nlohmann::json* find(const char* field) const;
    bool has(const char* field) const { return find(field) != nullptr; }
    int64_t integer(const char* field) const;
    int64_t integer(const char* field, int64_t fallback) const;
    double real(const char* field) const;
    double real(const char* field, double fallback) const;
    bool boolean(const char* field, bool fallback) const;
    std::string string(const char* field, const std::string& fallback) const;

private:
    const nlohmann::json& json_;
};

// Names of the fields of one model_type.
struct HfFields {
    const char* hidden = "hidden_size";
    const char* layers = "num_hidden_layers";
    const char* heads = "num_attention_heads";
    const char* heads_kv = "num_key_value_heads";
    const char* inner = "intermediate_size";
    const char* context = "max_position_embeddings";
    const char* epsilon = "rms_norm_eps";
    const char* activation = "hidden_act";
};

// Those of GPT-2 and GPT-J.
inline constexpr HfFields kGptFields = {"n_embd",
                                        "n_layer",
                                        "n_head",
                                        "n_head_kv",
                                        "n_inner",
                                        "n_positions",
                                        "layer_norm_epsilon",
                                        "activation_function"};

// Writes the keys of one architecture.
class FamilyWriter {
public:
    FamilyWriter(GgufMetadata& metadata, const char* family) : metadata_(metadata), family_(family) {}
    void integer(const std::string& key, int64_t value);
    void real(const std::string& key, double value);
    void boolean(const std::string& key, bool value);
    void string(const std::string& key, const std::string& value);
    void flags(const std::string& key, const std::vector<bool>& values);
    // Of a checkpoint that differs from its family's usual one.
    void activation(const std::string& name);

private:
    GgufMetadata& metadata_;
    const char* family_;
};

// Sizes, context, epsilon and activation. Throws Error(input) for sizes that contradict each other.
void write_common(const HfConfig& config, const HfFields& fields, NormKind norm, Activation activation,
                  double default_epsilon, FamilyWriter& out);
// rope_theta and rope_scaling; the factors of Llama 3's scaling are a tensor: see llama3_factors().
void write_rope(const HfConfig& config, double default_theta, FamilyWriter& out);
// The factors of each frequency for rope_scaling of type "llama3"; empty for other types.
std::vector<float> llama3_factors(const nlohmann::json& config, int64_t dims);
// Which layers have a window: "layer_types" of newer files says it, else `usual`.
std::vector<bool> layers_with_window(const HfConfig& config, const std::function<bool(size_t layer)>& usual);
// Windows by layer: as a period where the layers repeat one, else one flag each.
void write_windows(int64_t window, const std::vector<bool>& windowed, FamilyWriter& out);

// ---- ModelConfig -> config.json ----

nlohmann::json hf_common(const Model& model, const HfFields& fields, const char* architecture,
                         const char* model_type);
// Fields rope_theta and rope_scaling.
void hf_rope(const Model& model, nlohmann::json& config);

// The same metadata for another architecture, without what is kept for the way back to the checkpoint: the
// tensors no longer are the checkpoint's.
GgufMetadata renamed_metadata(const GgufMetadata& metadata, const std::string& from, const std::string& to);

// Throws Error(unsupported): stock llama.cpp cannot express `what`.
[[noreturn]] void fail_stock(const Model& model, const std::string& what);

// "silu", "gelu", ...: the names in config.json. Throws Error(unsupported) naming `where` and the known ones.
const char* activation_name(Activation activation);
Activation activation_from_name(const std::string& name, const char* where);
// Key of the activation where it is not its family's usual one.
inline constexpr const char* kActivationKey = "refold.activation";

}  // namespace refold
