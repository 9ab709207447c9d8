#include "compress/factorization/head_stack.h"

#include <algorithm>
#include <sstream>

#include "compress/factorization/factoring.h"
#include "compress/method/selection.h"
#include "core/error.h"

namespace refold::tensorllm {
namespace {

Ranks parse(const std::string& text) {
    const std::vector<int64_t> ranks = parse_ranks(text, 3);
    return {ranks[0], ranks[1], ranks[2]};
}

}  // namespace

bool stored_as_pairs(const Family& family, Slot slot) {
    return std::any_of(family.layer_slots.begin(), family.layer_slots.end(),
                       [&](const auto& d) { return d.slot == slot && (d.layout & hf_rotary) != 0; });
}

int64_t Stack::heads_of(Slot slot, const ModelConfig& config) const {
    return slot_blocks(slot, config, layers.front());
}

int64_t Stack::parameters() const {
    int64_t count = ranks[0] * ranks[1] * ranks[2] * dims[3];
    for (size_t m = 0; m < 3; ++m) count += dims[m] * ranks[m];
    return count;
}

std::map<size_t, Ranks> ranks_by_layer(const std::string& text, const std::vector<size_t>& layers,
                                       size_t n_layer) {
    std::map<size_t, Ranks> out;
    if (text.find(':') == std::string::npos) {
        const Ranks ranks = parse(text);
        for (const size_t p : layers) out[p] = ranks;
        return out;
    }
    std::istringstream parts(text);
    std::map<size_t, Ranks> named;
    for (std::string part; std::getline(parts, part, ';');) {
        const size_t colon = part.find(':');
        if (colon == std::string::npos)
            fail(ErrorCode::usage, "ranks", "'{}': expected LAYERS:R1,R2,R3 in every part of '{}'", part,
                 text);
        const Ranks ranks = parse(part.substr(colon + 1));
        for (const size_t p : parse_layers(part.substr(0, colon), n_layer)) {
            if (!named.emplace(p, ranks).second)
                fail(ErrorCode::usage, "ranks", "'{}': layer {} is named twice", text, p);
        }
    }
    for (const size_t p : layers) {
        if (const auto found = named.find(p); found != named.end()) out.insert(*found);
    }
    if (out.empty())
        fail(ErrorCode::usage, "ranks", "'{}' names none of layers {}", text, layers_text(layers));
    return out;
}

std::vector<float> tensor_of(const Model& model, const Stack& stack) {
    const auto [width, head_dim, roles, heads] = stack.dims;
    std::vector<float> out(static_cast<size_t>(width * head_dim * roles * heads));
    for (int64_t t = 0; t < roles; ++t) {
        const Slot slot = stack.roles[static_cast<size_t>(t)];
        const bool pairs = stored_as_pairs(*model.family, slot);
        const std::vector<float> weights = factoring::weights_of(model, stack.layers.front(), slot);
        const int64_t copies = heads / stack.heads_of(slot, model.config);
        for (int64_t h = 0; h < heads; ++h) {
            for (int64_t j = 0; j < head_dim; ++j) {
                const int64_t row = h / copies * head_dim + j;
                const int64_t column = pairs ? rotary_row(j, head_dim) : j;
                float* to = out.data() + width * (column + head_dim * (t + roles * h));
                if (heads_are_columns(slot)) {
                    for (int64_t i = 0; i < width; ++i) to[i] = weights[i * heads * head_dim + row];
                } else {
                    std::copy_n(weights.begin() + row * width, width, to);
                }
            }
        }
    }
    return out;
}

}  // namespace refold::tensorllm
