// An architecture is a description: how its metadata and tensors are named, in GGUF and in Hugging Face
// checkpoints. The forward pass is not here.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "model/config.h"
#include "model/topology.h"

namespace refold {

class HfConfig;
class Model;
struct StockModel;

// How a Hugging Face checkpoint stores a tensor that GGUF has as rows of contiguous inputs; flags combine.
enum HfLayout : unsigned {
    hf_plain = 0,
    hf_rotary = 1,         // rows of a head as (first half, second half); GGUF: pairs
    hf_transposed = 2,     // [in, out]
    hf_plus_one = 4,       // GGUF holds the stored value + 1
    hf_stacked = 8,        // one tensor: all of q, all of k, all of v; or all of gate, all of up
    hf_qkv_per_head = 16,  // one tensor: q, k, v of the first head, of the second, ...
    hf_by_head = 32,       // a vector as rows of heads
    hf_interleaved = 64,   // stacked, with a row of gate and one of up in turn
    hf_first_rows = 128,   // the rows of the first tokens; GGUF is filled up with zeros
};

struct SlotDescription {
    Slot slot;
    const char* tensor;  // GGUF name; "{}" stands for the layer
    bool required;
    // Name in a checkpoint; "@" is Family::hf_prefix or nothing, "|" separates alternatives, "[]" stands for
    // the head of a vector, or the expert or stream of a matrix, that it has in one tensor for each. Null:
    // checkpoints do not have it.
    const char* hf;
    unsigned layout = hf_plain;
    const char* fallback = nullptr;  // GGUF tensor used when `tensor` is absent (tied embeddings) ...
    std::optional<Slot> with = std::nullopt;  // ... if this slot is there
};

// A field of config.json that nobody reads: see check_fields().
struct UnreadField {
    const char* name;
    const char* value = nullptr;  // the only one that may stand there (JSON), besides null; nullptr: any
};

// Maps of one input as one tensor of a GGUF file, one below the other.
struct FusedMaps {
    Slot first;                  // of their product group
    const char* weight;          // the tensor's name
    const char* bias = nullptr;  // of that of their biases; null: they have none
};
inline constexpr FusedMaps kFusedQkv = {Slot::attn_q, "blk.{}.attn_qkv.weight", "blk.{}.attn_qkv.bias"};

// How often the layers run that a checkpoint stores, as config.json says it.
struct HfRepeats {
    // Each layer in succession, before the next one; null: once.
    size_t (*of_layer)(const HfConfig& config) = nullptr;
    // Writes it; `stored` layers. Throws Error(unsupported) for what the field cannot say.
    void (*write)(nlohmann::json& config, size_t stored, size_t repeats) = nullptr;
    const char* loops = nullptr;  // the field of how often all layers run, one after the other
};

struct Family {
    const char* name;  // general.architecture
    std::vector<SlotDescription> layer_slots;
    std::vector<SlotDescription> model_slots;
    // Reads the family's keys. Throws Error(input) naming the key, Error(unsupported) for variants that the
    // forward pass does not compute.
    ModelConfig (*read_config)(const GgufMetadata& metadata);

    std::vector<const char*> hf_model_types;  // config.json's model_type
    // Of the base model's tensors, which some checkpoints leave out; "|" separates alternatives.
    const char* hf_prefix;
    const char* hf_bias = nullptr;   // the field of all biases, instead of attention_bias and mlp_bias
    HfRepeats hf_repeats = {};       // of layers, where checkpoints say any
    const char* hf_norms = nullptr;  // the field of optional norms of queries and keys
    std::vector<UnreadField> hf_unread = {};  // besides those that no family reads
    // config.json -> the family's metadata keys. Throws Error(input) naming the field, Error(unsupported).
    void (*read_hf_config)(const HfConfig& config, GgufMetadata& metadata);
    // The other way, for models that did not come from Hugging Face.
    nlohmann::json (*write_hf_config)(const Model& model);

    // Checkpoints have ffn.output_norm in the last layer that they store only: the norm of every loop.
    bool hf_norm_of_loop = false;
    std::vector<FusedMaps> fused = {};  // what stock llama.cpp wants as one tensor
    // A model without sharing as stock llama.cpp reads it, where that differs. Throws Error(unsupported)
    // naming what it cannot express.
    StockModel (*to_stock)(const Model& model) = nullptr;
};

// One of each file in model/families, in the order of their names.
std::span<const Family* const> families();
// Throws Error(unsupported) listing the known families.
const Family& find_family(const std::string& name);

// GGUF name of the tensor for a slot of a layer.
std::string tensor_name(const SlotDescription& slot, size_t layer);
std::string tensor_name(const Family& family, Slot slot, size_t layer);
// "{}" replaced by the layer.
std::string numbered(const char* pattern, size_t layer);

// Whether layers with a mixture of experts, or those with an FFN, may have the slot.
bool is_of_layer(Slot slot, bool mixture);

// The topology that the family's naming implies: every slot its own tensor, and the attention sources that
// the architecture has. `has_tensor` tells which optional tensors exist; required ones are named even when
// absent (validation reports them).
Topology implied_topology(const Family& family, const ModelConfig& config, size_t layers,
                          const std::function<bool(const std::string&)>& has_tensor);
// The sources that follow from ModelConfig::first_kv_shared. Throws Error(input) where a layer has none.
std::map<size_t, AttentionSource> implied_sources(const ModelConfig& config, size_t layers);
// The tensors that checkpoints and llama.cpp's files have for slots of these layers' keys and values, and
// that nothing reads. They are kept for the way back. None without a family.
std::set<std::string> unread_tensors(const Family* family, const ModelConfig& config, size_t layers);

}  // namespace refold
