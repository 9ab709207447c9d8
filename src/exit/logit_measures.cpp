#include "exit/logit_measures.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "exit/logit_measures.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <limits>

#ifndef REFOLD_EXIT_LOGIT_SUMS
#define REFOLD_EXIT_LOGIT_SUMS
namespace refold {

struct LogitSums {
    float largest = std::numeric_limits<float>::lowest(), second = std::numeric_limits<float>::lowest();
    size_t block = 0;         // first logit of the block with the largest logit
    double sum = 0;           // of exp(x - largest)
    double weighted_sum = 0;  // of exp(x - largest) (x - largest)
};

inline constexpr size_t kLogitBlock = 4096;  // fits into the L1 cache, and keeps float32 sums short

}  // namespace refold
#endif

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Lower bound of the exponent: below it exp() is subnormal, and -inf would give 0 * inf.
constexpr float kLeast = -87.0F;

static void take(LogitSums& s, float x) {
    s.second = std::max(s.second, std::min(s.largest, x));
    s.largest = std::max(s.largest, x);
}

static void LargestTwo(const float* x, size_t count, LogitSums& s) {
    const hn::ScalableTag<float> d;
    const size_t lanes = hn::Lanes(d);
    size_t i = 0;
    if (count >= lanes) {
        auto first = hn::LoadU(d, x), second = hn::Set(d, std::numeric_limits<float>::lowest());
        for (i = lanes; i + lanes <= count; i += lanes) {
            const auto v = hn::LoadU(d, x + i);
            second = hn::Max(second, hn::Min(first, v));
            first = hn::Max(first, v);
        }
        HWY_ALIGN float kept[2 * HWY_MAX_BYTES / sizeof(float)];
        hn::Store(first, d, kept);
        hn::Store(second, d, kept + lanes);
        for (size_t l = 0; l < 2 * lanes; ++l) take(s, kept[l]);
    }
    for (; i < count; ++i) take(s, x[i]);
}

static void AddBlock(const float* x, size_t count, LogitSums& s) {
    const hn::ScalableTag<float> d;
    const size_t lanes = hn::Lanes(d);
    const auto shift = hn::Set(d, s.largest), least = hn::Set(d, kLeast);
    auto sum = hn::Zero(d), weighted = hn::Zero(d);
    size_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const auto difference = hn::Max(hn::Sub(hn::LoadU(d, x + i), shift), least);
        const auto e = hn::Exp(d, difference);
        sum = hn::Add(sum, e);
        weighted = hn::MulAdd(e, difference, weighted);
    }
    s.sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
    s.weighted_sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, weighted)));
    for (; i < count; ++i) {
        const double difference = std::max(x[i] - s.largest, kLeast), e = std::exp(difference);
        s.sum += e;
        s.weighted_sum += e * difference;
    }
}

static void SumLogits(const float* x, size_t count, LogitSums& s) {
    for (size_t begin = 0; begin < count; begin += kLogitBlock) {
        const size_t size = std::min(kLogitBlock, count - begin);
        const float before = s.largest;
        LargestTwo(x + begin, size, s);
        if (s.largest > before) {
            s.block = begin;
            const double shift = static_cast<double>(before) - s.largest, factor = std::exp(shift);
            s.weighted_sum = (s.weighted_sum + shift * s.sum) * factor;
            s.sum *= factor;
        }
        AddBlock(x + begin, size, s);
    }
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(SumLogits);

double LogitMeasures::probability() const { return std::exp(static_cast<double>(largest) - log_sum_exp); }

double LogitMeasures::margin() const {
    return probability() - std::exp(static_cast<double>(second) - log_sum_exp);
}

LogitMeasures measure_logits(std::span<const float> logits) {
    LogitSums s;
    HWY_DYNAMIC_DISPATCH(SumLogits)(logits.data(), logits.size(), s);
    const auto begin = logits.begin() + static_cast<ptrdiff_t>(s.block);
    const double log_sum = std::log(s.sum);
    return {static_cast<int32_t>(std::find(begin, logits.end(), s.largest) - logits.begin()), s.largest,
            s.second, static_cast<double>(s.largest) + log_sum,
            std::max(0.0, log_sum - s.weighted_sum / s.sum)};
}

}  // namespace refold
#endif
