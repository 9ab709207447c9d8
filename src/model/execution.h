// How weights made of factors are multiplied: by their factors, or as the dense matrix that they make.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"

namespace refold {

enum class Execution {
    factored,       // y = U (V x), ...: the factors are resident
    reconstructed,  // y = W x
};

struct ExecutionCost {
    // Resident bytes of the slots and of all slots that share tensors with them, which decide together.
    uint64_t bytes = 0;
    // Multiply-adds of the given slots for a token.
    uint64_t operations = 0;
};

struct ExecutionChoice {
    Execution execution = Execution::factored;
    ExecutionCost factored, reconstructed;
};

// The slot's weight has factors: a LowRank, Tucker or Plus.
bool has_factors(const Expression& expression);

// Type of a reconstructed weight: the widest of its stored numbers, F16 where that is a quantized type, which
// would round the products of factors a second time.
DType reconstructed_type(const Model& model, const Expression& expression);

// Decides for all groups of one model; keeps a reference to it.
class ExecutionChooser {
public:
    explicit ExecutionChooser(const Model& model);

    // Slots of one layer that are multiplied with one input; those without factors count as they are.
    //
    // Reconstructed, once when loading, where the dense weights, in reconstructed_type(), take no more bytes
    // than what they are made of: nothing is lost then. Slots that share tensors decide together, as the
    // bytes are saved only when the last one lets them go: the slots of a Tucker core, of factors common to a
    // window of layers, of a base with several LoRAs. Otherwise factored, also where W would take fewer
    // operations in steps of many tokens: W and its factors do not give the same numbers, and a token's
    // result does not depend on what shares its step.
    ExecutionChoice choose(size_t layer, std::span<const Slot> slots) const;

private:
    using LayerSlot = std::pair<size_t, Slot>;
    const Slots& slots_at(size_t layer) const;
    std::set<LayerSlot> connected(size_t layer, std::span<const Slot> slots) const;
    uint64_t resident_bytes(const std::set<LayerSlot>& slots, bool reconstructed) const;

    const Model& model_;
    std::map<std::string, std::vector<LayerSlot>> users_;  // by tensor
};

// The same for a single question.
ExecutionChoice choose_execution(const Model& model, size_t layer, std::span<const Slot> slots);

}  // namespace refold
