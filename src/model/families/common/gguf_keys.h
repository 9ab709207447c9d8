// GGUF metadata -> ModelConfig: the keys that most families have.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "model/config.h"

namespace refold {

// Nothing that a model counts is larger.
inline constexpr int64_t kMaxSize = int64_t{1} << 30;

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
    // One flag for each layer; nothing where the key is absent or not an array.
    std::optional<std::vector<bool>> flags(const std::string& key) const;
    // One number for each layer, which may be infinite; nothing where the key is absent.
    std::optional<std::vector<float>> reals(const std::string& key) const;
    const GgufMetadata& metadata() const { return metadata_; }
    const char* family() const { return family_; }

private:
    const GgufMetadata& metadata_;
    const char* family_;
};

// Sizes, context, norm, activation and attention scale. Defaults as llama.cpp's.
ModelConfig read_sizes(const FamilyKeys& keys, NormKind norm, Activation activation);
// The same of a family without mixtures of experts, which are refused.
ModelConfig read_common(const FamilyKeys& keys, NormKind norm, Activation activation);
// Rotation with the scalings none, linear, dynamic and yarn.
Rope read_rope(const FamilyKeys& keys, const ModelConfig& config, RopeKind kind);
// Key of the layers that rotate queries and keys, where they are not the family's usual ones.
inline constexpr const char* kRotatedKey = "rope.layers";
// ModelConfig::rotated: kRotatedKey, or `usual`.
std::vector<bool> read_rotated(const FamilyKeys& keys, std::vector<bool> usual);
// attention.sliding_window and its pattern (a period n: every n-th layer sees all; or one flag per layer).
// `period` is used when the pattern is absent; 1: no layer has a window, 0: all have.
std::vector<int64_t> read_windows(const FamilyKeys& keys, int64_t period);

// Key of the layers that have a mixture of experts, where not all do.
inline constexpr const char* kExpertLayersKey = "expert_layers";
// Key of YaRN whose range of frequencies is not rounded to whole dimensions.
inline constexpr const char* kYarnTruncateKey = "rope.scaling.yarn_truncate";

// Key of the activation where it is not its family's usual one.
inline constexpr const char* kActivationKey = "refold.activation";

}  // namespace refold
