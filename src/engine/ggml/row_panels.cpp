// Packing of row panels, and the order in which their kernels are called.
#include "engine/ggml/row_panels.h"

#include <cstring>

#include "engine/ggml/panel_kernels.h"
#include "engine/ggml/row_panel_kernels.h"

namespace refold::row_panels {
namespace {

// Up to so many tokens are multiplied with the panel as it is stored; unpacking it first pays for more.
constexpr int64_t kFewTokens = 24;
constexpr int64_t kTokensTogether = 8;
// Bytes of unpacked panels that a group of tokens meets: they stay in the cache, and so do the tokens.
constexpr size_t kUnpackedBytes = size_t{96} << 10;

// The parts of a type's blocks, in a row and in a panel of `rows` rows.
struct Parts {
    size_t block_bytes, odd, dwords, odd_at, dwords_at;

    explicit Parts(ggml_type type)
        : block_bytes(block_of(type).bytes),
          odd(odd_bytes(type).count),
          dwords(block_bytes / sizeof(uint32_t)),
          odd_at(odd_bytes(type).at_end ? block_bytes - odd : 0),
          dwords_at(odd_bytes(type).at_end ? 0 : odd) {}
};

// Calls move(place in the rows' blocks, place in the panel, bytes) for all that row `row` of a panel of
// `rows` rows consists of.
template <class Move>
void for_row(const Parts& parts, size_t blocks, size_t row, size_t rows, const Move& move) {
    size_t block = 0, odd = row * parts.odd, dword = blocks * rows * parts.odd + row * sizeof(uint32_t);
    for (size_t b = 0; b < blocks; ++b, block += parts.block_bytes, odd += rows * parts.odd) {
        if (parts.odd > 0) move(block + parts.odd_at, odd, parts.odd);
        for (size_t w = 0; w < parts.dwords; ++w, dword += rows * sizeof(uint32_t))
            move(block + parts.dwords_at + w * sizeof(uint32_t), dword, sizeof(uint32_t));
    }
}

size_t blocks_of(ggml_type type, int64_t width) {
    return static_cast<size_t>(width / block_of(type).numbers);
}

// The dwords and other bytes of a panel; a last one of fewer rows is filled up to sixteen in `memory`.
Panel whole_panel(const Matrix& matrix, int64_t index, std::vector<std::byte>& memory) {
    const Parts parts(matrix.type);
    const std::byte* stored = matrix.panel(index);
    const auto rows = static_cast<size_t>(matrix.rows_of(index));
    const size_t blocks = blocks_of(matrix.type, matrix.width), odd = blocks * kRows * parts.odd,
                 stored_odd = blocks * rows * parts.odd;
    if (rows == kRows) return {stored, stored + odd};
    memory.assign(static_cast<size_t>(kRows) * matrix.row_bytes(), std::byte{0});
    for (size_t b = 0; b < blocks; ++b)
        memcpy(memory.data() + b * kRows * parts.odd, stored + b * rows * parts.odd, rows * parts.odd);
    for (size_t w = 0; w < blocks * parts.dwords; ++w) {
        memcpy(memory.data() + odd + w * kRows * sizeof(uint32_t),
               stored + stored_odd + w * rows * sizeof(uint32_t), rows * sizeof(uint32_t));
    }
    return {memory.data(), memory.data() + odd};
}

}  // namespace

static bool is_float(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

void add_form(InputForms& forms, ggml_type type) {
    if (!is_float(type))
        forms.bytes = true;
    else if (type == GGML_TYPE_BF16 && kernels::has_bf16_pairs())
        forms.pairs = true;
}

bool supports(ggml_type type, int64_t columns) {
    if (type == GGML_TYPE_F32 || type == GGML_TYPE_F16) return true;
    return columns % kInputGroup == 0 && (is_float(type) || kernels_of(type) != nullptr);
}

void pack(ggml_type type, const std::byte* rows, size_t stride, int64_t count, int64_t width,
          std::byte* panels) {
    const Parts parts(type);
    const size_t blocks = blocks_of(type, width), bytes = blocks * parts.block_bytes;
    for (int64_t first = 0; first < count; first += kRows) {
        const auto together = static_cast<size_t>(std::min(kRows, count - first));
        for (size_t row = 0; row < together; ++row) {
            const std::byte* from = rows + (static_cast<size_t>(first) + row) * stride;
            for_row(parts, blocks, row, together,
                    [&](size_t at, size_t to, size_t n) { memcpy(panels + to, from + at, n); });
        }
        panels += together * bytes;
    }
}

void read_row(const Matrix& matrix, int64_t row, std::byte* out) {
    const int64_t index = row / kRows;
    const std::byte* panel = matrix.panel(index);
    for_row(Parts(matrix.type), blocks_of(matrix.type, matrix.width), static_cast<size_t>(row % kRows),
            static_cast<size_t>(matrix.rows_of(index)),
            [&](size_t at, size_t from, size_t n) { memcpy(out + at, panel + from, n); });
}

namespace {

class Multiplication {
public:
    Multiplication(const Matrix& matrix, Range groups, const Inputs& inputs, int64_t tokens,
                   const Output& out, Scratch& scratch)
        : matrix_(matrix),
          kernels_(*kernels_of(matrix.type)),
          inputs_(inputs),
          tokens_(tokens),
          out_(out),
          scratch_(scratch),
          panel_bytes_(static_cast<size_t>(kRows) * matrix.row_bytes()),
          first_group_(groups.first),
          groups_(groups.last - groups.first),
          all_groups_(static_cast<size_t>(matrix.fold * groups_)) {}

    void run(Range panels) {
        first_panel_ = panels.first;
        if (tokens_ <= kFewTokens) {
            for (int64_t i = panels.first; i < panels.last; ++i) few_tokens(i);
            return;
        }
        const auto together = static_cast<int64_t>(std::max<size_t>(1, kUnpackedBytes / unpacked_bytes()));
        for (int64_t first = panels.first; first < panels.last; first += together)
            many_tokens({first, std::min(panels.last, first + together)});
    }

private:
    size_t numbers(int of_group) const { return all_groups_ * static_cast<size_t>(of_group * kRows); }
    size_t unpacked_bytes() const {
        return all_groups_ * kInputGroup * kRows +
               numbers(kernels_.scales + kernels_.minimums) * sizeof(float);
    }

    Unpacked unpacked(int64_t i) const {
        std::byte* quants = aligned_ + static_cast<size_t>(i) * unpacked_bytes();
        auto* scales = reinterpret_cast<float*>(quants + all_groups_ * kInputGroup * kRows);
        return {quants, scales, scales + numbers(kernels_.scales)};
    }

    Product product(int64_t panel, int64_t first_token) const {
        return {inputs_,
                first_token,
                first_group_,
                groups_,
                matrix_.fold,
                matrix_.rows_of(panel),
                out_.data + (panel - first_panel_) * kRows * matrix_.fold,
                out_.stride,
                out_.add};
    }

    // Calls group(first, count) for groups of at most kTokensTogether tokens. They are split evenly: a
    // remainder of one token would take nearly as long as a full group.
    template <class Do>
    void for_groups(const Do& group) const {
        const int64_t parts = (tokens_ + kTokensTogether - 1) / kTokensTogether;
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t first = tokens_ * part / parts;
            group(first, static_cast<size_t>(tokens_ * (part + 1) / parts - first));
        }
    }

    void few_tokens(int64_t i) {
        const Panel panel = whole_panel(matrix_, i, scratch_.panel);
        const bool next = matrix_.rows_of(i) == kRows && i + 1 < matrix_.panels();
        const size_t ahead = next ? panel_bytes_ : 0;
        for_groups([&](int64_t first, size_t count) {
            kernels_.few[count - 1](panel, product(i, first), first == 0 ? ahead : 0);
        });
    }

    void many_tokens(Range panels) {
        const int64_t count = panels.last - panels.first;
        constexpr size_t kLine = 64;
        scratch_.unpacked.resize(static_cast<size_t>(count) * unpacked_bytes() + kLine);
        const auto address = reinterpret_cast<uintptr_t>(scratch_.unpacked.data());
        aligned_ = scratch_.unpacked.data() + (kLine - address % kLine) % kLine;
        for (int64_t i = 0; i < count; ++i)
            kernels_.unpack(whole_panel(matrix_, panels.first + i, scratch_.panel), first_group_,
                            static_cast<int64_t>(all_groups_), unpacked(i));
        for_groups([&](int64_t first, size_t tokens) {
            for (int64_t i = 0; i < count; ++i)
                kernels_.many[tokens - 1](unpacked(i), product(panels.first + i, first));
        });
    }

    const Matrix& matrix_;
    const Kernels& kernels_;
    const Inputs& inputs_;
    int64_t tokens_;
    const Output& out_;
    Scratch& scratch_;
    size_t panel_bytes_;
    int64_t first_panel_ = 0, first_group_, groups_;
    size_t all_groups_;  // of a stored row
    std::byte* aligned_ = nullptr;
};

// Bytes of panels that all tokens meet before the next ones: they stay in the cache.
constexpr size_t kFloatBytes = size_t{192} << 10;

void multiply_floats(const Matrix& matrix, Range panels, Range groups, const Inputs& inputs, int64_t tokens,
                     const Output& out, Scratch& scratch) {
    const auto row_bytes = static_cast<size_t>(matrix.row_bytes());
    const size_t panel_bytes = static_cast<size_t>(kRows) * row_bytes;
    const auto offset = static_cast<size_t>(groups.first * kInputGroup * kRows) * ggml_type_size(matrix.type);
    const bool pairs = matrix.type == GGML_TYPE_BF16 && kernels::has_bf16_pairs();
    const auto run = [&](const kernels::PanelProduct& product) {
        if (pairs) return kernels::multiply_bf16_pairs(product);
        kernels::multiply_panels(matrix.type == GGML_TYPE_F32   ? PanelType::f32
                                 : matrix.type == GGML_TYPE_F16 ? PanelType::f16
                                                                : PanelType::bf16,
                                 product);
    };
    kernels::PanelProduct product{
        nullptr,
        panel_bytes,
        {},
        std::min(groups.last * kInputGroup, matrix.columns()) - groups.first * kInputGroup,
        matrix.rows - panels.first * kRows,
        {inputs.floats, inputs.pairs, pairs ? inputs.groups * kInputGroup / 2 : inputs.stride, tokens},
        out.data,
        static_cast<int64_t>(out.stride),
        out.add};
    const int64_t whole = std::min(panels.last, matrix.rows / kRows);
    const auto together = static_cast<int64_t>(std::max<size_t>(1, kFloatBytes / panel_bytes));
    product.weights = matrix.panel(panels.first) + offset;
    for (int64_t i = panels.first; i < whole; i += together) {
        product.range = {i - panels.first, std::min(whole, i + together) - panels.first};
        run(product);
    }
    if (whole == panels.last) return;
    const Panel last = whole_panel(matrix, whole, scratch.panel);
    product.weights = (matrix.type == GGML_TYPE_F16 ? last.odd : last.dwords) + offset;
    product.y += (whole - panels.first) * kRows;
    product.rows = matrix.rows_of(whole);
    product.range = {0, 1};
    run(product);
}

}  // namespace

void multiply(const Matrix& matrix, Range panels, Range groups, const Inputs& inputs, int64_t tokens,
              const Output& out, Scratch& scratch) {
    if (is_float(matrix.type)) return multiply_floats(matrix, panels, groups, inputs, tokens, out, scratch);
    Multiplication(matrix, groups, inputs, tokens, out, scratch).run(panels);
}

}  // namespace refold::row_panels
