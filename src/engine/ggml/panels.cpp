#include "engine/ggml/panels.h"

#include <ggml.h>

#include <cstring>

#include "engine/ggml/panel_kernels.h"

namespace refold {

size_t Panels::panel_bytes() const {
    switch (type_) {
        case PanelType::f32: return static_cast<size_t>(columns_ * kRows) * sizeof(float);
        case PanelType::f16: return static_cast<size_t>(columns_ * kRows) * sizeof(ggml_fp16_t);
        default: return static_cast<size_t>((columns_ + 1) / 2 * kRows) * sizeof(uint32_t);
    }
}

Panels::Panels(PanelType type, std::span<const float> matrix, int64_t rows, int64_t columns)
    : type_(type), rows_(rows), columns_(columns) {
    constexpr std::align_val_t kLine{64};
    const size_t size = bytes();
    auto* data = static_cast<std::byte*>(::operator new(size, kLine));
    data_ = {data, [](std::byte* p) { ::operator delete(p, kLine); }};
    memset(data, 0, size);
    const int64_t pair = type == PanelType::bf16 ? 2 : 1;
    for (int64_t r = 0; r < rows; ++r) {
        std::byte* panel = data + static_cast<size_t>(r / kRows) * panel_bytes();
        for (int64_t c = 0; c < columns; ++c) {
            const float value = matrix[static_cast<size_t>(r * columns + c)];
            const auto place = static_cast<size_t>((c / pair * kRows + r % kRows) * pair + c % pair);
            if (type == PanelType::f32) {
                memcpy(panel + place * sizeof(float), &value, sizeof(float));
            } else if (type == PanelType::f16) {
                const ggml_fp16_t half = ggml_fp32_to_fp16(value);
                memcpy(panel + place * sizeof(half), &half, sizeof(half));
            } else {
                const ggml_bf16_t half = ggml_fp32_to_bf16(value);
                memcpy(panel + place * sizeof(half), &half, sizeof(half));
            }
        }
    }
}

Panels::Input Panels::input(const float* x, int64_t stride, int64_t tokens,
                            std::vector<uint32_t>& scratch) const {
    if (type_ != PanelType::bf16 || !kernels::has_bf16_pairs()) return {x, nullptr, stride, tokens};
    const int64_t pairs = (columns_ + 1) / 2;
    if (static_cast<int64_t>(scratch.size()) < pairs * tokens)
        scratch.resize(static_cast<size_t>(pairs * tokens));
    for (int64_t t = 0; t < tokens; ++t)
        kernels::to_bf16_pairs(x + t * stride, columns_, scratch.data() + t * pairs);
    return {x, scratch.data(), pairs, tokens};
}

void Panels::multiply(const Input& x, Range range, float* y, int64_t stride, bool add) const {
    const kernels::PanelProduct product{data_.get(), panel_bytes(), range, columns_, rows_, x,
                                        y,           stride,        add};
    if (x.pairs != nullptr)
        kernels::multiply_bf16_pairs(product);
    else
        kernels::multiply_panels(type_, product);
}

}  // namespace refold
