#include "engine/ggml/activation.h"

#include "engine/ggml/thread_share.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ggml/activation.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 0.5 x (1 + tanh u) = x / (1 + exp(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3).
static void GeluTanh(const float* x, const float* up, float* out, int64_t count) {
    constexpr float kLinear = -2.0F * 0.7978845608028654F, kCubic = kLinear * 0.044715F;
    const hn::ScalableTag<float> d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto one = hn::Set(d, 1.0F), linear = hn::Set(d, kLinear), cubic = hn::Set(d, kCubic),
               limit = hn::Set(d, 80.0F);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const auto v = hn::LoadU(d, x + i);
        const auto exponent = hn::Mul(v, hn::MulAdd(hn::Mul(v, v), cubic, linear));
        auto y = hn::Div(v, hn::Add(one, hn::Exp(d, hn::Min(exponent, limit))));
        if (up != nullptr) y = hn::Mul(y, hn::LoadU(d, up + i));
        hn::StoreU(y, d, out + i);
    }
    for (; i < count; ++i) {
        const float y = x[i] / (1.0F + std::exp(std::min(x[i] * (kLinear + kCubic * x[i] * x[i]), 80.0F)));
        out[i] = up != nullptr ? y * up[i] : y;
    }
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(GeluTanh);

// Threads split the columns, not the tokens: decoding has one token. They take whole vectors of every CPU, so
// that the end of a row, which is computed otherwise, is the same for any number of threads.
static void compute(ggml_tensor* dst, int thread, int threads, void* /*unused*/) {
    constexpr int64_t kColumns = 16;
    const ggml_tensor *x = dst->src[0], *up = dst->src[1];
    const int64_t n = dst->ne[0];
    auto [first, last] = thread_share((n + kColumns - 1) / kColumns, thread, threads);
    first *= kColumns;
    last = std::min(n, last * kColumns);
    const auto row = [first = first](const ggml_tensor* tensor, int64_t token) {
        return reinterpret_cast<float*>(static_cast<char*>(tensor->data) +
                                        static_cast<size_t>(token) * tensor->nb[1]) +
               first;
    };
    for (int64_t token = 0; token < dst->ne[1]; ++token) {
        HWY_DYNAMIC_DISPATCH(GeluTanh)
        (row(x, token), up != nullptr ? row(up, token) : nullptr, row(dst, token), last - first);
    }
}

ggml_tensor* gelu_tanh(ggml_context* context, ggml_tensor* x, ggml_tensor* up) {
    ggml_tensor* arguments[] = {x, up};
    return ggml_custom_4d(context, GGML_TYPE_F32, x->ne[0], x->ne[1], 1, 1, arguments, up != nullptr ? 2 : 1,
                          compute, GGML_N_TASKS_MAX, nullptr);
}

}  // namespace refold
#endif
