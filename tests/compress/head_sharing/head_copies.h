// Models in which a head computes what a head of an earlier layer does, with other weights.
#pragma once

#include <cmath>

#include "compress/calibrated.h"
#include "compress/head_sharing/head_outputs.h"

namespace refold {

const SmallShape kHeads{.layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 4, .embd = 16, .vocab = 24};

// The element of a unit's matrix or bias: of heads of 4 elements, in the order of the unit's heads.
using UnitElement = std::function<float(int64_t element, int64_t column)>;

// Every rotated pair of queries turned and longer, that of keys turned and shorter; values mixed; columns of
// the output mixed the other way.
inline float symmetric(Slot slot, int64_t element, int64_t column, const UnitElement& of) {
    const auto turn = [&](double scale) {
        const int64_t first = element / 2 * 2;
        const double angle = 0.7 + static_cast<double>(first % 4), x = of(first, column),
                     y = of(first + 1, column), s = std::sin(angle), c = std::cos(angle);
        return static_cast<float>(scale * (element == first ? c * x - s * y : s * x + c * y));
    };
    const auto mixed = [&] { return of(element / 4 * 4 + (element + 1) % 4, column); };
    const auto factor = static_cast<float>(1 + element % 4);
    if (slot == Slot::attn_q || slot == Slot::attn_q_bias) return turn(1.5);
    if (slot == Slot::attn_k || slot == Slot::attn_k_bias) return turn(1 / 1.5);
    return slot == Slot::attn_o ? mixed() / factor : mixed() * factor;
}

// kHeads with heads that are copies of others in this way, in attn.q, attn.k and attn.v, and with `output` in
// attn.o. A copy of a copy is one of the first.
inline Model with_copies(const std::map<Unit, Unit>& copies, bool output, bool biases = false) {
    const auto element_of = [&](auto&& self, Unit unit, Slot slot, int64_t element, int64_t column) -> float {
        const auto found = copies.find(unit);
        if (found == copies.end() || (slot == Slot::attn_o && !output)) {
            const int64_t width =
                slot == Slot::attn_q || slot == Slot::attn_q_bias || slot == Slot::attn_o ? 8 : 4;
            const int64_t at = unit.index * width + element;
            return slot == Slot::attn_o ? scattered_small(unit.layer, slot, column, at)
                                        : scattered(unit.layer, slot, at, column);
        }
        return symmetric(slot, element, column,
                         [&](int64_t e, int64_t c) { return self(self, found->second, slot, e, c); });
    };
    const auto value = [&](size_t layer, Slot slot, int64_t row, int64_t column) {
        const bool heads =
            slot == Slot::attn_q || slot == Slot::attn_k || slot == Slot::attn_v || slot == Slot::attn_o;
        if (!heads) return scattered_small(layer, slot, row, column);
        if (slot == Slot::attn_o) return element_of(element_of, {layer, column / 8}, slot, column % 8, row);
        const int64_t width = slot == Slot::attn_q ? 8 : 4;
        return element_of(element_of, {layer, row / width}, slot, row % width, column);
    };
    Model model = small_model(kHeads, value);
    for (size_t p = 0; p < 4 && biases; ++p) {
        for (const auto& [bias, width] : std::map<Slot, int64_t>{
                 {Slot::attn_q_bias, 8}, {Slot::attn_k_bias, 4}, {Slot::attn_v_bias, 4}}) {
            std::vector<float> values;
            for (int64_t i = 0; i < 2 * width; ++i)
                values.push_back(element_of(element_of, {p, i / width}, bias, i % width, 0));
            const std::string name = tensor_name(*model.family, bias, p);
            model.tensors[name] = float_tensor({2 * width}, values);
            model.topology.layers[p][bias] = Dense{name};
        }
    }
    validate(model);
    return model;
}

// The largest difference of logits, relative to the largest logit.
inline double logit_difference(const Model& a, const Model& b) {
    const auto x = outputs_of(a), y = outputs_of(b);
    double difference = 0, size = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        difference = std::max(difference, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
        size = std::max(size, std::abs(static_cast<double>(x[i])));
    }
    return difference / size;
}

// The pairs of a report, with their cosines.
inline std::map<Unit, std::pair<Unit, double>> pairs_of(const nlohmann::json& details) {
    std::map<Unit, std::pair<Unit, double>> out;
    for (const auto& pair : details["pairs"])
        out[{pair["later"][0], pair["later"][1]}] = {{pair["former"][0], pair["former"][1]}, pair["cosine"]};
    return out;
}

}  // namespace refold
