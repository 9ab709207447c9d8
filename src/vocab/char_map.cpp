#include "vocab/char_map.h"

#include "core/error.h"
#include "core/text.h"
#include "vocab/growth.h"
#include "vocab/unicode.h"

namespace refold {
namespace {

constexpr size_t kLongestCluster = 5;  // bytes

uint32_t little_endian(std::string_view bytes, size_t at) {
    uint32_t value = 0;
    for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    return value;
}

// The fields of a unit of the trie.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

}  // namespace

CharMap::CharMap(std::string_view bytes, const std::string& where) {
    const size_t size = bytes.size() < 4 ? 0 : little_endian(bytes, 0);
    if (size == 0 || size % 4 != 0 || size > bytes.size() - 4) {
        fail(ErrorCode::input, "tokenizer",
             "{}: got {} bytes with a trie of {}, expected a precompiled charsmap", where, bytes.size(),
             size);
    }
    for (size_t at = 4; at < size + 4; at += 4) units_.push_back(little_endian(bytes, at));
    replacements_ = bytes.substr(size + 4);
    if (find_invalid_utf8(replacements_) != std::string::npos)
        fail(ErrorCode::input, "tokenizer", "{}: the replacements of the charsmap are not UTF-8", where);
}

std::optional<std::string_view> CharMap::find(std::string_view chunk) const {
    size_t node = offset(units_.front());
    for (const char c : chunk) {
        const auto byte = static_cast<unsigned char>(c);
        node ^= byte;
        if (byte == 0 || node >= units_.size() || label(units_[node]) != byte) return std::nullopt;
        const uint32_t unit = units_[node];
        node ^= offset(unit);
        if (!has_leaf(unit)) continue;
        if (node >= units_.size() || value(units_[node]) >= replacements_.size()) return std::nullopt;
        const std::string_view rest = std::string_view(replacements_).substr(value(units_[node]));
        return rest.substr(0, rest.find('\0'));
    }
    return std::nullopt;
}

std::string CharMap::replaced(std::string_view text, size_t longest) const {
    const std::u32string points = to_code_points(text);
    std::string out, chunk;
    const auto set_chunk = [&](size_t begin, size_t end) {
        chunk.clear();
        for (size_t i = begin; i < end; ++i) append_utf8(chunk, points[i]);
    };
    for (size_t at = 0; at < points.size();) {
        const size_t end = grapheme_end(points, at);
        set_chunk(at, end);
        if (chunk.size() <= kLongestCluster) {
            if (const auto found = find(chunk)) {
                out += *found;
                check_growth(out.size(), longest);
                at = end;
                continue;
            }
        }
        for (; at < end; ++at) {
            set_chunk(at, at + 1);
            out += find(chunk).value_or(chunk);
            check_growth(out.size(), longest);
        }
    }
    return out;
}

}  // namespace refold
