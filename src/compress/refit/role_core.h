// The part of the core of Tucker factors that one slot alone uses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace refold {

// For a transposed slot: W_h = U1 C_h U2^T with C_h = sum over c of U3[role, c] core[:, :, c, h].
class RoleCore {
public:
    // False when every change of C changes another role's as well: U3 has fewer columns than roles. Reads no
    // weights.
    static bool is_free(const Model& model, const Tucker& factors);
    RoleCore(const Model& model, const Tucker& factors);

    // U1 C: [width of the model x heads R2].
    std::vector<float> weights() const;
    // The whole core, with the C whose U1 C is nearest to `weights`; the C of other roles stay. Throws
    // Error(input) when the rows of U3 are dependent nevertheless.
    std::vector<float> core_for(std::span<const float> weights) const;

private:
    // The vector that U3 maps to 1 for the role and to 0 for all others.
    std::vector<double> direction() const;
    // C: [heads R2 x R1].
    std::vector<float> values() const;
    // Calls use(index in the core, column of U3, index in C).
    template <typename Use>
    void for_numbers(Use&& use) const;

    int64_t r1_, slice_, r3_, width_;
    std::vector<float> core_, u1_, u3_;  // u1 [R1 x width], u3 [roles x R3]
    size_t role_;
};

}  // namespace refold
