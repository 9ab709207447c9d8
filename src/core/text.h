// Small text helpers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace refold {

// "12.3 MiB"
std::string format_bytes(uint64_t bytes);
// "134,515,008"
std::string format_count(uint64_t value);
// "4.2 s", "3 min 05 s"
std::string format_seconds(double seconds);

// The candidate with the smallest edit distance to `word`, or "" when none is reasonably near.
std::string nearest(std::string_view word, std::span<const std::string> candidates);
// "did you mean 'x'? known: a, b, c"
std::string suggestion(std::string_view word, std::span<const std::string> candidates);

std::string join(std::span<const std::string> parts, std::string_view separator);

// Byte offset of the first invalid UTF-8 sequence, or npos.
size_t find_invalid_utf8(std::string_view text);

// The current UTC time in a strftime() format.
std::string utc_now(const char* format);

// The whole file as text. Throws Error(io) when it cannot be read, Error(input) when it is empty or not UTF-8
// (naming the byte offset).
std::string read_text_file(const std::string& path);

// Fixed-width table for terminals. The first column is left aligned, the others are right aligned.
class TextTable {
public:
    explicit TextTable(std::vector<std::string> header);
    void add(std::vector<std::string> row);
    std::string str() const;

private:
    std::vector<std::vector<std::string>> rows_;
};

}  // namespace refold
