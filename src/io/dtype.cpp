#include "io/dtype.h"

#include <ggml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/parallel.h"
#include "io/block_search.h"
#include "io/finite.h"

namespace refold {

static ggml_type ggml(DType type) { return static_cast<ggml_type>(type); }

bool is_supported(uint32_t id) {
    if (id >= GGML_TYPE_COUNT) return false;
    const ggml_type_traits* traits = ggml_get_type_traits(static_cast<ggml_type>(id));
    if (traits->blck_size == 0 || traits->type_size == 0) return false;
    return id == GGML_TYPE_F32 || traits->to_float != nullptr;
}

std::string name(DType type) {
    std::string text = ggml_type_name(ggml(type));
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    return text;
}

int64_t block_elements(DType type) { return ggml_blck_size(ggml(type)); }
size_t block_bytes(DType type) { return ggml_type_size(ggml(type)); }
size_t row_bytes(DType type, int64_t elements) {
    if (elements % block_elements(type) != 0)
        fail(ErrorCode::internal, "dtype", "{} elements are no whole blocks of {}", elements, name(type));
    return static_cast<size_t>(elements / block_elements(type)) * block_bytes(type);
}

int64_t fold(DType type, int64_t row_elements) {
    const int64_t block = block_elements(type);
    return block / std::gcd(block, row_elements);
}

void dequantize(DType type, std::span<const std::byte> data, std::span<float> out) {
    const auto count = static_cast<int64_t>(out.size());
    if (count % block_elements(type) != 0 || data.size() != row_bytes(type, count)) {
        fail(ErrorCode::input, "dtype", "{} bytes of {} do not hold {} elements", data.size(), name(type),
             count);
    }
    if (type == DType::F32) {
        memcpy(out.data(), data.data(), data.size());
    } else {
        ggml_get_type_traits(ggml(type))->to_float(data.data(), out.data(), count);
    }
}

namespace {

constexpr int64_t kPart = 1 << 16;  // weights that one thread packs at a time

// Scales that are float16 numbers have become infinite where values are too large for them. The number to
// blame is the block's largest.
void check_scales(DType type, std::span<const std::byte> packed, std::span<const float> values,
                  int64_t row_elements) {
    const auto found = first_not_finite(type, packed);
    if (!found) return;
    const auto block = static_cast<size_t>(block_elements(type)),
               begin = static_cast<size_t>(found->element) / block * block;
    const auto in_block = values.subspan(begin, block);
    const auto largest = std::ranges::max_element(in_block, {}, [](float value) { return std::abs(value); });
    throw too_large(type, {static_cast<int64_t>(begin) + (largest - in_block.begin()), *largest},
                    row_elements);
}

}  // namespace

bool needs_importance(DType type) { return ggml_quantize_requires_imatrix(ggml(type)); }

std::vector<std::byte> quantize(DType type, std::span<const float> values, int64_t row_elements,
                                std::span<const float> importance, int threads) {
    const auto count = static_cast<int64_t>(values.size());
    const int64_t folded = fold(type, row_elements), stored = row_elements * folded;
    if (count % stored != 0) {
        fail(ErrorCode::input, "dtype", "{} rows of {} elements are not whole blocks of {}",
             count / row_elements, row_elements, name(type));
    }
    if (!importance.empty() && static_cast<int64_t>(importance.size()) != row_elements) {
        fail(ErrorCode::internal, "dtype", "an importance of {} columns for rows of {}", importance.size(),
             row_elements);
    }
    if (importance.empty() && needs_importance(type)) {
        fail(ErrorCode::unsupported, "dtype", "{} can only be written with an importance matrix", name(type));
    }
    if (const auto found = first_not_finite(importance))
        throw NumberError(*found, row_elements, "expected a finite importance of a column");
    constexpr float kAlwaysFits = 32768;  // in all types: no scale becomes infinite
    std::vector<std::byte> out(row_bytes(type, count));
    std::vector<float> of_stored;
    for (int64_t row = 0; row < folded && !importance.empty(); ++row)
        of_stored.insert(of_stored.end(), importance.begin(), importance.end());
    const bool searched = !importance.empty() && has_block_search(type);
    const size_t bytes = row_bytes(type, stored);
    const int64_t rows = count / stored, rows_of_part = std::max<int64_t>(1, kPart / stored);
    parallel_for((rows + rows_of_part - 1) / rows_of_part, threads, [&](int64_t i) {
        const int64_t first = i * rows_of_part, own = std::min(rows_of_part, rows - first);
        const auto part =
            values.subspan(static_cast<size_t>(first * stored), static_cast<size_t>(own * stored));
        const auto packed =
            std::span(out).subspan(static_cast<size_t>(first) * bytes, static_cast<size_t>(own) * bytes);
        in_rows_from(first * folded, [&] {
            const float largest = check_holds(type, part, row_elements);
            if (searched)
                search_blocks(type, part, static_cast<size_t>(stored), of_stored, packed);
            else
                ggml_quantize_chunk(ggml(type), values.data(), out.data(), first * stored, own, stored,
                                    importance.empty() ? nullptr : of_stored.data());
            if (largest > kAlwaysFits) check_scales(type, packed, part, row_elements);
        });
    });
    return out;
}

}  // namespace refold
