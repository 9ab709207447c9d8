// What one slot alone has of the core of Tucker factors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/model.h"

namespace refold {

// Of a transposed slot: W_h = U1 C_h U2^T with C_h = sum over c of U3[role, c] core[:, :, c, h].
class RoleCore {
public:
    // Nothing where whatever changes C changes another role's as well: where U3's rows are dependent.
    static std::optional<RoleCore> find(const Model& model, const Tucker& factors);

    // U1 C: [width of the model x heads R2].
    std::vector<float> weights() const;
    // The whole core with the C whose U1 C is nearest to `weights`; the other roles' are as they were.
    std::vector<float> core_for(std::span<const float> weights) const;

private:
    RoleCore(const Model& model, const Tucker& factors);

    // C: [heads R2 x R1].
    std::vector<float> values() const;
    // Calls use(index in the core, column of U3, index in C).
    template <typename Use>
    void for_numbers(Use&& use) const;

    int64_t r1_, slice_, r3_, width_;
    std::vector<float> core_, u1_, u3_;  // u1 [R1 x width], u3 [roles x R3]
    size_t role_;
    std::vector<double> direction_;  // U3 direction: 1 for the role, 0 for all others
};

}  // namespace refold
