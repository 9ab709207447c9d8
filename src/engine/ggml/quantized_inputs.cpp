// Inputs in 8 bits, and in BF16 where the CPU has products of its pairs.
//
// In: F32 [token][column]. Out: int8 [token][column]; F32 scales [token][group]; sums [token][group][3].
// Threads share the tokens. A group of 32 numbers stays in registers: its largest one gives the scale, and
// the quants are summed before they are narrowed to bytes.
#include "engine/ggml/quantized_inputs.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ggml/quantized_inputs.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
// clang-format on

#include <ggml.h>

#include <algorithm>

#include "engine/ggml/panel_kernels.h"

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The quants of a group, minus the sums of its halves and of all; returns the scale. As ggml does for Q8_0:
// the largest number becomes 127, and quants are rounded by the exact scale.
static HWY_INLINE float QuantizeGroup(const float* x, int8_t* quants, int32_t* sums) {
    using D = hn::CappedTag<float, kInputGroup / 2>;
    const D d;
    const hn::RebindToSigned<D> ints;
    const hn::Rebind<int8_t, D> bytes;
    constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
    constexpr int64_t kVectors = kInputGroup / kLanes;
    hn::Vec<D> numbers[kVectors];
    auto largest = hn::Zero(d);
    for (int64_t i = 0; i < kVectors; ++i) {
        numbers[i] = hn::LoadU(d, x + i * kLanes);
        largest = hn::Max(largest, hn::Abs(numbers[i]));
    }
    const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
    const auto inverse = hn::Set(d, most > 0 ? 127.0F / most : 0.0F);
    for (int64_t half = 0; half < 2; ++half) {
        auto sum = hn::Zero(ints);
        for (int64_t i = half * kVectors / 2; i < (half + 1) * kVectors / 2; ++i) {
            const auto quant = hn::NearestInt(hn::Mul(numbers[i], inverse));
            sum = hn::Add(sum, quant);
            hn::StoreU(hn::DemoteTo(bytes, quant), bytes, quants + i * kLanes);
        }
        sums[half] = -hn::GetLane(hn::SumOfLanes(ints, sum));
    }
    sums[2] = sums[0] + sums[1];
    return most / 127.0F;
}

static void QuantizeGroups(const float* x, int64_t groups, int8_t* quants, float* scales, int32_t* sums) {
    for (int64_t g = 0; g < groups; ++g)
        scales[g] = QuantizeGroup(x + g * kInputGroup, quants + g * kInputGroup, sums + 3 * g);
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(QuantizeGroups);

void QuantizedInputs::fit(int64_t tokens, int64_t columns, InputForms forms) {
    forms_ = forms;
    groups_ = columns / kInputGroup;
    const auto all = static_cast<size_t>(tokens * groups_);
    if (forms.pairs) pairs_.resize(std::max(pairs_.size(), all * kInputGroup / 2));
    if (!forms.bytes || scales_.size() >= all) return;
    quants_.resize(all * kInputGroup);
    scales_.resize(all);
    negative_sums_.resize(3 * all);
    values_.resize(3 * all);
}

void QuantizedInputs::quantize(const float* x, int64_t stride, int64_t first, int64_t last) {
    thread_local std::vector<ggml_fp16_t> halves;
    halves.resize(static_cast<size_t>(groups_));
    for (int64_t t = first; t < last; ++t) {
        const auto begin = static_cast<size_t>(t * groups_);
        if (forms_.pairs) {
            kernels::to_bf16_pairs(x + t * stride, groups_ * kInputGroup,
                                   pairs_.data() + begin * kInputGroup / 2);
        }
        if (!forms_.bytes) continue;
        float *scales = scales_.data() + begin, *values = values_.data() + 3 * begin;
        int32_t* sums = negative_sums_.data() + 3 * begin;
        HWY_DYNAMIC_DISPATCH(QuantizeGroups)
        (x + t * stride, groups_, quants_.data() + begin * kInputGroup, scales, sums);
        // Scales have the precision of F16, as in a block of Q8_0.
        ggml_fp32_to_fp16_row(scales, halves.data(), groups_);
        ggml_fp16_to_fp32_row(halves.data(), scales, groups_);
        for (int64_t g = 0; g < groups_; ++g) {
            for (int64_t i = 0; i < 3; ++i)
                values[3 * g + i] = -scales[g] * static_cast<float>(sums[3 * g + i]);
        }
    }
}

}  // namespace refold
#endif
