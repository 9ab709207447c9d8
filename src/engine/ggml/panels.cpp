// Packing of panels, preparation of inputs, and the choice of kernel (panel_kernels.h, row_panels.h).
//
// In: matrix F32 [row][column]. Out: panels [panel][column][16 rows], for BF16 [panel][column / 2][16 rows][2
// columns], for q8 those of row_panels.h. Packing happens once, when loading, on one thread per matrix.
// Products run on the calling thread; the caller splits panels.
#include "engine/ggml/panels.h"

#include <ggml.h>

#include <algorithm>
#include <cstring>

#include "engine/ggml/panel_kernels.h"

namespace refold {

size_t Panels::panel_bytes() const {
    switch (type_) {
        case PanelType::f32: return static_cast<size_t>(columns_ * kRows) * sizeof(float);
        case PanelType::f16: return static_cast<size_t>(columns_ * kRows) * sizeof(ggml_fp16_t);
        case PanelType::q8: return static_cast<size_t>(kRows) * ggml_row_size(GGML_TYPE_Q8_0, columns_);
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
    if (type == PanelType::q8) {
        const size_t row_bytes = ggml_row_size(GGML_TYPE_Q8_0, columns);
        std::vector<std::byte> stored(static_cast<size_t>(rows) * row_bytes);
        ggml_quantize_chunk(GGML_TYPE_Q8_0, matrix.data(), stored.data(), 0, rows, columns, nullptr);
        row_panels::pack(GGML_TYPE_Q8_0, stored.data(), row_bytes, rows, columns, data);
        return;
    }
    const int64_t pair = type == PanelType::bf16 ? 2 : 1;
    for (int64_t r = 0; r < rows; ++r) {
        std::byte* panel = data + static_cast<size_t>(r / kRows) * panel_bytes();
        for (int64_t c = 0; c < columns; ++c) {
            const float value = matrix[static_cast<size_t>(r * columns + c)];
            const auto index = static_cast<size_t>((c / pair * kRows + r % kRows) * pair + c % pair);
            if (type == PanelType::f32) {
                memcpy(panel + index * sizeof(float), &value, sizeof(float));
            } else if (type == PanelType::f16) {
                const ggml_fp16_t half = ggml_fp32_to_fp16(value);
                memcpy(panel + index * sizeof(half), &half, sizeof(half));
            } else {
                const ggml_bf16_t half = ggml_fp32_to_bf16(value);
                memcpy(panel + index * sizeof(half), &half, sizeof(half));
            }
        }
    }
}

Panels::Input Panels::input(const float* x, int64_t stride, int64_t tokens, Scratch& scratch) const {
    if (type_ == PanelType::q8) {
        scratch.quantized.fit(tokens, columns_, {.bytes = true});
        scratch.quantized.quantize(x, stride, 0, tokens);
        return {x, nullptr, stride, tokens, scratch.quantized.get(x, stride)};
    }
    if (type_ != PanelType::bf16 || !kernels::has_bf16_pairs()) return {x, nullptr, stride, tokens};
    const int64_t pairs = (columns_ + 1) / 2;
    if (static_cast<int64_t>(scratch.pairs.size()) < pairs * tokens)
        scratch.pairs.resize(static_cast<size_t>(pairs * tokens));
    for (int64_t t = 0; t < tokens; ++t)
        kernels::to_bf16_pairs(x + t * stride, columns_, scratch.pairs.data() + t * pairs);
    return {x, scratch.pairs.data(), pairs, tokens};
}

void Panels::multiply(const Input& x, Range range, float* y, int64_t stride, bool add) const {
    if (type_ == PanelType::q8) {
        thread_local row_panels::Scratch scratch;
        const row_panels::Matrix matrix{GGML_TYPE_Q8_0, data_.get(), columns_, rows_};
        row_panels::multiply(matrix, {range.first, range.last}, {0, matrix.groups()}, x.quantized, x.tokens,
                             {y + range.first * kRows, static_cast<size_t>(stride), add}, scratch);
        for (int64_t t = 0; t < x.tokens && !add && range.last == panels(); ++t)
            std::fill(y + t * stride + rows_, y + t * stride + panels() * kRows, 0.0F);
        return;
    }
    const int64_t written = add ? rows_ : panels() * kRows;
    const kernels::PanelProduct product{data_.get(), panel_bytes(), range, columns_, written, x,
                                        y,           stride,        add};
    if (x.pairs != nullptr)
        kernels::multiply_bf16_pairs(product);
    else
        kernels::multiply_panels(type_, product);
}

}  // namespace refold
