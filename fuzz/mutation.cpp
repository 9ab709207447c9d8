#include "mutation.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace refold {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kNumbers[] = {"0",
                                         "1",
                                         "2",
                                         "3",
                                         "64",
                                         "-1",
                                         "0.5",
                                         "1e400",
                                         "-1e-300",
                                         "1073741824",
                                         "4294967296",
                                         "9223372036854775807",
                                         "18446744073709551615",
                                         "18446744073709551616",
                                         "null",
                                         "true",
                                         "[]",
                                         "{}",
                                         "\"x\""};

class Mutation {
public:
    Mutation(std::string& bytes, std::string_view other, std::span<const std::string_view> words,
             std::mt19937_64& random)
        : bytes_(bytes), other_(other), words_(words), random_(random) {}

    // Keeps the form of JSON and the like.
    void change_value() {
        const size_t at = below(bytes_.size() + 1);
        switch (below(4)) {
            case 0: replace_number(at, std::string(kNumbers[below(std::size(kNumbers))])); break;
            case 1: replace_number(at, number(below(bytes_.size() + 1)).text); break;
            case 2: replace_quoted(at, std::string(word())); break;
            default: replace_quoted(at, quoted(below(bytes_.size() + 1)).text);
        }
    }

    void change() {
        const size_t at = below(bytes_.size() + 1);
        switch (below(10)) {
            case 0: bytes_.insert(at, word()); break;
            case 1: write_over(at, word()); break;
            case 2: bytes_.erase(at, 1 + below(12)); break;
            case 3: bytes_.insert(at, piece_of(bytes_, 60)); break;
            case 4: bytes_.replace(at, below(20), piece_of(other_, 60)); break;
            case 5: write_over(at, piece_of(other_, 256)); break;
            case 6: write_extreme(at); break;
            case 7: bytes_.resize(bytes_.size() - below(std::min<size_t>(bytes_.size() + 1, 64))); break;
            case 8: change_value(); break;
            default:
                if (at < bytes_.size()) bytes_[at] = static_cast<char>(bytes_[at] ^ (1 << below(8)));
        }
    }

private:
    struct Piece {
        size_t begin = 0;
        std::string text;
    };

    size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(random_() % n); }
    std::string_view word() { return words_[below(words_.size())]; }
    std::string piece_of(std::string_view text, size_t most) {
        return std::string(text.substr(below(text.size() + 1), below(most)));
    }
    void write_over(size_t at, std::string_view piece) {
        bytes_.replace(at, std::min(piece.size(), bytes_.size() - at), piece);
    }

    // Numbers at which checks are prone to off-by-one errors and overflow.
    void write_extreme(size_t at) {
        const size_t width = std::min<size_t>(size_t{1} << below(4), bytes_.size() - at);
        uint64_t old = 0;
        memcpy(&old, bytes_.data() + at, width);
        const uint64_t numbers[] = {0,
                                    1,
                                    ~uint64_t{0} - below(64),
                                    uint64_t{1} << below(64),
                                    (uint64_t{1} << below(64)) - 1,
                                    (uint64_t{1} << 63) + below(64) - 32,
                                    bytes_.size() - below(64),
                                    bytes_.size() + below(64),
                                    old + 1,
                                    old - 1,
                                    old * 2,
                                    uint64_t{0} - old,
                                    below(64),
                                    random_()};
        memcpy(bytes_.data() + at, &numbers[below(std::size(numbers))], width);
    }

    // The first number at `at` or later; empty at the end of the input if there is none.
    Piece number(size_t at) const {
        const size_t from = std::min(bytes_.find_first_of(kDigits, at), bytes_.size());
        const size_t to = std::min(bytes_.find_first_not_of(kDigits, from), bytes_.size());
        return {from, bytes_.substr(from, to - from)};
    }
    void replace_number(size_t at, const std::string& by) {
        const Piece old = number(at);
        if (!old.text.empty()) bytes_.replace(old.begin, old.text.size(), by);
    }

    // The first text in quotes that begins at `at` or later; empty at the end of the input if there is none.
    Piece quoted(size_t at) const {
        const bool inside =
            std::count(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(at), '"') % 2 != 0;
        if (inside) at = std::min(bytes_.find('"', at), bytes_.size() - 1) + 1;
        const size_t open = bytes_.find('"', at);
        if (open == std::string::npos) return {bytes_.size(), ""};
        const size_t close = std::min(bytes_.find('"', open + 1), bytes_.size());
        return {open + 1, bytes_.substr(open + 1, close - open - 1)};
    }
    void replace_quoted(size_t at, const std::string& by) {
        const Piece old = quoted(at);
        bytes_.replace(old.begin, old.text.size(), by);
    }

    std::string& bytes_;
    const std::string_view other_;
    const std::span<const std::string_view> words_;
    std::mt19937_64& random_;
};

}  // namespace

std::string mutated(std::string input, std::string_view other, std::span<const std::string_view> words,
                    std::mt19937_64& random) {
    const auto below = [&](uint64_t n) { return static_cast<size_t>(random() % n); };
    const bool values_only = below(2) == 0 && input.find('"') != std::string::npos;
    Mutation mutation(input, other, words, random);
    const size_t most = below(4) == 0 ? 12 : values_only ? 1 : 3;
    for (size_t i = 0, changes = 1 + below(most); i < changes; ++i)
        values_only ? mutation.change_value() : mutation.change();
    return input;
}

}  // namespace refold
