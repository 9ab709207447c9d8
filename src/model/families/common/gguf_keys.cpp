#include "model/families/common/gguf_keys.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "model/activation.h"

namespace refold {

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

std::optional<std::vector<bool>> FamilyKeys::flags(const std::string& key) const {
    const GgufValue* value = metadata_.find(name(key));
    if (value == nullptr || value->type != GgufType::Array) return std::nullopt;
    const auto layers = static_cast<size_t>(size("block_count"));
    const auto& flags = *std::get<std::shared_ptr<const GgufArray>>(value->value);
    if (flags.count != layers || flags.packed.size() % layers != 0) {
        fail(ErrorCode::input, family_, "key '{}' has {} entries, expected one for each of {} layers",
             name(key), flags.count, layers);
    }
    const size_t width = flags.packed.size() / layers;
    std::vector<bool> out;
    for (size_t l = 0; l < layers; ++l) {
        const auto flag = std::span(flags.packed).subspan(l * width, width);
        out.push_back(std::any_of(flag.begin(), flag.end(), [](std::byte b) { return b != std::byte{0}; }));
    }
    return out;
}

std::optional<std::vector<float>> FamilyKeys::reals(const std::string& key) const {
    const GgufValue* value = metadata_.find(name(key));
    if (value == nullptr) return std::nullopt;
    const auto layers = static_cast<size_t>(size("block_count"));
    const auto* array = std::get_if<std::shared_ptr<const GgufArray>>(&value->value);
    if (array == nullptr || (*array)->element != GgufType::F32 || (*array)->count != layers)
        fail(ErrorCode::input, family_, "key '{}' must be a list of {} float32 numbers, one for each layer",
             name(key), layers);
    std::vector<float> out(layers);
    memcpy(out.data(), (*array)->packed.data(), (*array)->packed.size());
    return out;
}

ModelConfig read_common(const FamilyKeys& keys, NormKind norm, Activation activation) {
    if (const uint64_t experts = keys.metadata().integer(keys.name("expert_count"), 0); experts > 0) {
        fail(ErrorCode::unsupported, keys.family(), "mixture of experts is not supported (key '{}' is {})",
             keys.name("expert_count"), experts);
    }
    return read_sizes(keys, norm, activation);
}

ModelConfig read_sizes(const FamilyKeys& keys, NormKind norm, Activation activation) {
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
    c.attention_scale = keys.positive("attention.scale", 1.0 / std::sqrt(static_cast<double>(c.head_dim)));
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
    if (type == "yarn" && !keys.boolean(kYarnTruncateKey, true)) {
        // Then its factors by frequency are a tensor, and ggml does not multiply by the magnitude factor.
        rope.frequency_scale = 1.0F;
        rope.attention_factor *= static_cast<float>(0.1 * std::log(factor) + 1);
        return rope;
    }
    if (type == "yarn") {
        rope.ext_factor = keys.at_least_zero("rope.scaling.yarn_ext_factor", 1.0);
        if (keys.has("rope.scaling.yarn_log_multiplier")) {
            fail(ErrorCode::unsupported, keys.family(), "key '{}' is not supported",
                 keys.name("rope.scaling.yarn_log_multiplier"));
        }
    }
    return rope;
}

std::vector<bool> read_rotated(const FamilyKeys& keys, std::vector<bool> usual) {
    return keys.flags(kRotatedKey).value_or(std::move(usual));
}

std::vector<int64_t> read_windows(const FamilyKeys& keys, int64_t period) {
    const int64_t window = keys.size("attention.sliding_window", 0);
    if (window == 0) return {};
    const auto layers = static_cast<size_t>(keys.size("block_count"));
    const std::string name = keys.name("attention.sliding_window_pattern");
    std::vector<int64_t> windows(layers, 0);
    if (const auto flags = keys.flags("attention.sliding_window_pattern")) {
        for (size_t l = 0; l < layers; ++l) windows[l] = (*flags)[l] ? window : 0;
        return windows;
    }
    if (keys.metadata().has(name)) period = static_cast<int64_t>(keys.metadata().integer(name));
    for (size_t l = 0; l < layers; ++l) {
        const auto p = static_cast<size_t>(period);
        if (p == 0 || l % p != p - 1) windows[l] = window;
    }
    return windows;
}

}  // namespace refold
