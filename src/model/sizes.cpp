#include "model/sizes.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_text.h"

namespace refold {

using nlohmann::json;

static std::vector<int64_t> sizes_of(const json& root, const char* field, size_t layers, int64_t largest) {
    const auto found = root.find(field);
    if (found == root.end()) return {};
    if (!found->is_array() || found->size() != layers)
        fail(ErrorCode::input, "model", "refold.sizes: \"{}\" must list {} layers, got {}", field, layers,
             found->dump());
    std::vector<int64_t> sizes;
    for (const json& value : *found) {
        if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(largest))
            fail(ErrorCode::input, "model", "refold.sizes: \"{}\" must be 0 to {}, got {}", field, largest,
                 value.dump());
        sizes.push_back(value);
    }
    return sizes;
}

static std::vector<std::vector<int64_t>> alibi_heads_of(const json& root, size_t layers,
                                                        const ModelConfig& config) {
    constexpr const char* kField = "alibi_heads";
    const auto found = root.find(kField);
    if (found == root.end()) return {};
    if (!found->is_array() || found->size() != layers)
        fail(ErrorCode::input, "model", "refold.sizes: \"{}\" must list {} layers, got {}", kField, layers,
             found->dump());
    std::vector<std::vector<int64_t>> out;
    for (size_t p = 0; p < layers; ++p) {
        const json& heads = (*found)[p];
        const auto most = static_cast<size_t>(config.n_head_kv);
        if (!heads.is_array() || heads.size() > most)
            fail(ErrorCode::input, "model", "refold.sizes: \"{}\" must list at most {} heads, got {}", kField,
                 most, heads.dump());
        out.push_back(sizes_of({{kField, heads}}, kField, heads.size(), config.n_head_kv - 1));
    }
    return out;
}

std::string sizes_to_json(const ModelConfig& config) {
    json out = json::object();
    if (!config.heads_kv.empty()) out["kv_heads"] = config.heads_kv;
    if (!config.ffs.empty()) out["ffn"] = config.ffs;
    if (!config.experts.empty()) out["experts"] = config.experts;
    if (!config.alibi_heads.empty()) out["alibi_heads"] = config.alibi_heads;
    if (config.n_prefix > 0) out["prefix"] = config.n_prefix;
    return out.empty() ? "" : out.dump();
}

void sizes_from_json(const std::string& text, size_t layers, ModelConfig& config) {
    constexpr uint64_t kMaxPrefix = 1 << 16;
    const json root = parse_json(text, "model", "refold.sizes");
    if (!root.is_object()) fail(ErrorCode::input, "model", "refold.sizes: not a JSON object");
    for (const auto& [key, value] : root.items()) {
        if (key != "kv_heads" && key != "ffn" && key != "experts" && key != "alibi_heads" && key != "prefix")
            fail(ErrorCode::input, "model", "refold.sizes: unknown field \"{}\"", key);
    }
    config.heads_kv = sizes_of(root, "kv_heads", layers, config.n_head_kv);
    config.ffs = sizes_of(root, "ffn", layers, config.n_ff);
    if (root.contains("experts")) config.experts = sizes_of(root, "experts", layers, config.n_expert);
    config.alibi_heads = alibi_heads_of(root, layers, config);
    if (const auto prefix = root.find("prefix"); prefix != root.end()) {
        if (!prefix->is_number_unsigned() || prefix->get<uint64_t>() > kMaxPrefix)
            fail(ErrorCode::input, "model", "refold.sizes: \"prefix\" must be 0 to {}, got {}", kMaxPrefix,
                 prefix->dump());
        config.n_prefix = *prefix;
    }
}

}  // namespace refold
