#include "text/jinja/unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "text/jinja/budget.h"
#include "text/jinja/unicode_case.h"

namespace refold::jinja {
namespace {

struct Interval {
    char32_t first, last;
};

// Digits that are no decimals, such as superscripts; lower and upper case that are no letters of these
// categories, such as roman numerals.
constexpr Interval kDigits[] = {
    {0xb2, 0xb3},     {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},   {0x2070, 0x2070},
    {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247c},   {0x2488, 0x2490},
    {0x24ea, 0x24ea}, {0x24f5, 0x24fd},   {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},
    {0x278a, 0x2792}, {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};
constexpr Interval kLower[] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
    {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
    {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
    {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};
constexpr Interval kUpper[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

template <size_t N>
bool within(const Interval (&ranges)[N], char32_t point) {
    return std::ranges::any_of(ranges,
                               [&](const Interval& r) { return point >= r.first && point <= r.last; });
}

utf8proc_category_t category(char32_t point) {
    return utf8proc_category(static_cast<utf8proc_int32_t>(point));
}

bool is_letter(utf8proc_category_t c) { return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO; }
bool is_number(utf8proc_category_t c) { return c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO; }

const SpecialCase* special_case(char32_t point) {
    if (point < kSpecialCases[0].point) return nullptr;
    const auto* const found = std::ranges::lower_bound(kSpecialCases, point, {}, &SpecialCase::point);
    return found != std::end(kSpecialCases) && found->point == point ? found : nullptr;
}

void append_points(std::string& out, const char32_t (&points)[3]) {
    for (const char32_t point : points)
        if (point != 0) append_point(out, point);
}

void append_upper(std::string& out, char32_t point) {
    if (const SpecialCase* special = special_case(point)) return append_points(out, special->upper);
    append_point(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(point))));
}

void append_title(std::string& out, char32_t point) {
    if (const SpecialCase* special = special_case(point)) return append_points(out, special->title);
    append_point(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(point))));
}

// Marks, modifiers and some punctuation, which do not matter for the case of letters beside them.
bool is_case_ignorable(char32_t point) {
    constexpr std::u32string_view kOthers =
        U"'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52"
        U"\ufe55\uff07\uff0e\uff1a";
    switch (category(point)) {
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_SK: return true;
        default: return kOthers.find(point) != std::u32string_view::npos;
    }
}

// A capital sigma at the end of a word has a lower case of its own.
bool is_final_sigma(std::u32string_view points, size_t at) {
    size_t before = at;
    while (before > 0 && is_case_ignorable(points[before - 1])) --before;
    if (before == 0 || !is_cased(points[before - 1])) return false;
    size_t after = at + 1;
    while (after < points.size() && is_case_ignorable(points[after])) ++after;
    return after == points.size() || !is_cased(points[after]);
}

void append_lower(std::string& out, std::u32string_view points, size_t at) {
    constexpr char32_t kSigma = 0x3a3, kFinalSigma = 0x3c2, kDottedI = 0x130, kDot = 0x307;
    const char32_t point = points[at];
    if (point == kSigma && is_final_sigma(points, at)) return append_point(out, kFinalSigma);
    if (point == kDottedI) {
        append_point(out, U'i');
        return append_point(out, kDot);
    }
    append_point(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point))));
}

bool is_ascii(std::string_view text) {
    return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool ends_line(char32_t point) {
    return (point >= 0x0a && point <= 0x0d) || (point >= 0x1c && point <= 0x1e) || point == 0x85 ||
           point == 0x2028 || point == 0x2029;
}

}  // namespace

size_t code_points(std::string_view text) {
    return static_cast<size_t>(
        std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

char32_t next_point(std::string_view text, size_t& at) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(at);
    const size_t size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    char32_t point = size == 1 ? first : first & (0xffU >> (size + 1));
    for (size_t i = 1; i < size && at + i < text.size(); ++i) point = point << 6 | (byte(at + i) & 0x3fU);
    at = std::min(at + size, text.size());
    return point;
}

void append_point(std::string& text, char32_t point) {
    if (point < 0x80) {
        text += static_cast<char>(point);
        return;
    }
    utf8proc_uint8_t bytes[4];
    const auto size = utf8proc_encode_char(static_cast<utf8proc_int32_t>(point), bytes);
    text.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

std::u32string points_of(std::string_view text) {
    check_memory(text.size() * sizeof(char32_t));
    std::u32string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) out += next_point(text, at);
    return out;
}

std::string utf8_of(std::u32string_view points) {
    std::string out;
    out.reserve(points.size());
    for (const char32_t point : points) append_point(out, point);
    return out;
}

size_t byte_of(std::string_view text, size_t index) {
    size_t at = 0;
    for (; index > 0 && at < text.size(); --index) next_point(text, at);
    return at;
}

bool is_space(char32_t point) {
    return (point >= 0x09 && point <= 0x0d) || (point >= 0x1c && point <= 0x20) || point == 0x85 ||
           point == 0xa0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200a) || point == 0x2028 ||
           point == 0x2029 || point == 0x202f || point == 0x205f || point == 0x3000;
}
bool is_alpha(char32_t point) { return is_letter(category(point)); }
bool is_decimal(char32_t point) { return category(point) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t point) { return is_decimal(point) || within(kDigits, point); }
bool is_alnum(char32_t point) { return is_alpha(point) || is_number(category(point)); }
bool is_printable(char32_t point) {
    switch (category(point)) {
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP: return false;
        case UTF8PROC_CATEGORY_ZS: return point == U' ';
        default: return true;
    }
}
bool is_upper(char32_t point) { return category(point) == UTF8PROC_CATEGORY_LU || within(kUpper, point); }
bool is_lower(char32_t point) { return category(point) == UTF8PROC_CATEGORY_LL || within(kLower, point); }
bool is_title(char32_t point) { return category(point) == UTF8PROC_CATEGORY_LT; }

bool begins_identifier(char32_t point) {
    const auto c = category(point);
    return point == U'_' || is_letter(c) || c == UTF8PROC_CATEGORY_NL;
}
bool continues_identifier(char32_t point) {
    const auto c = category(point);
    return begins_identifier(point) || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_MN ||
           c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_PC;
}

std::string upper(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) append_upper(out, next_point(text, at));
    return out;
}

std::string lower(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    if (is_ascii(text)) {
        for (const char c : text) out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        return out;
    }
    const std::u32string points = points_of(text);
    for (size_t at = 0; at < points.size(); ++at) append_lower(out, points, at);
    return out;
}

std::string capitalize(std::string_view text) {
    std::string out;
    const std::u32string points = points_of(text);
    for (size_t at = 0; at < points.size(); ++at) {
        if (at == 0) {
            append_title(out, points[0]);
        } else {
            append_lower(out, points, at);
        }
    }
    return out;
}

std::string title(std::string_view text) {
    std::string out;
    const std::u32string points = points_of(text);
    bool within_word = false;
    for (size_t at = 0; at < points.size(); ++at) {
        if (within_word) {
            append_lower(out, points, at);
        } else {
            append_title(out, points[at]);
        }
        within_word = is_cased(points[at]);
    }
    return out;
}

std::string swapcase(std::string_view text) {
    std::string out;
    const std::u32string points = points_of(text);
    for (size_t at = 0; at < points.size(); ++at) {
        if (is_upper(points[at])) {
            append_lower(out, points, at);
        } else if (is_lower(points[at])) {
            append_upper(out, points[at]);
        } else {
            append_point(out, points[at]);
        }
    }
    return out;
}

std::string_view strip(std::string_view text, const std::u32string* marks, const Strip& sides) {
    const auto stripped = [&](char32_t point) {
        return marks == nullptr ? is_space(point) : marks->find(point) != std::u32string::npos;
    };
    size_t begin = 0;
    while (sides.left && begin < text.size()) {
        size_t next = begin;
        if (!stripped(next_point(text, next))) break;
        begin = next;
    }
    size_t end = text.size();
    while (sides.right && end > begin) {
        size_t last = end - 1;
        while (last > begin && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
        size_t next = last;
        if (!stripped(next_point(text, next))) break;
        end = last;
    }
    return text.substr(begin, end - begin);
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
    std::vector<std::string_view> out;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t end = at;
        const char32_t point = next_point(text, at);
        if (!ends_line(point)) continue;
        if (point == U'\r' && at < text.size() && text[at] == '\n') ++at;
        out.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
        begin = at;
    }
    if (begin < text.size()) out.push_back(text.substr(begin));
    return out;
}

std::string quoted_text(std::string_view text) {
    const bool double_quotes =
        text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
    const char32_t quote = double_quotes ? U'"' : U'\'';
    std::string out;
    out.reserve(text.size() + 2);
    append_point(out, quote);
    for (size_t at = 0; at < text.size();) {
        const char32_t point = next_point(text, at);
        if (point == quote || point == U'\\') {
            out += '\\';
            append_point(out, point);
        } else if (point == U'\n') {
            out += "\\n";
        } else if (point == U'\t') {
            out += "\\t";
        } else if (point == U'\r') {
            out += "\\r";
        } else if (is_printable(point)) {
            append_point(out, point);
        } else {
            const auto code = static_cast<uint32_t>(point);
            out += code < 0x100     ? fmt::format("\\x{:02x}", code)
                   : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                    : fmt::format("\\U{:08x}", code);
        }
    }
    append_point(out, quote);
    return out;
}

}  // namespace refold::jinja
