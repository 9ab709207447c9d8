// config.json -> GGUF metadata and back: the fields that most families have.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "model/config.h"
#include "model/model.h"

namespace refold {

// config.json with typed access, as readable_config() (model/hf) gives it: absent fields have transformers'
// defaults. All throw Error(input) naming the field; null counts as absent.
class HfConfig {
public:
    explicit HfConfig(const nlohmann::json& json) : json_(json) {}

    const nlohmann::json* find(const char* field) const;
    bool given(const char* field) const;  // null counts as given
    bool has(const char* field) const { return find(field) != nullptr; }
    int64_t integer(const char* field) const;
    int64_t integer(const char* field, int64_t fallback) const;
    int64_t integer_of_layers(const char* field) const;  // or a list of equal ones, one for each layer
    double real(const char* field) const;
    double real(const char* field, double fallback) const;
    bool boolean(const char* field, bool fallback) const;
    std::string string(const char* field) const;
    std::string string(const char* field, const std::string& fallback) const;

    const nlohmann::json& json() const { return json_; }
    // Somebody has asked for the field, whether it is there or not: see check_fields().
    bool asked(const std::string& field) const { return asked_.contains(field); }

private:
    const nlohmann::json& json_;
    mutable std::set<std::string> asked_;
};

// The number of labels of a sequence classifier, as transformers counts them; nothing for other checkpoints.
std::optional<size_t> label_count(const HfConfig& config);
// Whether the checkpoint is a sequence classifier with one label: its head scores a text or a pair of texts.
bool scores_texts(const HfConfig& config);

// Names of the fields of one model_type.
struct HfFields {
    const char* hidden = "hidden_size";
    const char* layers = "num_hidden_layers";
    const char* heads = "num_attention_heads";
    const char* heads_kv = "num_key_value_heads";  // nullptr: as many as query heads
    const char* inner = "intermediate_size";
    const char* context = "max_position_embeddings";
    const char* epsilon = "rms_norm_eps";
    const char* activation = "hidden_act";
    bool inner_of_layers = false;  // that field may be a list, one for each layer
};

// Usual ones of families with LayerNorm.
inline constexpr HfFields kLayerNormFields = {.epsilon = "layer_norm_eps"};
// Those of GPT-2 and GPT-J.
inline constexpr HfFields kGptFields = {"n_embd",
                                        "n_layer",
                                        "n_head",
                                        nullptr,
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
    void reals(const std::string& key, const std::vector<float>& values);
    // Of a checkpoint that differs from its family's usual one.
    void activation(const std::string& name);

private:
    GgufMetadata& metadata_;
    const char* family_;
};

// Sizes, context, epsilon and activation. Throws Error(input) for sizes that contradict each other.
void write_common(const HfConfig& config, const HfFields& fields, NormKind norm, Activation activation,
                  FamilyWriter& out);
// rope_theta and rope_scaling; factors by frequency are tensors: see llama3_factors(), longrope_factors().
void write_rope(const HfConfig& config, FamilyWriter& out);
// rope.dimension_count: "partial_rotary_factor" of a head.
void write_rotated_part(const HfConfig& config, FamilyWriter& out);
// The size of a head: "head_dim", or a share of hidden_size.
int64_t head_dim_of(const HfConfig& config);
// The factors of each frequency for rope_scaling of type "llama3"; empty for other types.
std::vector<float> llama3_factors(const nlohmann::json& config, int64_t dims);
// Those of type "longrope": `field` is short_factor or long_factor.
std::vector<float> longrope_factors(const nlohmann::json& config, const char* field, int64_t dims);
// Those of type "yarn" with "truncate": false.
std::vector<float> yarn_factors(const nlohmann::json& config, int64_t dims);
// Throws Error(unsupported) naming a field of an object within config.json that nobody has asked for.
void check_asked(const HfConfig& object, const std::string& name);
// Which layers have a window: "layer_types" of newer files says it, else `usual`. Throws Error(unsupported)
// for layers of other types.
std::vector<bool> layers_with_window(const HfConfig& config, const std::function<bool(size_t layer)>& usual);
// Throws Error(unsupported) where "layer_types" names layers with a window and the model has none.
void check_windows_are_used(const std::vector<bool>& windowed, bool used);
// Windows by layer: as a period where the layers repeat one, else one flag each.
void write_windows(int64_t window, const std::vector<bool>& windowed, FamilyWriter& out);

// ---- back: ModelConfig -> config.json ----

nlohmann::json hf_common(const Model& model, const HfFields& fields, const char* architecture,
                         const char* model_type);
// The part of a head that is rotated.
double rotated_part(const ModelConfig& config);
// Fields sliding_window, where layers have windows, and layer_types.
void windows_to_hf(const Model& model, nlohmann::json& config);
// Fields rope_theta and rope_scaling.
void hf_rope(const Model& model, nlohmann::json& config);

}  // namespace refold
