// Which inputs a stored matrix is multiplied with: what its rounding errors are measured by.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/tap.h"

namespace refold {

// What matrices of a layer multiply, in the order of the forward pass.
inline constexpr std::array kInputTaps = {Tap::attn_input, Tap::attn_inner, Tap::ffn_input, Tap::ffn_inner};

// The activation that a layer's matrix multiplies; nothing for those that cannot be observed.
std::optional<Tap> input_tap(Slot slot);

// Columns [column, column + columns) of a stored tensor are multiplied with elements [input, input + columns)
// of the inputs of a layer's slot.
struct InputUse {
    size_t layer;
    Slot slot;
    int64_t column = 0, columns = 0, input = 0;
    bool operator==(const InputUse&) const = default;
};

// Rows of a stored tensor that the same slots use.
struct UsedRows {
    int64_t first = 0, count = 0;
    std::vector<InputUse> uses;  // in the order of the forward pass
};

// By stored tensor: its rows in order. Of Dense, Heads, the base of Plus, and V of LowRank (of matrices that
// are not transposed); the tensors of other expressions are not multiplied with a slot's inputs.
std::map<std::string, std::vector<UsedRows>> input_uses(const Model& model);

// Adds the Gram matrix of a slot's inputs [inputs x inputs] to that of the columns of a tensor which it uses
// [columns x columns].
void add_gram(const InputUse& use, std::span<const double> of_inputs, std::span<double> of_columns);

}  // namespace refold
