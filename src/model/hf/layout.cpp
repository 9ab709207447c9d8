#include "model/hf/layout.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace refold {

SlotRows slot_rows(Slot slot, const ModelConfig& config) {
    const SlotShape shape = slot_shape(slot, config);
    return is_vector(slot) ? SlotRows{shape.in, 1} : SlotRows{shape.out, shape.in};
}

// The slots whose rows a checkpoint's tensor holds together with those of this one: Q, K and V or gate and
// up, or their biases; and the place of this one among them.
struct Stack {
    std::vector<Slot> slots;
    size_t place = 0;
};
static Stack stack_of(Slot slot) {
    for (const Slot first : kProductGroups) {
        Stack matrices{to_vector(product_group(first))}, biases;
        for (const Slot matrix : matrices.slots) biases.slots.push_back(bias_of(matrix).value_or(matrix));
        for (Stack* stack : {&matrices, &biases}) {
            const auto found = std::find(stack->slots.begin(), stack->slots.end(), slot);
            if (found == stack->slots.end() || stack->slots.size() == 1) continue;
            stack->place = static_cast<size_t>(found - stack->slots.begin());
            return *stack;
        }
    }
    fail(ErrorCode::internal, "model", "{} is not part of a joined tensor", slot_name(slot));
}

int64_t hf_row(const SlotDescription& slot, const ModelConfig& config, int64_t row) {
    const int64_t head_dim = config.head_dim;
    if (belongs_to_experts(slot.slot) && (slot.layout & hf_stacked) != 0) {
        const int64_t expert = row / config.n_ff_expert, own = row % config.n_ff_expert;
        const auto place = static_cast<int64_t>(stack_of(slot.slot).place);
        return 2 * expert * config.n_ff_expert +
               ((slot.layout & hf_interleaved) != 0 ? 2 * own + place : place * config.n_ff_expert + own);
    }
    if ((slot.layout & hf_rotary) != 0) row = rotary_row(row, head_dim);
    if ((slot.layout & hf_stacked) != 0) {
        const Stack stack = stack_of(slot.slot);
        for (size_t i = 0; i < stack.place; ++i) row += slot_rows(stack.slots[i], config).rows;
    }
    if ((slot.layout & hf_qkv_per_head) != 0)
        row = (row / head_dim * 3 + static_cast<int64_t>(stack_of(slot.slot).place)) * head_dim +
              row % head_dim;
    return row;
}

std::vector<int64_t> hf_shape(const SlotDescription& slot, const ModelConfig& config) {
    SlotRows rows = slot_rows(slot.slot, config);
    if ((slot.layout & hf_first_rows) != 0 && config.n_layer_input_vocab > 0)
        rows.rows = std::min(rows.rows, config.n_layer_input_vocab);
    if ((slot.layout & (hf_stacked | hf_qkv_per_head)) != 0) {
        rows.rows = 0;
        for (const Slot part : stack_of(slot.slot).slots) rows.rows += slot_rows(part, config).rows;
    }
    if (belongs_to_experts(slot.slot) && slot.slot != Slot::ffn_router &&
        slot.slot != Slot::ffn_router_bias) {
        const int64_t experts = config.n_expert, own = rows.rows / experts;
        if (is_vector(slot.slot)) return {experts, own};
        if ((slot.layout & hf_transposed) != 0) return {experts, rows.width, own};
        return {experts, own, rows.width};
    }
    if ((slot.layout & hf_by_head) != 0) return {rows.rows / config.head_dim, config.head_dim};
    if (is_vector(slot.slot)) return {rows.rows};
    if ((slot.layout & hf_transposed) != 0) return {rows.width, rows.rows};
    return {rows.rows, rows.width};
}

SlotRows expert_rows(const SlotDescription& slot, const ModelConfig& config) {
    const std::vector<int64_t> shape = hf_shape(slot, config);
    const bool transposed = (slot.layout & hf_transposed) != 0;
    return {transposed ? shape[2] : shape[1], transposed ? shape[1] : shape[2]};
}

static constexpr std::string_view kBlock = "[]";

bool is_in_layer(const Family& family, Slot slot, size_t layer, size_t layers) {
    return !family.hf_norm_of_loop || slot != Slot::ffn_output_norm || layer + 1 == layers;
}

bool is_by_block(const char* names) { return std::string_view(names).find(kBlock) != std::string_view::npos; }

std::string names_of_block(const char* names, int64_t block) {
    std::string out = names;
    for (size_t at = out.find(kBlock); at != std::string::npos; at = out.find(kBlock))
        out.replace(at, kBlock.size(), std::to_string(block));
    return out;
}

static std::vector<std::string> alternatives(std::string_view rest) {
    std::vector<std::string> out;
    while (!rest.empty()) {
        const size_t end = std::min(rest.find('|'), rest.size());
        out.emplace_back(rest.substr(0, end));
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    return out;
}

std::string classifier_names(const SlotDescription& slot, bool is_classifier) {
    const std::vector<std::string> names = alternatives(slot.hf);
    if (properties(slot.slot).module != SlotModule::pooler || names.size() < 2) return slot.hf;
    return is_classifier ? names.back() : names.front();
}

std::vector<std::string> hf_names(const char* names, const char* prefix, size_t layer) {
    std::vector<std::string> out;
    for (const std::string& pattern : alternatives(names)) {
        const std::string name = numbered(pattern.c_str(), layer);
        if (name.starts_with('@')) {
            for (const std::string& before : alternatives(prefix)) out.push_back(before + name.substr(1));
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
