// Whose weights a layer uses: every stored tensor, and every head in it, belongs to one layer.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "model/model.h"

namespace refold {

// A tensor belongs to the layer whose name it has under the family's naming, even if only other layers use
// it. A layer that uses no tensor of its own name (a layer that runs an earlier one again) owns none: their
// first users do.
class Ownership {
public:
    explicit Ownership(const Model& model);

    // Of a tensor that some layer uses.
    size_t layer_of(const std::string& tensor) const { return layers_.at(tensor); }
    // The number that the owner gives head `head` of the tensor among its own heads; nothing when it does not
    // use that head itself.
    std::optional<int64_t> head_of(const std::string& tensor, int64_t head) const;

private:
    void number_heads(const ModelConfig& config, Slot slot, const Expression& expression, size_t layer);

    std::map<std::string, size_t> layers_;
    std::map<std::pair<std::string, int64_t>, int64_t> numbers_;
};

// The heads of a slot as they are stored. Factors make all heads at once: each one is a head of the first
// factor. Empty when the slot does not consist of heads.
std::vector<HeadRef> stored_heads_of(const ModelConfig& config, Slot slot, const Expression& expression,
                                     size_t layer);

}  // namespace refold
