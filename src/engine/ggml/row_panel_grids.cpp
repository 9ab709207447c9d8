#include "engine/ggml/row_panel_grids.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "core/error.h"

namespace refold::row_panels {
namespace {

// How a block is made whose first code is a given one and whose first numbers are those of the grid: its
// scale and the bytes with the lower and upper bits of the code.
struct Layout {
    ggml_type type;
    int columns;  // of a code
    std::span<const int> numbers;
    size_t codes;
    float d;
    size_t low, high;
};
constexpr size_t kCodes = sizeof(ggml_fp16_t);  // begin there, after the scale
constexpr std::array kLayouts = {
    Layout{GGML_TYPE_IQ2_XXS, 8, kIq2Numbers, 256, 8, kCodes, 0},
    Layout{GGML_TYPE_IQ2_XS, 8, kIq2Numbers, 512, 8, kCodes, kCodes + 1},
    Layout{GGML_TYPE_IQ2_S, 8, kIq2Numbers, 1024, 8, kCodes, kCodes + 64},
    Layout{GGML_TYPE_IQ3_XXS, 4, kIq3XxsNumbers, 256, 4, kCodes, 0},
    Layout{GGML_TYPE_IQ3_S, 4, kIq3SNumbers, 512, 1, kCodes, kCodes + 64},
    Layout{GGML_TYPE_IQ1_M, 8, kIq1Numbers, 4096, 8, 0, 32},
};

uint32_t which(float value, std::span<const int> numbers) {
    for (size_t i = 0; i < numbers.size(); ++i)
        if (static_cast<float>(numbers[i]) == value) return static_cast<uint32_t>(i);
    fail(ErrorCode::internal, "row panels", "a grid of ggml has {}", value);
}

Grid make_grid(const Layout& layout) {
    std::vector<std::byte> block(ggml_type_size(layout.type));
    std::vector<float> values(static_cast<size_t>(ggml_blck_size(layout.type)));
    const ggml_fp16_t d = ggml_fp32_to_fp16(layout.d);
    if (layout.type == GGML_TYPE_IQ1_M) {
        // Four bits of it are in each of the last four 16 bits.
        for (size_t i = 0; i < 4; ++i) block[48 + 2 * i + 1] = static_cast<std::byte>(d >> 4 * i << 4);
    } else {
        memcpy(block.data(), &d, sizeof(d));
    }
    Grid grid{std::vector<uint32_t>(layout.codes), std::vector<uint8_t>(2 * layout.codes)};
    for (size_t code = 0; code < layout.codes; ++code) {
        block[layout.low] = static_cast<std::byte>(code);
        if (layout.high != 0) block[layout.high] = static_cast<std::byte>(code >> 8);
        ggml_get_type_traits(layout.type)
            ->to_float(block.data(), values.data(), static_cast<int64_t>(values.size()));
        uint8_t *first = &grid.planes[code], *second = first + layout.codes;
        for (int i = 0; i < layout.columns; ++i) {
            const uint32_t x = which(values[static_cast<size_t>(i)], layout.numbers);
            const int place = 8 * (i % 4);
            if (layout.columns == 4) {
                grid.entries[code] |= static_cast<uint32_t>(layout.numbers[x]) << place;
                *first = static_cast<uint8_t>(*first | (x & 3) << 2 * i);
                *second = static_cast<uint8_t>(*second | (x >> 2) << i);
            } else {
                grid.entries[code] |= x << (place + 4 * (i / 4));
                uint8_t& plane = i < 4 ? *first : *second;
                plane = static_cast<uint8_t>(plane | x << 2 * (i % 4));  // of IQ1 not read
            }
        }
    }
    return grid;
}

}  // namespace

const Grid& grid_of(ggml_type type) {
    static const auto grids = [] {
        std::array<Grid, kLayouts.size()> all;
        std::transform(kLayouts.begin(), kLayouts.end(), all.begin(), make_grid);
        return all;
    }();
    const ggml_type of = type == GGML_TYPE_IQ1_S ? GGML_TYPE_IQ1_M : type;
    const auto* at =
        std::find_if(kLayouts.begin(), kLayouts.end(), [&](const Layout& l) { return l.type == of; });
    return grids[static_cast<size_t>(at - kLayouts.begin())];
}

}  // namespace refold::row_panels
