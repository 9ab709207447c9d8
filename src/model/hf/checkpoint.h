// Hugging Face directories: config.json, safetensors (one file or shards with an index), tokenizer files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "model/model.h"

namespace refold {

// The tensors of a directory, mapped.
class HfCheckpoint {
public:
    // One file of weights holds, whatever index is beside it, as in transformers. Throws Error(io) for
    // missing files, Error(input) for an index or shard that is malformed or does not fit the other.
    explicit HfCheckpoint(const std::string& folder);

    struct NamedView {
        std::string name;
        const SafetensorsView* view = nullptr;
    };
    // The tensor of a layer by any of the names that hf_names() makes of a slot's description.
    std::optional<NamedView> find(const char* names, const char* prefix, size_t layer) const;
    const std::map<std::string, const SafetensorsView*>& tensors() const { return tensors_; }

    std::shared_ptr<const SourceFiles> files() const { return files_; }

private:
    void add_shard(const std::string& path, const nlohmann::json* weight_map, const std::string& shard);
    std::vector<SafetensorsFile> shards_;
    std::map<std::string, const SafetensorsView*> tensors_;
    std::shared_ptr<const SourceFiles> files_;
};

// A directory as a model, as if it had been converted to GGUF: tensors are views of the mapped shards where
// the layouts agree, and are rearranged on reading where they do not. The key "refold.checkpoint" keeps
// config.json and the tensors' names and types, to write the same directory again. Every tensor is read,
// known to change nothing, or an error. Throws Error(io), Error(input), Error(unsupported) naming file, field
// or tensor.
Model load_hf_model(const std::string& folder);

// Kept by load_hf_model(); empty for models that did not come from a directory.
struct CheckpointRecord {
    std::string config;                        // text of config.json
    std::map<std::string, std::string> types;  // tensor name -> element type
};
CheckpointRecord checkpoint_record(const GgufMetadata& metadata);
// The original bytes of a vector whose GGUF form (1 + weight) cannot be turned back exactly.
std::string raw_vector_key(const std::string& tensor);

}  // namespace refold
