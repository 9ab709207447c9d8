#include "grammar/gbnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>

#include "core/error.h"
#include "core/text.h"
#include "grammar/grammar.h"

namespace refold {
namespace {

constexpr uint32_t kLastCharacter = 0x10FFFF;
// llama.cpp's texts have no NUL.
constexpr const char* kAnyCharacter = "[\\U00000001-\\U0010FFFF]";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// llama.cpp's names have no "_", XGrammar's do.
bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || is_digit(c);
}

// The text is no GBNF.
struct NoGbnf {};

std::string escaped(uint32_t character) {
    const char c = character < 0x80 ? static_cast<char>(character) : '\0';
    return c != '-' && is_name(c) ? std::string(1, c) : fmt::format("\\U{:08X}", character);
}

// Names of rules must not be those of XGrammar's functions.
std::string rule_name(const std::string& name) { return name == "root" ? name : "x-" + name; }

class GbnfReader {
public:
    explicit GbnfReader(std::string_view text) : text_(text) {}

    std::string read() {
        skip_space(true);
        while (at_ < text_.size()) read_rule();
        for (const std::string& name : named_)
            if (!rules_.contains(name)) throw NoGbnf();
        std::string out;
        for (const auto& [name, body] : rules_) out += rule_name(name) + " ::= " + body + "\n";
        return out;
    }

private:
    char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

    bool take(std::string_view word) {
        if (!text_.substr(at_).starts_with(word)) return false;
        at_ += word.size();
        return true;
    }
    void expect(std::string_view word) {
        if (!take(word)) throw NoGbnf();
    }

    void skip_space(bool lines) {
        for (;; ++at_) {
            if (peek() == '#')
                while (peek() != '\0' && peek() != '\r' && peek() != '\n') ++at_;
            const char c = peek();
            if (c != ' ' && c != '\t' && !(lines && (c == '\r' || c == '\n'))) return;
        }
    }

    std::string read_name() {
        const size_t begin = at_;
        while (is_name(peek())) ++at_;
        if (at_ == begin) throw NoGbnf();
        return std::string(text_.substr(begin, at_ - begin));
    }

    int32_t read_number() {
        int64_t out = -1;
        for (; is_digit(peek()); ++at_) {
            out = std::max<int64_t>(out, 0) * 10 + (peek() - '0');
            if (out > std::numeric_limits<int32_t>::max()) throw NoGbnf();
        }
        if (out < 0) throw NoGbnf();
        return static_cast<int32_t>(out);
    }

    uint32_t read_hex(size_t digits) {
        uint32_t out = 0;
        for (; digits > 0; --digits, ++at_) {
            const char c = peek();
            const bool small = c >= 'a' && c <= 'f', large = c >= 'A' && c <= 'F';
            if (!small && !large && !is_digit(c)) throw NoGbnf();
            out = out * 16 + static_cast<uint32_t>(small ? c - 'a' + 10 : large ? c - 'A' + 10 : c - '0');
        }
        if (out > kLastCharacter) throw NoGbnf();
        return out;
    }

    uint32_t read_character() {
        if (at_ >= text_.size()) throw NoGbnf();
        if (take("\\")) {
            const char c = peek();
            ++at_;
            switch (c) {
                case 'x': return read_hex(2);
                case 'u': return read_hex(4);
                case 'U': return read_hex(8);
                case 't': return '\t';
                case 'r': return '\r';
                case 'n': return '\n';
                case '\\':
                case '"':
                case '[':
                case ']':
                case '-': return static_cast<unsigned char>(c);
                default: throw NoGbnf();
            }
        }
        const auto lead = static_cast<unsigned char>(peek());
        const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        uint32_t out = length == 1 ? lead : lead & (0x7Fu >> length);
        for (size_t i = 1; i < length; ++i) out = out << 6 | (static_cast<unsigned char>(peek(i)) & 0x3Fu);
        at_ += length;
        return out;
    }

    void read_rule() {
        const std::string name = read_name();
        skip_space(false);
        expect("::=");
        skip_space(true);
        rules_[name] = read_alternatives(0);  // of several definitions the last one counts
        if (!take("\r\n") && !take("\r") && !take("\n") && at_ < text_.size()) throw NoGbnf();
        skip_space(true);
    }

    std::string read_alternatives(int depth) {
        constexpr int kMostBrackets = 64;
        if (depth > kMostBrackets) fail(ErrorCode::usage, "grammar", "it is nested too deep");
        std::string out = read_sequence(depth);
        while (take("|")) {
            skip_space(true);
            out += " | " + read_sequence(depth);
        }
        return out;
    }

    // Empty items are nothing that can be repeated.
    std::string read_sequence(int depth) {
        std::string out, item;
        const auto keep = [&] {
            if (!item.empty()) out += (out.empty() ? "" : " ") + item;
            item.clear();
        };
        for (;;) {
            const char c = peek();
            if (c == '*' || c == '+' || c == '?' || c == '{') {
                if (item.empty()) throw NoGbnf();
                item = repeated(item, depth > 0);
            } else if (c == '"' || c == '[' || c == '<' || c == '!' || c == '(' || c == '.' || is_name(c)) {
                keep();
                item = read_item(c, depth);
                skip_space(depth > 0);
            } else {
                keep();
                return out.empty() ? "\"\"" : out;
            }
        }
    }

    std::string read_item(char c, int depth) {
        if (take("\"")) return read_string();
        if (take("[")) return read_class();
        if (c == '<' || c == '!')
            fail(ErrorCode::usage, "grammar",
                 "tokens (<[7]>, <think>) are not supported - write their text as a string");
        if (take(".")) return kAnyCharacter;
        if (take("(")) {
            skip_space(true);
            const std::string inner = read_alternatives(depth + 1);
            expect(")");
            return "(" + inner + ")";
        }
        const std::string name = read_name();
        named_.insert(name);
        return rule_name(name);
    }

    std::string read_string() {
        std::string out;
        while (!take("\"")) out += escaped(read_character());
        return out.empty() ? out : "\"" + out + "\"";
    }

    std::string read_class() {
        const bool negated = take("^");
        std::string out;
        while (!take("]")) {
            const uint32_t first = read_character();
            out += escaped(first);
            if (peek() != '-' || peek(1) == ']') continue;
            ++at_;
            const uint32_t last = read_character();
            if (last < first) throw NoGbnf();
            out += "-" + escaped(last);
        }
        if (out.empty()) return out;
        return (negated ? "[^\\U00000000" : "[") + out + "]";
    }

    std::string repeated(const std::string& item, bool lines) {
        // A repetition of one is in brackets.
        const char last = item.back();
        const bool again = last == '*' || last == '+' || last == '?' || last == '}';
        std::string out = again ? "(" + item + ")" : item;
        const char c = peek();
        ++at_;
        skip_space(lines);
        if (c != '{') return out + c;
        const int32_t least = read_number();
        skip_space(lines);
        std::string most = fmt::format("{}", least);
        if (take(",")) {
            skip_space(lines);
            most.clear();
            if (is_digit(peek())) {
                const int32_t number = read_number();
                if (number < least) throw NoGbnf();
                most = fmt::format("{}", number);
            }
            skip_space(lines);
        }
        expect("}");
        skip_space(lines);
        if (most == "0") return "";
        return fmt::format("{}{{{},{}}}", out, least, most);
    }

    const std::string_view text_;
    size_t at_ = 0;
    std::map<std::string, std::string> rules_;
    std::set<std::string> named_{"root"};
};

}  // namespace

std::string read_gbnf(std::string_view grammar) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (grammar.starts_with(kByteOrderMark)) grammar.remove_prefix(kByteOrderMark.size());
    // Both would take other bytes for characters.
    if (find_invalid_utf8(grammar) != std::string_view::npos)
        fail(ErrorCode::usage, "grammar", "it is not valid UTF-8");
    try {
        return GbnfReader(grammar).read();
    } catch (const NoGbnf&) {
        check_nesting(std::string(grammar), "grammar");
        return std::string(grammar);
    }
}

}  // namespace refold
