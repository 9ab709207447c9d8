#include "model/execution.h"

#include <algorithm>

namespace refold {
namespace {

uint64_t area(int64_t a, int64_t b) { return static_cast<uint64_t>(a) * static_cast<uint64_t>(b); }

// Multiply-adds of one token with the factors and with W. Products that slots share count once.
class Operations {
public:
    Operations(const Model& model, size_t layer) : model_(model), layer_(layer) {}

    void add(Slot slot, const Expression& expression) {
        shape_ = slot_shape(slot, model_.config, layer_);
        dense += area(shape_.in, shape_.out);
        std::visit([&](const auto& e) { count(e); }, expression);
    }

    uint64_t factored = 0, dense = 0;

private:
    void count(const Dense&) { factored += area(shape_.in, shape_.out); }
    void count(const Heads&) { factored += area(shape_.in, shape_.out); }
    void count(const RowParts&) { factored += area(shape_.in, shape_.out); }
    void count(const LowRank& e) {
        const int64_t rank = model_.tensor(e.u).row_elements();
        const int64_t first = e.transposed ? model_.tensor(e.u).rows() : model_.tensor(e.v).row_elements();
        if (first_.insert(e.transposed ? e.u : e.v).second) factored += area(rank, first);
        factored += area(rank, shape_.in + shape_.out - first);
    }
    void count(const Tucker& e) {
        const Tensor& core = model_.tensor(e.core);
        const int64_t r1 = core.shape[0], r2 = core.shape[1], r3 = core.shape[2];
        const int64_t core_heads = core.rows() / (r2 * r3);
        const int64_t along = e.transposed ? shape_.in : shape_.out,
                      features = e.transposed ? shape_.out : shape_.in;
        if (first_.insert(e.model).second || e.transposed) factored += area(r1, features);
        if (first_.insert(e.core).second || e.transposed) factored += static_cast<uint64_t>(core.elements());
        factored += area(along, r2) + area(core_heads * r2, r3);
    }
    void count(const Plus& e) {
        std::visit([&](const auto& base) { count(base); }, e.base);
        count(e.term);
    }

    const Model& model_;
    size_t layer_;
    SlotShape shape_;
    std::set<std::string> first_;  // factors that the input has been multiplied with
};

}  // namespace

bool has_factors(const Expression& expression) {
    return !std::holds_alternative<Dense>(expression) && !std::holds_alternative<Heads>(expression) &&
           !std::holds_alternative<RowParts>(expression);
}

DType reconstructed_type(const Model& model, const Expression& expression) {
    std::set<DType> types;
    for (const auto& name : tensors_of(expression)) {
        if (!is_small_factor(expression, name)) types.insert(model.tensor(name).type);
    }
    if (types.contains(DType::F32)) return DType::F32;
    return types == std::set{DType::BF16} ? DType::BF16 : DType::F16;
}

ExecutionChooser::ExecutionChooser(const Model& model) : model_(model) {
    const auto add = [&](size_t layer, const Slots& slots) {
        for (const auto& [slot, expression] : slots) {
            for (const auto& name : tensors_of(expression)) users_[name].emplace_back(layer, slot);
        }
    };
    for (size_t l = 0; l < model.topology.layers.size(); ++l) add(l, model.topology.layers[l]);
    add(kWholeModel, model.topology.globals);
}

const Slots& ExecutionChooser::slots_at(size_t layer) const {
    return layer == kWholeModel ? model_.topology.globals : model_.topology.layers[layer];
}

std::set<ExecutionChooser::LayerSlot> ExecutionChooser::connected(size_t layer,
                                                                  std::span<const Slot> slots) const {
    std::set<LayerSlot> reached;
    std::set<std::string> seen;
    std::vector<LayerSlot> open;
    for (const Slot slot : slots) {
        if (has_factors(slots_at(layer).at(slot))) open.emplace_back(layer, slot);
    }
    while (!open.empty()) {
        const LayerSlot next = open.back();
        open.pop_back();
        if (!reached.insert(next).second) continue;
        for (const auto& name : tensors_of(slots_at(next.first).at(next.second))) {
            if (!seen.insert(name).second) continue;
            const auto& users = users_.at(name);
            open.insert(open.end(), users.begin(), users.end());
        }
    }
    return reached;
}

uint64_t ExecutionChooser::resident_bytes(const std::set<LayerSlot>& slots, bool reconstructed) const {
    std::set<std::string> tensors;
    std::vector<const Expression*> made;
    uint64_t bytes = 0;
    for (const auto& [layer, slot] : slots) {
        const Expression& expression = slots_at(layer).at(slot);
        if (!reconstructed || !has_factors(expression)) {
            for (const auto& name : tensors_of(expression)) {
                if (tensors.insert(name).second) bytes += model_.tensor(name).bytes();
            }
            continue;
        }
        const auto same = [&](const Expression* other) { return *other == expression; };
        if (std::any_of(made.begin(), made.end(), same)) continue;  // loops
        made.push_back(&expression);
        const SlotShape shape = slot_shape(slot, model_.config, layer);
        bytes += row_bytes(reconstructed_type(model_, expression), shape.in) * static_cast<size_t>(shape.out);
    }
    return bytes;
}

ExecutionChoice ExecutionChooser::choose(size_t layer, std::span<const Slot> slots) const {
    const std::set<LayerSlot> together = connected(layer, slots);
    Operations operations(model_, layer);
    for (const Slot slot : slots) operations.add(slot, slots_at(layer).at(slot));
    ExecutionChoice choice;
    choice.factored = {resident_bytes(together, false), operations.factored};
    choice.reconstructed = {resident_bytes(together, true), operations.dense};
    if (!together.empty() && choice.reconstructed.bytes <= choice.factored.bytes)
        choice.execution = Execution::reconstructed;
    return choice;
}

ExecutionChoice choose_execution(const Model& model, size_t layer, std::span<const Slot> slots) {
    return ExecutionChooser(model).choose(layer, slots);
}

}  // namespace refold
