#include "engine/ggml/row_panel_grids.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/error.h"

namespace refold::row_panels {
namespace {

// How a block is made whose first code is a given one and whose numbers are those of the grid: its scale, as
// F16 for an IQ1_S block or another that begins with it, and the bytes with the lower and upper bits.
struct Layout {
    ggml_type type;
    size_t codes;
    float d;
    size_t low, high;
};
constexpr size_t kIndices = 2;  // after the scale
constexpr std::array kLayouts = {
    Layout{GGML_TYPE_IQ2_XXS, 256, 8, kIndices, 0},
    Layout{GGML_TYPE_IQ2_XS, 512, 8, kIndices, kIndices + 1},
    Layout{GGML_TYPE_IQ2_S, 1024, 8, kIndices, kIndices + 64},
    Layout{GGML_TYPE_IQ3_XXS, 256, 4, kIndices, 0},
    Layout{GGML_TYPE_IQ3_S, 512, 1, kIndices, kIndices + 64},
    Layout{GGML_TYPE_IQ1_S, 2048, 8, kIndices, kIndices + 32},
};

int as_integer(float x) {
    const auto number = static_cast<int>(x);
    if (static_cast<float>(number) != x || std::abs(number) > 63)
        fail(ErrorCode::internal, "row panels", "a grid of ggml has {}", x);
    return number;
}

uint32_t four_numbers(const float* values) {
    uint32_t entry = 0;
    for (int i = 0; i < 4; ++i) entry |= static_cast<uint32_t>(as_integer(values[i])) << 8 * i;
    return entry;
}

uint32_t eight_numbers(const float* values, const std::array<int, 3>& numbers) {
    uint32_t entry = 0;
    for (int i = 0; i < 8; ++i) {
        const auto found = std::find(numbers.begin(), numbers.end(), as_integer(values[i]));
        if (found == numbers.end())
            fail(ErrorCode::internal, "row panels", "a grid of ggml has {}", values[i]);
        entry |= static_cast<uint32_t>(found - numbers.begin()) << (8 * (i % 4) + 4 * (i / 4));
    }
    return entry;
}

std::vector<uint32_t> make_grid(const Layout& layout) {
    std::vector<std::byte> block(ggml_type_size(layout.type));
    std::vector<float> values(static_cast<size_t>(ggml_blck_size(layout.type)));
    const ggml_fp16_t d = ggml_fp32_to_fp16(layout.d);
    std::copy_n(reinterpret_cast<const std::byte*>(&d), sizeof(d), block.begin());
    std::vector<uint32_t> grid;
    for (size_t code = 0; code < layout.codes; ++code) {
        block[layout.low] = static_cast<std::byte>(code);
        if (layout.high != 0) block[layout.high] = static_cast<std::byte>(code >> 8);
        ggml_get_type_traits(layout.type)
            ->to_float(block.data(), values.data(), static_cast<int64_t>(values.size()));
        const bool four = layout.type == GGML_TYPE_IQ3_XXS || layout.type == GGML_TYPE_IQ3_S,
                   iq1 = layout.type == GGML_TYPE_IQ1_S;
        grid.push_back(four ? four_numbers(values.data())
                            : eight_numbers(values.data(), iq1 ? kIq1Numbers : kIq2Numbers));
    }
    return grid;
}

}  // namespace

const uint32_t* grid_of(ggml_type type) {
    static const auto grids = [] {
        std::array<std::vector<uint32_t>, kLayouts.size()> all;
        std::transform(kLayouts.begin(), kLayouts.end(), all.begin(), make_grid);
        return all;
    }();
    // IQ1_M has IQ1_S's.
    const ggml_type of = type == GGML_TYPE_IQ1_M ? GGML_TYPE_IQ1_S : type;
    const auto* at =
        std::find_if(kLayouts.begin(), kLayouts.end(), [&](const Layout& l) { return l.type == of; });
    return grids[static_cast<size_t>(at - kLayouts.begin())].data();
}

}  // namespace refold::row_panels
