// Logits of models whose weights are broken, or whose activations overflow.
#pragma once

#include <cstdint>
#include <span>

#include "core/error.h"
#include "io/finite.h"

namespace refold {

// Checks logits [rows, n_vocab] of which `position` gives the rows' places in their text. Throws Error(input)
// naming the first place with a number that is not finite.
template <typename Position>
void check_finite_logits(std::span<const float> logits, int64_t n_vocab, const Position& position) {
    const auto found = first_not_finite(logits);
    if (!found) return;
    fail(ErrorCode::input, "engine",
         "the logits after token {} of the text are not finite: {} for token id {} - the model's weights are "
         "broken "
         "(refold export names the tensor), or its activations overflow",
         position(found->element / n_vocab), found->value, found->element % n_vocab);
}

}  // namespace refold
