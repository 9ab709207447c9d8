#include "engine/torch/factors.h"

#include <ATen/ATen.h>

#include "model/topology.h"

namespace refold {

at::Tensor LowRankFactors::matrix() const {
    const at::Tensor w = at::matmul(scale.defined() ? u * scale : u, v);
    return transposed ? w.t() : w;
}

at::Tensor LowRankFactors::product(const at::Tensor& x) const {
    at::Tensor inner = at::matmul(x, transposed ? u : v.t());
    if (scale.defined()) inner = inner * scale;
    return at::matmul(inner, transposed ? v : u.t());
}

int64_t LowRankFactors::factored_cost(int64_t tokens) const {
    return tokens * u.size(1) * (u.size(0) + v.size(1));
}

int64_t LowRankFactors::reconstructed_cost(int64_t tokens) const {
    return u.size(0) * v.size(1) * (u.size(1) + tokens);
}

at::Tensor TuckerFactors::matrix() const {
    const at::Tensor rows =
        at::matmul(head.t(), at::matmul(slices, model)).reshape({-1, model.size(1)});  // [heads * width, ...]
    return transposed ? rows.t() : rows;
}

at::Tensor TuckerFactors::projection(const at::Tensor& x) const { return at::matmul(x, model.t()); }

at::Tensor TuckerFactors::product(const at::Tensor& x) const {
    const int64_t tokens = x.size(0), heads = slices.size(0), r2 = slices.size(1), r1 = slices.size(2);
    const at::Tensor stacked = slices.reshape({heads * r2, r1});
    if (transposed) {
        const at::Tensor inner = at::matmul(x.reshape({tokens, heads, head.size(1)}), head.t());
        return at::matmul(at::matmul(inner.reshape({tokens, heads * r2}), stacked), model);
    }
    const at::Tensor inner = at::matmul(x, stacked.t()).reshape({tokens, heads, r2});
    return at::matmul(inner, head).reshape({tokens, heads * head.size(1)});
}

int64_t TuckerFactors::factored_cost(int64_t tokens) const {
    return tokens * (model.numel() + slices.numel() + slices.size(0) * head.numel());
}

int64_t TuckerFactors::reconstructed_cost(int64_t tokens) const {
    const int64_t heads = slices.size(0), features = model.size(1), width = head.size(1), r2 = head.size(0);
    return heads * features * (r2 * (model.size(0) + width) + tokens * width);
}

at::Tensor tucker_slices(const at::Tensor& core, const at::Tensor& roles, int64_t role, int64_t heads) {
    const int64_t r3 = roles.size(0), r2 = core.size(-2), r1 = core.size(-1);
    const at::Tensor weights = roles.select(1, role).reshape({1, r3, 1, 1});
    const at::Tensor slices = (core.reshape({-1, r3, r2, r1}) * weights).sum(1);
    return slices.size(0) == heads ? slices : slices.reshape({heads, -1, r2, r1}).mean(1);
}

at::Tensor paired(const at::Tensor& head) {
    const int64_t width = head.size(1);
    const at::Tensor rows = at::empty({width}, at::kLong);
    for (int64_t r = 0; r < width; ++r) rows.data_ptr<int64_t>()[r] = rotary_row(r, width);
    return head.index_select(1, rows.to(head.device()));
}

}  // namespace refold
