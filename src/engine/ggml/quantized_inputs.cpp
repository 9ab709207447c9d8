#include "engine/ggml/quantized_inputs.h"

#include <ggml-cpu.h>

#include <cstring>
#include <numeric>

namespace refold {

void QuantizedInputs::fit(int64_t tokens, int64_t columns) {
    groups_ = columns / kInputGroup;
    const auto all = static_cast<size_t>(tokens * groups_);
    if (scales_.size() >= all) return;
    quants_.resize(all * kInputGroup);
    scales_.resize(all);
    sums_.resize(3 * all);
    values_.resize(3 * all);
}

void QuantizedInputs::quantize(const float* x, int64_t stride, int64_t first, int64_t last) {
    thread_local std::vector<std::byte> row;
    row.resize(ggml_row_size(GGML_TYPE_Q8_0, groups_ * kInputGroup));
    const ggml_from_float_t from_float = ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)->from_float;
    for (int64_t t = first; t < last; ++t) {
        from_float(x + t * stride, row.data(), groups_ * kInputGroup);
        const std::byte* from = row.data();
        for (auto g = static_cast<size_t>(t * groups_); g < static_cast<size_t>((t + 1) * groups_); ++g) {
            ggml_fp16_t scale;
            memcpy(&scale, from, sizeof(scale));
            int8_t* quants = quants_.data() + g * kInputGroup;
            memcpy(quants, from + sizeof(scale), static_cast<size_t>(kInputGroup));
            scales_[g] = ggml_fp16_to_fp32(scale);
            int32_t* sums = sums_.data() + 3 * g;
            sums[0] = std::accumulate(quants, quants + kInputGroup / 2, 0);
            sums[1] = std::accumulate(quants + kInputGroup / 2, quants + kInputGroup, 0);
            sums[2] = sums[0] + sums[1];
            for (size_t i = 0; i < 3; ++i) values_[3 * g + i] = scales_[g] * static_cast<float>(sums[i]);
            from += sizeof(scale) + static_cast<size_t>(kInputGroup);
        }
    }
}

}  // namespace refold
