#include "text/jinja/lexer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <string_view>

#include "text/jinja/numbers.h"
#include "text/jinja/unicode.h"

namespace refold::jinja {
namespace {

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

// \r\n and \r become \n, here and in texts and data.
std::string normalized(const std::string& source, bool keep_last_newline) {
    std::string out;
    out.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
        const bool carriage = source[i] == '\r';
        if (carriage && i + 1 < source.size() && source[i + 1] == '\n') continue;
        out += carriage ? '\n' : source[i];
    }
    if (!keep_last_newline && out.ends_with('\n')) out.pop_back();
    return out;
}

class Lexer {
public:
    Lexer(const std::string& source, const LexerOptions& options)
        : source_(normalized(source, options.keep_last_newline)), options_(options) {}

    std::vector<Token> run() {
        while (at_ < source_.size()) data();
        add(TokenType::end);
        return std::move(tokens_);
    }

private:
    [[noreturn]] void fail(const std::string& problem) const {
        throw TemplateError(fmt::format("line {}: {}", line_, problem));
    }
    bool looking_at(std::string_view text) const { return source_.compare(at_, text.size(), text) == 0; }
    void advance(size_t to) {
        line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                             source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
        line_starts_ = to > 0 && source_[to - 1] == '\n';
        at_ = to;
    }
    Token& add(TokenType type, std::string text = "") {
        tokens_.push_back({.type = type, .text = std::move(text), .line = line_});
        return tokens_.back();
    }
    size_t after_space(size_t at) const {
        while (at < source_.size()) {
            size_t next = at;
            if (!is_space(next_point(source_, next))) break;
            at = next;
        }
        return at;
    }

    // Text up to the next mark, and what the mark begins.
    void data() {
        size_t mark = at_;
        for (;; ++mark) {
            mark = source_.find('{', mark);
            if (mark == std::string::npos || mark + 1 >= source_.size()) {
                add(TokenType::data, source_.substr(at_));
                return advance(source_.size());
            }
            const char second = source_[mark + 1];
            if (second == '{' || second == '%' || second == '#') break;
        }
        const char kind = source_[mark + 1];
        const char sign = mark + 2 < source_.size() ? source_[mark + 2] : ' ';
        add_data(source_.substr(at_, mark - at_), sign, kind != '{');
        advance(mark);
        const size_t inside = mark + (sign == '-' || sign == '+' ? 3 : 2);
        if (kind == '#') return comment(inside);
        if (kind == '{') return expression(inside);
        const size_t word = after_space(inside);
        if (kind == '%' && source_.compare(word, 3, "raw") == 0) {
            const size_t end = after_space(word + 3);
            const bool trims = source_.compare(end, 3, "-%}") == 0;
            if (trims || source_.compare(end, 2, "%}") == 0)
                return raw(trims ? after_space(end + 3) : end + 2);
        }
        statement(inside);
    }

    // `sign` follows the mark behind the text; `lstrips`: the mark is no expression.
    void add_data(std::string text, char sign, bool lstrips) {
        if (sign == '-') {
            text = strip(text, nullptr, {.left = false});
        } else if (sign != '+' && options_.lstrip_blocks && lstrips) {
            const size_t line = text.rfind('\n') + 1;  // 0 without one
            if ((line > 0 || line_starts_) && strip(std::string_view(text).substr(line), nullptr, {}).empty())
                text.resize(line);
        }
        if (!text.empty()) add(TokenType::data, std::move(text));
    }

    // Behind the mark at `at` that ends a statement or comment, which may have a sign before it; npos: it
    // does not stand there.
    size_t after_end(size_t at, std::string_view mark) const {
        const char sign = at < source_.size() ? source_[at] : ' ';
        if (sign == '-' || sign == '+') ++at;
        if (source_.compare(at, mark.size(), mark) != 0) return std::string::npos;
        at += mark.size();
        if (sign == '-') return after_space(at);
        if (sign != '+' && options_.trim_blocks && at < source_.size() && source_[at] == '\n') ++at;
        return at;
    }

    void comment(size_t at) {
        for (; at < source_.size(); ++at) {
            if (source_[at] != '#' && source_[at] != '-' && source_[at] != '+') continue;
            const size_t end = after_end(at, "#}");
            if (end != std::string::npos) return advance(end);
        }
        fail("a comment has no end '#}'");
    }

    void raw(size_t from) {
        advance(from);
        for (size_t at = from; (at = source_.find("{%", at)) != std::string::npos; ++at) {
            const char sign = at + 2 < source_.size() ? source_[at + 2] : ' ';
            const size_t word = after_space(at + (sign == '-' || sign == '+' ? 3 : 2));
            if (source_.compare(word, 6, "endraw") != 0) continue;
            const size_t end = after_end(after_space(word + 6), "%}");
            if (end == std::string::npos) continue;
            add_data(source_.substr(from, at - from), sign, true);
            return advance(end);
        }
        fail("a raw block has no end '{% endraw %}'");
    }

    void statement(size_t at) {
        add(TokenType::statement_begin);
        advance(at);
        tokens_until([&] { return after_end(at_, "%}"); });
        add(TokenType::statement_end);
        advance(after_end(at_, "%}"));
    }

    void expression(size_t at) {
        const auto end = [&] {
            if (looking_at("-}}")) return after_space(at_ + 3);
            return looking_at("}}") ? at_ + 2 : std::string::npos;
        };
        add(TokenType::expression_begin);
        advance(at);
        tokens_until(end);
        add(TokenType::expression_end);
        advance(end());
    }

    template <typename End>
    void tokens_until(const End& end) {
        std::string open;
        for (;;) {
            advance(after_space(at_));
            if (open.empty() && end() != std::string::npos) return;
            if (at_ >= source_.size()) fail("the template ends within a mark");
            const char c = source_[at_];
            if (number() || name() || text()) continue;
            mark();
            if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
            if (c == ')' || c == ']' || c == '}') {
                if (open.empty() || open.back() != c) fail(fmt::format("unexpected '{}'", c));
                open.pop_back();
            }
        }
    }

    // Digits, with "_" between them.
    size_t after_digits(size_t at) const {
        const size_t begin = at;
        while (at < source_.size() &&
               (is_ascii_digit(source_[at]) || (source_[at] == '_' && at > begin && at + 1 < source_.size() &&
                                                source_[at - 1] != '_' && is_ascii_digit(source_[at + 1]))))
            ++at;
        return at;
    }

    bool number() {
        if (!is_ascii_digit(source_[at_])) return false;
        size_t end = after_digits(at_);
        bool is_float = false;
        if (at_ == 0 || source_[at_ - 1] != '.') {
            const auto digit_at = [&](size_t at) {
                return at < source_.size() && is_ascii_digit(source_[at]);
            };
            if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
                end = after_digits(end + 1);
                is_float = true;
            }
            if (end < source_.size() && (source_[end] | 0x20) == 'e') {
                const size_t sign =
                    end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
                if (digit_at(end + 1 + sign)) {
                    end = after_digits(end + 1 + sign);
                    is_float = true;
                }
            }
        }
        Token token{.type = TokenType::number, .text = {}, .number = {}, .line = line_};
        if (is_float) {
            token.number = *parse_float(source_.substr(at_, end - at_));
        } else {
            end = after_integer();
            const auto value = parse_int(source_.substr(at_, end - at_), 0);
            if (!value) fail("an integer is not valid");
            token.number = *value;
        }
        tokens_.push_back(std::move(token));
        advance(end);
        return true;
    }

    size_t after_integer() const {
        const char first = source_[at_];
        const char second = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : ' ';
        if (first == '0' && (second == 'x' || second == 'o' || second == 'b')) {
            const std::string_view digits = second == 'x'   ? "0123456789abcdefABCDEF"
                                            : second == 'o' ? "01234567"
                                                            : "01";
            size_t at = at_ + 2;
            const auto digit_at = [&](size_t i) {
                return i < source_.size() && digits.find(source_[i]) != std::string_view::npos;
            };
            while (digit_at(at) || (at < source_.size() && source_[at] == '_' && digit_at(at + 1))) ++at;
            if (at > at_ + 2) return at;
        }
        if (first != '0') return after_digits(at_);
        size_t at = at_ + 1;
        while (at < source_.size() && (source_[at] == '0' || (source_[at] == '_' && at + 1 < source_.size() &&
                                                              source_[at + 1] == '0')))
            ++at;
        return at;
    }

    bool name() {
        size_t at = at_;
        if (!begins_identifier(next_point(source_, at))) return false;
        for (size_t next = at; at < source_.size(); at = next)
            if (!continues_identifier(next_point(source_, next))) break;
        add(TokenType::name, source_.substr(at_, at - at_));
        advance(at);
        return true;
    }

    bool text() {
        const char quote = source_[at_];
        if (quote != '\'' && quote != '"') return false;
        std::string out;
        size_t at = at_ + 1;
        while (at < source_.size() && source_[at] != quote) {
            if (source_[at] == '\\') {
                at = escape(at + 1, out);
            } else {
                out += source_[at++];
            }
        }
        if (at >= source_.size()) fail("a text has no end");
        add(TokenType::text, std::move(out));
        advance(at + 1);
        return true;
    }

    // The escape whose character is at `at`, as in Python's texts; returns where it ends.
    size_t escape(size_t at, std::string& out) const {
        if (at >= source_.size()) fail("a text has no end");
        const char c = source_[at];
        constexpr std::string_view kNames = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
        if (c == '\n') return at + 1;
        if (const size_t known = kNames.find(c); known != std::string_view::npos) {
            out += kValues[known];
            return at + 1;
        }
        if (c >= '0' && c <= '7') return number_escape(at, 3, 8, out);
        if (c == 'x') return number_escape(at + 1, 2, 16, out);
        if (c == 'u') return number_escape(at + 1, 4, 16, out);
        if (c == 'U') return number_escape(at + 1, 8, 16, out);
        if (c == 'N') fail("the escape \\N of a text is not supported");
        if (static_cast<unsigned char>(c) >= 0x80) fail("a text has an escape of a character beyond ASCII");
        out += '\\';
        return at;
    }

    size_t number_escape(size_t at, size_t digits, int base, std::string& out) const {
        char32_t point = 0;
        size_t read = 0;
        for (; read < digits && at + read < source_.size(); ++read) {
            const char c = source_[at + read];
            const int digit = is_ascii_digit(c)                        ? c - '0'
                              : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                                       : 99;
            if (digit >= base) break;
            point = point * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
        }
        if (base == 16 && read < digits) fail("an escape of a text has too few digits");
        if (!utf8proc_codepoint_valid(static_cast<utf8proc_int32_t>(point)))
            fail("an escape of a text is no character");
        append_point(out, point);
        return at + read;
    }

    void mark() {
        constexpr std::string_view kMarks[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "*",
                                               "/",  "%",  "~",  "(",  ")",  "[",  "]", "{", "}",
                                               "=",  ">",  "<",  "|",  ",",  ".",  ":", ";"};
        for (const std::string_view known : kMarks) {
            if (!looking_at(known)) continue;
            add(TokenType::mark, std::string(known));
            return advance(at_ + known.size());
        }
        size_t next = at_;
        next_point(source_, next);
        fail(fmt::format("unexpected character '{}'", source_.substr(at_, next - at_)));
    }

    const std::string source_;
    const LexerOptions& options_;
    std::vector<Token> tokens_;
    size_t at_ = 0;
    int line_ = 1;
    bool line_starts_ = true;
};

}  // namespace

std::vector<Token> tokenize(const std::string& source, const LexerOptions& options) {
    return Lexer(source, options).run();
}

}  // namespace refold::jinja
