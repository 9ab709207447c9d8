#include "io/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace refold {
namespace {

// The bits of an exponent are all 1 in NaN and infinity, and in nothing else.
constexpr uint32_t kFloatExponent = 0x7F800000;
constexpr uint16_t kHalfExponent = 0x7C00, kBfloatExponent = 0x7F80;
constexpr float kLargestHalf = 65519.996F;  // it rounds to 65504; 65520 would be infinite
constexpr const char* kExpectedFinite = "expected a finite number";

// Without a branch for each element, so that the compiler makes vectors of it.
template <typename Bits>
bool has_exponent(const std::byte* data, size_t count, Bits exponent) {
    Bits found = 0;
    for (size_t i = 0; i < count; ++i) {
        Bits bits;
        memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
        found = static_cast<Bits>(found | ((bits & exponent) == exponent ? 1 : 0));
    }
    return found != 0;
}

// A part at a time, so that the search ends near the first one.
template <typename Bits>
std::optional<size_t> find_exponent(std::span<const std::byte> data, Bits exponent) {
    constexpr size_t kElementsAtOnce = 4096;
    const size_t count = data.size() / sizeof(Bits);
    for (size_t first = 0; first < count; first += kElementsAtOnce) {
        const size_t part = std::min(kElementsAtOnce, count - first);
        if (!has_exponent(data.data() + first * sizeof(Bits), part, exponent)) continue;
        size_t i = first;
        while (!has_exponent(data.data() + i * sizeof(Bits), 1, exponent)) ++i;
        return i;
    }
    return std::nullopt;
}

// Places of a block's float16 scales in ggml's quantized types.
struct Scales {
    DType type;
    std::array<int, 2> at;  // bytes from the block's beginning; -1: there is no second one
};
constexpr Scales kScales[] = {
    {DType::Q4_0, {0, -1}},   {DType::Q4_1, {0, 2}},     {DType::Q5_0, {0, -1}},    {DType::Q5_1, {0, 2}},
    {DType::Q8_0, {0, -1}},   {DType::Q2_K, {80, 82}},   {DType::Q3_K, {108, -1}},  {DType::Q4_K, {0, 2}},
    {DType::Q5_K, {0, 2}},    {DType::Q6_K, {208, -1}},  {DType::IQ2_XXS, {0, -1}}, {DType::IQ2_XS, {0, -1}},
    {DType::IQ2_S, {0, -1}},  {DType::IQ3_XXS, {0, -1}}, {DType::IQ3_S, {0, -1}},   {DType::IQ1_S, {0, -1}},
    {DType::IQ4_NL, {0, -1}}, {DType::IQ4_XS, {0, -1}},
};

// The first element of a block, or of several, that dequantizes to something that is not finite.
std::optional<FoundNumber> find_unpacked(DType type, std::span<const std::byte> data, int64_t first_element) {
    std::vector<float> values(data.size() / block_bytes(type) * static_cast<size_t>(block_elements(type)));
    dequantize(type, data, values);
    const auto found = first_not_finite(values);
    if (!found) return std::nullopt;
    return FoundNumber{first_element + found->element, found->value};
}

std::optional<FoundNumber> find_in_blocks(DType type, std::span<const std::byte> data) {
    const size_t bytes = block_bytes(type), blocks = data.size() / bytes;
    const auto known = std::ranges::find(kScales, type, &Scales::type);
    // Others keep their scales in pieces, or as an exponent.
    constexpr size_t kBlocksAtOnce = 64;
    if (known == std::end(kScales)) {
        for (size_t b = 0; b < blocks; b += kBlocksAtOnce) {
            const auto part = data.subspan(b * bytes, std::min(kBlocksAtOnce, blocks - b) * bytes);
            if (const auto found = find_unpacked(type, part, static_cast<int64_t>(b) * block_elements(type)))
                return found;
        }
        return std::nullopt;
    }
    for (const std::byte *block = data.data(), *end = block + blocks * bytes; block < end; block += bytes) {
        const bool bad = std::ranges::any_of(known->at, [&](int at) {
            return at >= 0 && has_exponent<uint16_t>(block + at, 1, kHalfExponent);
        });
        if (!bad) continue;
        const auto b = (block - data.data()) / static_cast<std::ptrdiff_t>(bytes);
        if (const auto found = find_unpacked(type, data.subspan(static_cast<size_t>(b) * bytes, bytes),
                                             b * block_elements(type)))
            return found;
    }
    return std::nullopt;
}

std::string place_text(const FoundNumber& found, int64_t row_elements) {
    const std::string value = std::isnan(found.value) ? "nan" : fmt::format("{}", found.value);
    return fmt::format("row {}, column {} is {}", found.element / row_elements, found.element % row_elements,
                       value);
}

}  // namespace

std::optional<FoundNumber> first_not_finite(std::span<const float> values) {
    const auto i = find_exponent<uint32_t>(std::as_bytes(values), kFloatExponent);
    if (!i) return std::nullopt;
    return FoundNumber{static_cast<int64_t>(*i), values[*i]};
}

std::optional<FoundNumber> first_not_finite(DType type, std::span<const std::byte> data) {
    if (!is_float(type)) return find_in_blocks(type, data);
    const auto found = type == DType::F32   ? find_exponent<uint32_t>(data, kFloatExponent)
                       : type == DType::F16 ? find_exponent<uint16_t>(data, kHalfExponent)
                                            : find_exponent<uint16_t>(data, kBfloatExponent);
    if (!found) return std::nullopt;
    float value = 0;
    const size_t size = block_bytes(type);
    dequantize(type, data.subspan(*found * size, size), {&value, 1});
    return FoundNumber{static_cast<int64_t>(*found), value};
}

float largest_number(DType type) {
    // A block's scale is a float16 number, with which its sub-blocks' scales and levels are multiplied.
    switch (type) {
        case DType::F32:
        case DType::BF16:
        case DType::MXFP4: return std::numeric_limits<float>::max();
        case DType::F16: return kLargestHalf;
        case DType::Q4_0: return kLargestHalf * 8;
        case DType::Q4_1: return kLargestHalf * 16;
        case DType::Q5_0: return kLargestHalf * 16;
        case DType::Q5_1: return kLargestHalf * 32;
        case DType::Q8_0: return kLargestHalf * 127;
        case DType::Q2_K: return kLargestHalf * 15 * 3;
        case DType::Q3_K: return kLargestHalf * 31 * 4;
        case DType::Q4_K: return kLargestHalf * 63 * 15;
        case DType::Q5_K: return kLargestHalf * 63 * 31;
        case DType::Q6_K: return kLargestHalf * 127 * 32;
        case DType::IQ4_NL: return kLargestHalf * 113;
        case DType::IQ4_XS: return kLargestHalf * 31 * 113;
        case DType::IQ2_XXS:
        case DType::IQ2_XS:
        case DType::IQ2_S: return kLargestHalf * 31 / 8 * 43;
        case DType::IQ3_XXS: return kLargestHalf * 31 / 4 * 62;
        case DType::IQ3_S: return kLargestHalf * 31 * 15;
        case DType::IQ1_S:
        case DType::IQ1_M: return kLargestHalf * 15;
    }
    return kLargestHalf;
}

NumberError::NumberError(const FoundNumber& found, int64_t row_elements, std::string why)
    : Error(ErrorCode::input, fmt::format("[weights] {}, {}", place_text(found, row_elements), why)),
      found_(found),
      row_elements_(row_elements),
      why_(std::move(why)) {}

NumberError NumberError::below(int64_t first_row) const {
    return {{found_.element + first_row * row_elements_, found_.value}, row_elements_, why_};
}

Error NumberError::named(const char* component, const std::string& tensor) const {
    return {ErrorCode::input, fmt::format("[{}] tensor '{}': {}, {}", component, tensor,
                                          place_text(found_, row_elements_), why_)};
}

static void refuse_number(const std::optional<FoundNumber>& found, int64_t row_elements) {
    if (found) throw NumberError(*found, row_elements, kExpectedFinite);
}

NumberError too_large(DType type, const FoundNumber& found, int64_t row_elements) {
    return {
        found, row_elements,
        fmt::format("which is too large for {} - choose a type of a larger range, BF16 or F32", name(type))};
}

// NaN has larger bits than infinity, and infinity than any number, so one pass over magnitudes finds both.
static float largest_magnitude(std::span<const float> values) {
    constexpr uint32_t kMagnitude = 0x7FFFFFFF;
    uint32_t largest = 0;
    for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & kMagnitude);
    return std::bit_cast<float>(largest);
}

float check_holds(DType type, std::span<const float> values, int64_t row_elements) {
    const float largest = largest_magnitude(values), limit = largest_number(type);
    if (largest <= limit) return largest;
    if (!std::isfinite(largest)) throw NumberError(*first_not_finite(values), row_elements, kExpectedFinite);
    const auto found = std::ranges::find_if(values, [limit](float value) { return std::abs(value) > limit; });
    throw too_large(type, {found - values.begin(), *found}, row_elements);
}

void check_finite(DType type, std::span<const std::byte> data, int64_t row_elements) {
    refuse_number(first_not_finite(type, data), row_elements);
}

void check_finite(std::span<const float> values, int64_t row_elements) {
    refuse_number(first_not_finite(values), row_elements);
}

}  // namespace refold
