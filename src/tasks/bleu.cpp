#include "tasks/bleu.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tasks/python_text.h"

namespace refold {
namespace {

constexpr size_t kOrders = 4;

using NGrams = std::map<std::vector<std::string>, int>;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
// ASCII punctuation without apostrophes, hyphens, full stops and commas.
bool stands_alone(char c) {
    return std::string_view("{|}~[\\]^_` !\"#$%&()*+:;<=>?@/").find(c) != std::string_view::npos;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
}

// Replaces pairs of bytes like a regular expression: where `matches`, writes `separated` and skips both
// bytes.
template <typename Matches, typename Separated>
std::string rewrite_pairs(const std::string& text, Matches matches, Separated separated) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (i + 1 < text.size() && matches(text[i], text[i + 1])) {
            out += separated(text[i], text[i + 1]);
            ++i;
        } else {
            out += text[i];
        }
    }
    return out;
}

NGrams ngrams_of(const std::vector<std::string>& words) {
    NGrams counts;
    for (size_t order = 1; order <= kOrders; ++order)
        for (size_t i = 0; i + order <= words.size(); ++i)
            ++counts[{words.begin() + static_cast<ptrdiff_t>(i),
                      words.begin() + static_cast<ptrdiff_t>(i + order)}];
    return counts;
}

}  // namespace

std::vector<std::string> tokenize_13a(std::string_view given) {
    std::string text(rstrip(given));
    replace_all(text, "<skipped>", "");
    replace_all(text, "-\n", "");
    replace_all(text, "\n", " ");
    replace_all(text, "&quot;", "\"");
    replace_all(text, "&amp;", "&");
    replace_all(text, "&lt;", "<");
    replace_all(text, "&gt;", ">");
    std::string spaced = " ";
    for (const char c : text) {
        if (stands_alone(c)) {
            spaced += {' ', c, ' '};
        } else {
            spaced += c;
        }
    }
    spaced += ' ';
    const auto is_mark = [](char c) { return c == '.' || c == ','; };
    // A full stop or comma stays only between digits.
    spaced = rewrite_pairs(
        spaced, [&](char a, char b) { return !is_digit(a) && is_mark(b); },
        [](char a, char b) {
            return std::string{a, ' ', b, ' '};
        });
    spaced = rewrite_pairs(
        spaced, [&](char a, char b) { return is_mark(a) && !is_digit(b); },
        [](char a, char b) {
            return std::string{' ', a, ' ', b};
        });
    spaced = rewrite_pairs(
        spaced, [&](char a, char b) { return is_digit(a) && b == '-'; },
        [](char a, char b) {
            return std::string{a, ' ', b, ' '};
        });
    const auto words = split_words(spaced);
    return {words.begin(), words.end()};
}

BleuCounts bleu_counts(std::string_view translation, std::span<const std::string> references) {
    const auto words = tokenize_13a(translation);
    NGrams allowed;
    size_t closest = 0;
    bool first = true;
    for (const std::string& reference : references) {
        const auto expected = tokenize_13a(reference);
        for (const auto& [ngram, count] : ngrams_of(expected))
            allowed[ngram] = std::max(allowed[ngram], count);
        const auto distance = [&](size_t length) {
            return std::abs(static_cast<double>(length) - static_cast<double>(words.size()));
        };
        const size_t length = expected.size();
        if (first || distance(length) < distance(closest) ||
            (distance(length) == distance(closest) && length < closest))
            closest = length;
        first = false;
    }
    BleuCounts counts{};
    counts[0] = static_cast<double>(words.size());
    counts[1] = static_cast<double>(closest);
    for (const auto& [ngram, count] : ngrams_of(words)) {
        const auto found = allowed.find(ngram);
        counts[1 + ngram.size()] += found == allowed.end() ? 0 : std::min(count, found->second);
        counts[1 + kOrders + ngram.size()] += count;
    }
    return counts;
}

double bleu(std::span<const double> counts) {
    const double length = counts[0], expected = counts[1];
    const auto matches = counts.subspan(2, kOrders), totals = counts.subspan(2 + kOrders, kOrders);
    if (std::all_of(matches.begin(), matches.end(), [](double m) { return m == 0; })) return 0;
    double sum = 0, smoothing = 1;
    for (size_t n = 0; n < kOrders; ++n) {
        if (totals[n] == 0) return 0;  // too short for this order
        double matched = matches[n];
        if (matched == 0) {
            smoothing *= 2;
            matched = 1 / smoothing;
        }
        sum += std::log(100 * matched / totals[n]);
    }
    const double penalty = length < expected ? std::exp(1 - expected / length) : 1;
    return penalty * std::exp(sum / static_cast<double>(kOrders));
}

}  // namespace refold
