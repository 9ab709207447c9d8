#include "compress/refit/role_core.h"

#include <cmath>

#include "core/error.h"
#include "linalg/blas.h"
#include "linalg/pseudo_inverse.h"
#include "model/materialize.h"

namespace refold {
namespace {

constexpr SingularCut kCut{.relative = 1e-6};
constexpr double kLeak = 1e-4;  // largest effect of a change on another role

using Doubles = std::vector<double>;

}  // namespace

RoleCore::RoleCore(const Model& model, const Tucker& factors)
    : core_(floats_of(model, factors.core)),
      u1_(floats_of(model, factors.model)),
      role_(static_cast<size_t>(factors.role)) {
    const auto& shape = model.tensor(factors.core).shape;
    const Tensor& roles = model.tensor(factors.roles);
    r1_ = shape[0];
    slice_ = shape[0] * shape[1];
    r3_ = shape[2];
    width_ = model.tensor(factors.model).row_elements();
    u3_ = transposed(floats_of(model, factors.roles), r3_, roles.row_elements());
}

bool RoleCore::is_free(const Model& model, const Tucker& factors) {
    const Tensor& u3 = model.tensor(factors.roles);
    return u3.rows() >= u3.row_elements();
}

Doubles RoleCore::direction() const {
    const auto columns = static_cast<size_t>(r3_), roles = u3_.size() / columns;
    const Doubles u3(u3_.begin(), u3_.end());
    Doubles wanted(roles);
    wanted[role_] = 1;
    Doubles out = solve_minimum_norm(static_cast<int64_t>(roles), r3_, 1, u3, wanted, kCut);
    for (size_t role = 0; role < roles; ++role) {
        double effect = 0;
        for (size_t c = 0; c < columns; ++c) effect += u3[role * columns + c] * out[c];
        if (std::abs(effect - wanted[role]) > kLeak)
            fail(ErrorCode::input, "refit",
                 "the role factors of a Tucker decomposition are dependent: leave attn.o out "
                 "(slots=ffn.down)");
    }
    return out;
}

template <typename Use>
void RoleCore::for_numbers(Use&& use) const {
    for (int64_t i = 0; i < static_cast<int64_t>(core_.size()); ++i) {
        const int64_t head = i / slice_ / r3_;
        use(static_cast<size_t>(i), static_cast<size_t>(i / slice_ % r3_),
            static_cast<size_t>(head * slice_ + i % slice_));
    }
}

std::vector<float> RoleCore::values() const {
    std::vector<float> out(core_.size() / static_cast<size_t>(r3_));
    const float* row = u3_.data() + role_ * static_cast<size_t>(r3_);
    for_numbers([&](size_t at, size_t column, size_t own) { out[own] += row[column] * core_[at]; });
    return out;
}

std::vector<float> RoleCore::weights() const {
    const std::vector<float> c = values();
    const auto inputs = static_cast<int64_t>(c.size()) / r1_;
    std::vector<float> product(static_cast<size_t>(inputs * width_));
    blas::multiply(blas::Op::plain, blas::Op::plain, {width_, inputs, r1_}, u1_.data(), c.data(),
                   product.data());
    return transposed(product, inputs, width_);
}

std::vector<float> RoleCore::core_for(std::span<const float> weights) const {
    const std::vector<float> columns = transposed(u1_, r1_, width_);
    const auto inputs = static_cast<int64_t>(weights.size()) / width_;
    const Doubles x(columns.begin(), columns.end()), y(weights.begin(), weights.end());
    const Doubles wanted = solve_minimum_norm(width_, r1_, inputs, x, y, kCut);
    const std::vector<float> given = values();
    const Doubles along = direction();
    std::vector<float> out = core_;
    for_numbers([&](size_t at, size_t column, size_t own) {
        out[at] += static_cast<float>(along[column] * (wanted[own] - given[own]));
    });
    return out;
}

}  // namespace refold
