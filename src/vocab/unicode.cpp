#include "vocab/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "vocab/bert_unicode.h"

namespace refold {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

struct Decoded {
    char32_t code_point;
    size_t size;  // bytes consumed
};

// Decodes the sequence at text[at]. An invalid sequence consumes its longest valid prefix.
Decoded decode_one(std::string_view text, size_t at) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char first = byte(at);
    if (first < 0x80) return {first, 1};
    if (first < 0xC2 || first > 0xF4) return {kReplacement, 1};
    const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    // Tighter bounds on the second byte exclude overlong forms, surrogates and code points above U+10FFFF.
    unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    char32_t code_point = first & (0xFF >> (length + 1));
    for (size_t i = 1; i < length; ++i) {
        if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high) return {kReplacement, i};
        code_point = (code_point << 6) | (byte(at + i) & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    return {code_point, length};
}

template <typename Visit>
void for_each_code_point(std::string_view text, Visit&& visit) {
    for (size_t at = 0; at < text.size();) {
        const Decoded one = decode_one(text, at);
        visit(one.code_point);
        at += one.size;
    }
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

}  // namespace

std::u32string to_code_points(std::string_view utf8) {
    std::u32string out;
    out.reserve(utf8.size());
    for_each_code_point(utf8, [&](char32_t c) { out += c; });
    return out;
}

size_t code_point_size(std::string_view utf8, size_t at) {
    size_t end = at + 1;
    while (end < utf8.size() && (utf8[end] & 0xC0) == 0x80) ++end;
    return end - at;
}

void append_utf8(std::string& text, char32_t c) {
    const auto add = [&](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
    if (c < 0x80) {
        add(c);
    } else if (c < 0x800) {
        add(0xC0 | (c >> 6));
        add(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        add(0xE0 | (c >> 12));
        add(0x80 | ((c >> 6) & 0x3F));
        add(0x80 | (c & 0x3F));
    } else {
        add(0xF0 | (c >> 18));
        add(0x80 | ((c >> 12) & 0x3F));
        add(0x80 | ((c >> 6) & 0x3F));
        add(0x80 | (c & 0x3F));
    }
}

std::string replace_invalid_utf8(std::string_view bytes) {
    std::string out;
    out.reserve(bytes.size());
    for_each_code_point(bytes, [&](char32_t c) { append_utf8(out, c); });
    return out;
}

std::string normalize(std::string_view utf8, NormalForm form) {
    const std::string valid = replace_invalid_utf8(utf8);
    int options = UTF8PROC_STABLE;
    options |= form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
    utf8proc_uint8_t* result = nullptr;
    const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()),
                                               static_cast<utf8proc_ssize_t>(valid.size()), &result,
                                               static_cast<utf8proc_option_t>(options));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
    if (size < 0) throw std::bad_alloc();  // the only possible error, as the input is valid
    return {reinterpret_cast<const char*>(result), static_cast<size_t>(size)};
}

std::string lower_case(std::string_view utf8) {
    std::string out;
    out.reserve(utf8.size());
    for_each_code_point(utf8, [&](char32_t c) {
        append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
        if (c == 0x130) append_utf8(out, 0x307);  // the only character whose full form is longer
    });
    return out;
}

char32_t simple_lower(char32_t c) {
    return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}
char32_t simple_upper(char32_t c) {
    return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}
char32_t simple_fold(char32_t c) { return simple_lower(simple_upper(c)); }

uint32_t category_bit(char32_t c) { return uint32_t{1} << category(c); }

uint32_t category_bits(std::string_view property) {
    uint32_t bits = 0;
    for (int kind = UTF8PROC_CATEGORY_CN; kind <= UTF8PROC_CATEGORY_CO; ++kind) {
        // A character of every category; utf8proc names categories of characters only.
        static constexpr char32_t samples[] = {0x378,  'A',    'a',    0x1C5, 0x2B0,  0x5D0, 0x300, 0x903,
                                               0x488,  '0',    0x2160, 0xB2,  '_',    '-',   '(',   ')',
                                               0xAB,   0xBB,   '!',    '+',   '$',    '^',   0xA6,  ' ',
                                               0x2028, 0x2029, 0x1,    0xAD,  0xD800, 0xE000};
        const std::string_view name = utf8proc_category_string(static_cast<utf8proc_int32_t>(samples[kind]));
        if (!property.empty() && property.size() <= 2 && name.starts_with(property))
            bits |= uint32_t{1} << kind;
    }
    return bits;
}

bool is_numeric(char32_t c) {
    const utf8proc_category_t kind = category(c);
    return kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
}

size_t grapheme_end(std::u32string_view text, size_t at) {
    utf8proc_int32_t state = 0;
    size_t end = at + 1;
    while (end < text.size() &&
           !utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(text[end - 1]),
                                             static_cast<utf8proc_int32_t>(text[end]), &state)) {
        ++end;
    }
    return end;
}

bool is_mark(char32_t c) {
    const utf8proc_category_t kind = category(c);
    return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC || kind == UTF8PROC_CATEGORY_ME;
}

bool is_bert_accent(char32_t c) {
    return (category(c) == UTF8PROC_CATEGORY_MN) != differs_in_nonspacing_mark(c);
}

bool is_white_space(char32_t c) {
    return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
           c == 0x3000;
}

bool is_bert_control(char32_t c) {
    if (c == '\t' || c == '\n' || c == '\r') return false;
    const utf8proc_category_t kind = category(c);
    const bool control =
        kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_CO;
    return control != differs_in_control(c);
}

bool is_bert_punctuation(char32_t c) {
    if (c < 0x80) {
        return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7F);
    }
    const utf8proc_category_t kind = category(c);
    const bool punctuation = kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
    return punctuation != differs_in_punctuation(c);
}

bool is_cjk_ideograph(char32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) ||
           (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

bool is_word_character(char32_t c) {
    switch (category(c)) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_PC: return true;
        // The joiners, and circled and squared letters, which are alphabetic.
        default:
            return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
                   (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
                   (c >= 0x1F170 && c <= 0x1F189);
    }
}

}  // namespace refold
