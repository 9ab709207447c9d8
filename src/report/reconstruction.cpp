#include "report/reconstruction.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/progress.h"
#include "model/materialize.h"

namespace refold {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

struct Squares {
    double difference = 0, original = 0;
};

// Releases the mapped pages of a weight; a shared one is read again later.
void release(const Model& model, const Expression& expression) {
    if (!model.source) return;
    for (const auto& name : tensors_of(expression)) model.source->release(model.tensor(name).mapped);
}

Squares squares_of(const std::vector<float>& w, const std::vector<float>& other) {
    Squares sum;
    for (size_t i = 0; i < w.size(); ++i) {
        const double value = w[i], difference = static_cast<double>(other[i]) - value;
        sum.original += value * value;
        sum.difference += difference * difference;
    }
    return sum;
}

std::vector<Slot> matrices_of(const Model& model) {
    std::vector<Slot> slots;
    for (const auto& layer : model.topology.layers) {
        for (const auto& [slot, expression] : layer) {
            if (is_matrix(slot)) slots.push_back(slot);
        }
    }
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    return slots;
}

double relative(const Squares& squares) {
    return squares.original > 0 ? std::sqrt(squares.difference / squares.original) : kNone;
}

}  // namespace

std::optional<size_t> Reconstruction::column(size_t layer, Slot slot) const {
    const auto found = std::find(slots.begin(), slots.end(), slot);
    if (layer >= errors.size() || found == slots.end()) return std::nullopt;
    return static_cast<size_t>(found - slots.begin());
}

Reconstruction compare_weights(const Model& original, const Model& other) {
    const size_t layers = original.topology.layers.size();
    for (const Model* model : {&original, &other}) {
        if (model->shapes_only)
            fail(ErrorCode::input, "report", "{}: there are only shapes, no weights to compare",
                 model->label);
    }
    if (other.topology.layers.size() != layers)
        fail(ErrorCode::input, "report", "{}: got {} layers, expected the {} of {}", other.label,
             other.topology.layers.size(), layers, original.label);
    Reconstruction out;
    out.slots = matrices_of(original);
    Squares all;
    Progress progress("comparing weights", layers * out.slots.size(), "weights");
    for (size_t p = 0; p < layers; ++p) {
        std::vector<double>& row = out.errors.emplace_back(out.slots.size(), kNone);
        for (size_t s = 0; s < out.slots.size(); ++s) {
            const Slot slot = out.slots[s];
            progress.advance(1);
            if (!original.topology.has(p, slot)) continue;
            const SlotShape shape = slot_shape(slot, original.config, p),
                            own = slot_shape(slot, other.config, p);
            if (!other.topology.has(p, slot) || shape.in != own.in || shape.out != own.out) {
                ++out.missing;
                continue;
            }
            const Expression &from = original.topology.at(p, slot), &to = other.topology.at(p, slot);
            const Squares squares =
                squares_of(materialize(original, from, slot, p), materialize(other, to, slot, p));
            release(original, from);
            release(other, to);
            row[s] = relative(squares);
            all.original += squares.original;
            all.difference += squares.difference;
            ++out.compared;
            out.different += squares.difference > 0 ? 1 : 0;
        }
    }
    progress.finish();
    out.total = relative(all);
    return out;
}

}  // namespace refold
