#include "exit/log_softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exit/log_softmax.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

static double LogSumExp(const float* x, size_t count) {
    const hn::ScalableTag<float> d;
    const size_t lanes = hn::Lanes(d);
    float maximum = -std::numeric_limits<float>::infinity();
    size_t i = 0;
    if (count >= lanes) {
        auto largest = hn::LoadU(d, x);
        for (i = lanes; i + lanes <= count; i += lanes) largest = hn::Max(largest, hn::LoadU(d, x + i));
        maximum = hn::GetLane(hn::MaxOfLanes(d, largest));
    }
    for (; i < count; ++i) maximum = std::max(maximum, x[i]);
    const auto shift = hn::Set(d, maximum);
    double sum = 0;
    constexpr size_t kBlock = 4096;  // bounds the length of float32 sums
    for (i = 0; i + lanes <= count;) {
        auto part = hn::Zero(d);
        const size_t end = std::min(count, i + kBlock);
        for (; i + lanes <= end; i += lanes)
            part = hn::Add(part, hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), shift)));
        sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, part)));
    }
    for (; i < count; ++i) sum += std::exp(static_cast<double>(x[i]) - maximum);
    return static_cast<double>(maximum) + std::log(sum);
}

// sum of exp(a - shift) (a - b)
static double WeightedDifference(const float* a, const float* b, float shift, size_t count) {
    const hn::ScalableTag<float> d;
    const size_t lanes = hn::Lanes(d);
    const auto shifts = hn::Set(d, shift);
    double sum = 0;
    constexpr size_t kBlock = 4096;
    size_t i = 0;
    while (i + lanes <= count) {
        auto part = hn::Zero(d);
        const size_t end = std::min(count, i + kBlock);
        for (; i + lanes <= end; i += lanes) {
            const auto x = hn::LoadU(d, a + i);
            part = hn::MulAdd(hn::Exp(d, hn::Sub(x, shifts)), hn::Sub(x, hn::LoadU(d, b + i)), part);
        }
        sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, part)));
    }
    for (; i < count; ++i)
        sum += std::exp(static_cast<double>(a[i]) - shift) * (static_cast<double>(a[i]) - b[i]);
    return sum;
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(LogSumExp);
HWY_EXPORT(WeightedDifference);

double log_sum_exp(std::span<const float> x) { return HWY_DYNAMIC_DISPATCH(LogSumExp)(x.data(), x.size()); }

double kl_divergence(std::span<const float> a, std::span<const float> b) {
    const double la = log_sum_exp(a), lb = log_sum_exp(b);
    // The shift is rounded to float, and the rounding error of `la` is a common factor.
    const auto shift = static_cast<float>(la);
    const double mean =
        HWY_DYNAMIC_DISPATCH(WeightedDifference)(a.data(), b.data(), shift, a.size()) * std::exp(shift - la);
    return std::max(0.0, mean - la + lb);
}

}  // namespace refold
#endif
