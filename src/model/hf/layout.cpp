#include "model/hf/layout.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace refold {

SlotRows slot_rows(Slot slot, const ModelConfig& config) {
    const SlotShape shape = slot_shape(slot, config);
    return is_vector(slot) ? SlotRows{shape.in, 1} : SlotRows{shape.out, shape.in};
}

// 0, 1, 2 for Q, K, V: their order in a tensor that holds all three.
static int64_t place_in_qkv(Slot slot) {
    const auto projection = properties(slot).projection;
    if (!projection || *projection == Projection::output)
        fail(ErrorCode::internal, "model", "{} is not part of a QKV tensor", slot_name(slot));
    return static_cast<int64_t>(*projection);
}

int64_t hf_row(const SlotDescription& slot, const ModelConfig& config, int64_t row) {
    const int64_t head_dim = config.head_dim;
    if ((slot.layout & hf_rotary) != 0) row = rotary_row(row, head_dim);
    if ((slot.layout & hf_qkv_blocks) != 0) {
        const int64_t place = place_in_qkv(slot.slot);
        if (place > 0) row += config.n_head * head_dim;
        if (place > 1) row += config.n_head_kv * head_dim;
    }
    if ((slot.layout & hf_qkv_per_head) != 0)
        row = (row / head_dim * 3 + place_in_qkv(slot.slot)) * head_dim + row % head_dim;
    return row;
}

std::vector<int64_t> hf_shape(const SlotDescription& slot, const ModelConfig& config) {
    SlotRows rows = slot_rows(slot.slot, config);
    if ((slot.layout & (hf_qkv_blocks | hf_qkv_per_head)) != 0)
        rows.rows = (config.n_head + 2 * config.n_head_kv) * config.head_dim;
    if (is_vector(slot.slot)) return {rows.rows};
    if ((slot.layout & hf_transposed) != 0) return {rows.width, rows.rows};
    return {rows.rows, rows.width};
}

std::vector<std::string> hf_names(const char* names, const char* prefix, size_t layer) {
    std::vector<std::string> out;
    std::string_view rest = names;
    while (!rest.empty()) {
        const size_t end = std::min(rest.find('|'), rest.size());
        const std::string name = numbered(std::string(rest.substr(0, end)).c_str(), layer);
        rest.remove_prefix(std::min(end + 1, rest.size()));
        if (name.starts_with('@')) {
            out.push_back(prefix + name.substr(1));
            out.push_back(name.substr(1));
        } else {
            out.push_back(name);
        }
    }
    for (size_t i = 0, count = out.size(); i < count; ++i) {
        std::string old = out[i];
        for (const auto& [now, before] :
             {std::pair{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}}) {
            if (old.ends_with(now)) out.push_back(old.substr(0, old.size() - strlen(now)) + before);
        }
    }
    return out;
}

}  // namespace refold
