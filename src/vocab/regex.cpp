#include "vocab/regex.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.h"
#include "vocab/regex_set.h"
#include "vocab/unicode.h"

namespace refold {
namespace {

constexpr size_t kUnlimited = std::numeric_limits<size_t>::max();
constexpr int kDeepest = 32;  // nested groups
// Of a pattern: real ones stay far below. A match may nest as deep as there are nodes.
constexpr size_t kLongestPattern = 4096, kMostNodes = 1024;

enum class Kind { accept, set, repeat, alternatives, look, line_start, line_end, text_start, text_end };
enum class Mode { greedy, lazy, possessive };

// A step of the matcher. `next` follows it; the branches of alternatives lead to their `next` themselves.
struct Node {
    Kind kind = Kind::accept;
    size_t next = 0;
    size_t set = 0;  // of set and repeat
    size_t least = 1, most = 1;
    Mode mode = Mode::greedy;
    bool negative = false;              // a lookahead for what must not follow
    std::vector<size_t> branches = {};  // of alternatives, and of a lookahead (one)
};

// A parsed pattern, before its parts are linked to what follows them.
struct Tree {
    Node node;
    std::vector<std::vector<Tree>> branches = {};
};

Tree alternatives_of(std::vector<std::vector<Tree>> branches) {
    Tree tree;
    tree.node.kind = Kind::alternatives;
    tree.branches = std::move(branches);
    return tree;
}

}  // namespace

struct Regex::Program {
    std::vector<RegexSet> sets;
    std::vector<Node> nodes;  // the first one accepts
    size_t start = 0;

    size_t link(const std::vector<Tree>& sequence, size_t next);
};

namespace {

class Parser {
public:
    Parser(const std::string& pattern, std::vector<RegexSet>& sets)
        : pattern_(pattern), text_(to_code_points(pattern)), sets_(sets) {
        if (text_.size() > kLongestPattern)
            fail(ErrorCode::unsupported, "tokenizer",
                 "a regular expression of {} characters is not known, only of {}", text_.size(),
                 kLongestPattern);
    }

    std::vector<std::vector<Tree>> all() {
        auto out = alternatives(false, 0);
        if (at_ < text_.size()) unknown("a group that was not opened");
        return out;
    }

private:
    [[noreturn]] void unknown(const char* what) const {
        fail(ErrorCode::unsupported, "tokenizer", "the regular expression '{}' is not known: {}", pattern_,
             what);
    }
    bool more() const { return at_ < text_.size(); }
    char32_t peek() const { return more() ? text_[at_] : 0; }
    bool take(std::u32string_view expected) {
        if (!std::u32string_view(text_).substr(at_).starts_with(expected)) return false;
        at_ += expected.size();
        return true;
    }

    std::vector<std::vector<Tree>> alternatives(bool ignore_case, int depth) {
        if (depth > kDeepest) unknown("groups are nested too deep");
        std::vector<std::vector<Tree>> out(1);
        while (more() && peek() != U')') {
            if (take(U"|")) {
                out.emplace_back();
            } else {
                out.back().push_back(quantified(ignore_case, depth));
            }
        }
        return out;
    }

    Tree quantified(bool ignore_case, int depth) {
        Tree item = atom(ignore_case, depth);
        size_t least = 1, most = 1;
        bool counted = false;
        if (take(U"?")) {
            least = 0;
        } else if (take(U"*")) {
            least = 0, most = kUnlimited;
        } else if (take(U"+")) {
            most = kUnlimited;
        } else if (take(U"{")) {
            counts(least, most);
            counted = true;
        } else {
            return item;
        }
        const Mode mode = counted      ? Mode::greedy
                          : take(U"?") ? Mode::lazy
                          : take(U"+") ? Mode::possessive
                                       : Mode::greedy;
        if (more() && (peek() == U'?' || peek() == U'*' || peek() == U'+' || peek() == U'{'))
            unknown("a repeated repetition");
        if (item.node.kind == Kind::set) {
            item.node.kind = Kind::repeat;
            item.node.least = least;
            item.node.most = most;
            item.node.mode = mode;
            return item;
        }
        if (item.node.kind != Kind::alternatives || least != 0 || most != 1 || mode == Mode::possessive)
            unknown("a repeated group");
        item.branches.insert(mode == Mode::lazy ? item.branches.begin() : item.branches.end(),
                             std::vector<Tree>{});
        return item;
    }

    void counts(size_t& least, size_t& most) {
        const auto number = [&](size_t fallback) {
            if (peek() < U'0' || peek() > U'9') return fallback;
            size_t value = 0;
            while (peek() >= U'0' && peek() <= U'9' && value < 100'000)
                value = value * 10 + (text_[at_++] - U'0');
            return value;
        };
        least = number(0);
        most = take(U",") ? number(kUnlimited) : least;
        if (!take(U"}") || most < least || most == 0) unknown("a count of repetitions");
    }

    Tree atom(bool ignore_case, int depth) {
        if (take(U"(?=")) return look(false, ignore_case, depth);
        if (take(U"(?!")) return look(true, ignore_case, depth);
        if (take(U"(?i:")) return group(true, depth);
        if (take(U"(?:")) return group(ignore_case, depth);
        if (take(U"(?")) unknown("a group of an unknown kind");
        if (take(U"(")) return group(ignore_case, depth);
        for (const auto& [text, kind] : {std::pair{U"^", Kind::line_start},
                                         {U"$", Kind::line_end},
                                         {U"\\A", Kind::text_start},
                                         {U"\\z", Kind::text_end}}) {
            if (take(text)) return {{.kind = kind}, {}};
        }
        RegexSet set;
        bool inverted = false;
        if (take(U"[")) {
            inverted = take(U"^");
            members(set);
        } else if (take(U".")) {
            set.add_range(U'\n', U'\n');
            inverted = true;
        } else if (peek() == U'*' || peek() == U'+' || peek() == U'?') {
            unknown("a repetition of nothing");
        } else {
            member(set, false);
        }
        set.finish(inverted, ignore_case);
        sets_.push_back(std::move(set));
        return {{.kind = Kind::set, .set = sets_.size() - 1}, {}};
    }

    Tree group(bool ignore_case, int depth) {
        Tree out = alternatives_of(alternatives(ignore_case, depth + 1));
        if (!take(U")")) unknown("a group that does not end");
        return out;
    }

    Tree look(bool negative, bool ignore_case, int depth) {
        Tree out = group(ignore_case, depth);
        out.node.kind = Kind::look;
        out.node.negative = negative;
        return out;
    }

    void members(RegexSet& set) {
        if (peek() == U']') unknown("an empty class");
        while (!take(U"]")) {
            if (!more()) unknown("a class that does not end");
            if (peek() == U'[' || take(U"&&")) unknown("a class within a class");
            member(set, true);
        }
    }

    // A character, a range of a class, or an escape that stands for a set.
    void member(RegexSet& set, bool in_class) {
        if (add_named(set)) return;
        const char32_t first = character();
        char32_t last = first;
        if (in_class && peek() == U'-' && at_ + 1 < text_.size() && text_[at_ + 1] != U']') {
            ++at_;
            if (peek() == U'[') unknown("a range of classes");
            last = character();
        }
        if (last < first) unknown("a range that is empty");
        set.add_range(first, last);
    }

    bool add_named(RegexSet& set) {
        for (const bool inverted : {false, true}) {
            if (take(inverted ? U"\\S" : U"\\s")) return set.add_space(inverted), true;
            if (take(inverted ? U"\\W" : U"\\w")) return set.add_word(inverted), true;
            if (take(inverted ? U"\\D" : U"\\d"))
                return set.add_categories(category_bits("Nd"), inverted), true;
            if (!take(inverted ? U"\\P{" : U"\\p{")) continue;
            const bool not_in = take(U"^") != inverted;
            std::string name;
            while (more() && peek() != U'}') append_utf8(name, text_[at_++]);
            const uint32_t bits = category_bits(name);
            if (!take(U"}") || bits == 0) unknown("a property other than a general category");
            return set.add_categories(bits, not_in), true;
        }
        return false;
    }

    char32_t character() {
        const char32_t c = text_[at_++];
        if (c != U'\\') return c;
        if (!more()) unknown("an escape of nothing");
        const char32_t name = text_[at_++];
        switch (name) {
            case U'n': return U'\n';
            case U'r': return U'\r';
            case U't': return U'\t';
            case U'f': return U'\f';
            case U'v': return U'\v';
            case U'x': return take(U"{") ? hex(1, 6, true) : hex(1, 2, false);
            case U'u': return hex(4, 4, false);
            default: break;
        }
        if (name < 0x80 && is_word_character(name)) unknown("an escape");
        return name;
    }

    char32_t hex(size_t least, size_t most, bool closed) {
        char32_t value = 0;
        size_t digits = 0;
        for (; digits < most; ++digits, ++at_) {
            const char32_t c = peek();
            const char32_t lower = c | 0x20;
            if (c >= U'0' && c <= U'9') {
                value = value * 16 + (c - U'0');
            } else if (lower >= U'a' && lower <= U'f') {
                value = value * 16 + (lower - U'a' + 10);
            } else {
                break;
            }
        }
        if (digits < least || (closed && !take(U"}")) || value > 0x10FFFF) unknown("a code point");
        return value;
    }

    const std::string& pattern_;
    const std::u32string text_;
    std::vector<RegexSet>& sets_;
    size_t at_ = 0;
};

}  // namespace

size_t Regex::Program::link(const std::vector<Tree>& sequence, size_t next) {
    for (auto tree = sequence.rbegin(); tree != sequence.rend(); ++tree) {
        Node node = tree->node;
        node.next = next;
        if (node.kind == Kind::look) {
            const Tree inner = alternatives_of(tree->branches);
            node.branches = {link({inner}, 0)};
        } else {
            for (const auto& branch : tree->branches) node.branches.push_back(link(branch, next));
        }
        nodes.push_back(std::move(node));
        next = nodes.size() - 1;
    }
    return next;
}

Regex::Search::Search(const Regex& regex, std::u32string_view text) : program_(regex.program_), text_(text) {}

// Real patterns take a few steps for each character, and never so many that failures are remembered.
void Regex::Search::spend(size_t steps) {
    constexpr size_t kFew = 10'000, kMany = 1'000'000;
    steps_ += steps;
    if (steps_ < kFew + 64 * text_.size()) return;
    if (failed_.empty()) failed_.resize(program_->nodes.size() * (text_.size() + 1));
    if (steps_ > kMany + 1000 * text_.size())
        fail(ErrorCode::unsupported, "tokenizer",
             "a regular expression of the tokenizer takes more than {} steps for a text of {} characters",
             steps_, text_.size());
}

bool Regex::Search::has_failed(size_t index, size_t at) const {
    return !failed_.empty() && failed_[index * (text_.size() + 1) + at];
}

bool Regex::Search::match_repeat(size_t index, size_t at, size_t& end) {
    const Node& node = program_->nodes[index];
    const RegexSet& set = program_->sets[node.set];
    const size_t room = std::min(text_.size() - at, node.most);
    const auto fits = [&](size_t count) { return count < room && set.contains(text_[at + count]); };
    const bool goes_on = node.mode != Mode::possessive && node.most == kUnlimited;
    // Failed one character before, where it had all ends that it has here.
    if (goes_on && at > 0 && has_failed(index, at - 1) && set.contains(text_[at - 1])) return false;
    size_t count = 0;
    // Failed one character later, so only the shortest repetition is new.
    const bool shortest = goes_on && fits(0) && has_failed(index, at + 1);
    if (node.mode == Mode::lazy || shortest) {
        for (; count < node.least; ++count)
            if (!fits(count)) return false;
        while (!match(node.next, at + count, end)) {
            if (shortest || !fits(count)) return false;
            spend(1);
            ++count;
        }
        return true;
    }
    while (fits(count)) ++count;
    spend(count);
    if (count < node.least) return false;
    const size_t least = node.mode == Mode::possessive ? count : node.least;
    for (;; --count) {
        if (match(node.next, at + count, end)) return true;
        if (count == least) return false;
    }
}

// A node with several ways to go on.
bool Regex::Search::match_node(size_t index, size_t at, size_t& end) {
    if (has_failed(index, at)) return false;
    const Node& node = program_->nodes[index];
    const bool matched = node.kind == Kind::repeat
                             ? match_repeat(index, at, end)
                             : std::any_of(node.branches.begin(), node.branches.end(),
                                           [&](size_t branch) { return match(branch, at, end); });
    if (!matched && !failed_.empty()) failed_[index * (text_.size() + 1) + at] = true;
    return matched;
}

bool Regex::Search::match(size_t index, size_t at, size_t& end) {
    for (;;) {
        spend(1);
        const Node& node = program_->nodes[index];
        switch (node.kind) {
            case Kind::accept: end = at; return true;
            case Kind::set:
                if (at >= text_.size() || !program_->sets[node.set].contains(text_[at])) return false;
                ++at;
                break;
            case Kind::repeat:
            case Kind::alternatives: return match_node(index, at, end);
            case Kind::look: {
                size_t ignored = 0;
                if (match(node.branches.front(), at, ignored) == node.negative) return false;
                break;
            }
            case Kind::line_start:
                if (at != 0 && text_[at - 1] != U'\n') return false;
                break;
            case Kind::line_end:
                if (at != text_.size() && text_[at] != U'\n') return false;
                break;
            case Kind::text_start:
                if (at != 0) return false;
                break;
            case Kind::text_end:
                if (at != text_.size()) return false;
                break;
        }
        index = node.next;
    }
}

std::optional<std::pair<size_t, size_t>> Regex::Search::find(size_t from) {
    for (size_t at = from; at < text_.size(); ++at) {
        size_t end = at;
        if (match(program_->start, at, end) && end > at) return std::pair{at, end};
    }
    return std::nullopt;
}

Regex::Regex(const std::string& pattern) {
    const auto program = std::make_shared<Program>();
    program->nodes.emplace_back();
    const Tree whole = alternatives_of(Parser(pattern, program->sets).all());
    program->start = program->link({whole}, 0);
    if (program->nodes.size() > kMostNodes)
        fail(ErrorCode::unsupported, "tokenizer", "a regular expression of {} parts is not known, only of {}",
             program->nodes.size(), kMostNodes);
    program_ = program;
}

}  // namespace refold
