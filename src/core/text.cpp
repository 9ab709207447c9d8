#include "core/text.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fstream>
#include <numeric>

#include "core/error.h"
#include "core/stored_text.h"

namespace refold {

std::string format_bytes(uint64_t bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    while (value >= 1023.95 && unit + 1 < std::size(units)) {
        value /= 1024.0;
        ++unit;
    }
    return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string format_count(uint64_t value) {
    std::string digits = std::to_string(value);
    for (int i = static_cast<int>(digits.size()) - 3; i > 0; i -= 3)
        digits.insert(static_cast<size_t>(i), 1, ',');
    return digits;
}

std::string utc_now(const char* format) {
    const std::time_t now = std::time(nullptr);
    std::tm utc{};
    gmtime_r(&now, &utc);
    char text[64];
    return {text, std::strftime(text, sizeof text, format, &utc)};
}

std::string format_seconds(double seconds) {
    if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
    const auto total = std::llround(seconds);
    if (total < 3600) return fmt::format("{} min {:02} s", total / 60, total % 60);
    return fmt::format("{} h {:02} min", total / 3600, total % 3600 / 60);
}

static size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t above = row[j];
            row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
            diagonal = above;
        }
    }
    return row[b.size()];
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
    size_t best = std::max<size_t>(2, word.size() / 2) + 1;
    std::string found;
    for (const auto& candidate : candidates) {
        const size_t distance = edit_distance(word, candidate);
        if (distance < best) {
            best = distance;
            found = candidate;
        }
    }
    return found;
}

std::string suggestion(std::string_view word, std::span<const std::string> candidates) {
    const std::string near = nearest(word, candidates);
    return fmt::format("{}known: {}", near.empty() ? "" : fmt::format("did you mean '{}'? ", near),
                       join(candidates, ", "));
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
    std::string out;
    for (const auto& part : parts) {
        if (!out.empty()) out += separator;
        out += part;
    }
    return out;
}

size_t find_invalid_utf8(std::string_view text) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
    for (size_t i = 0; i < text.size();) {
        const unsigned char lead = byte(i);
        size_t length = 1;
        uint32_t code = lead;
        if (lead >= 0xF0 && lead < 0xF5) {
            length = 4;
            code = lead & 0x07;
        } else if (lead >= 0xE0 && lead < 0xF0) {
            length = 3;
            code = lead & 0x0F;
        } else if (lead >= 0xC2 && lead < 0xE0) {
            length = 2;
            code = lead & 0x1F;
        } else if (lead >= 0x80) {
            return i;
        }
        if (i + length > text.size()) return i;
        for (size_t k = 1; k < length; ++k) {
            if ((byte(i + k) & 0xC0) != 0x80) return i;
            code = code << 6 | (byte(i + k) & 0x3F);
        }
        const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
        const bool surrogate = code >= 0xD800 && code < 0xE000;
        if (overlong || surrogate || code > 0x10FFFF) return i;
        i += length;
    }
    return std::string_view::npos;
}

std::string read_text_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) fail(ErrorCode::io, "text", "cannot open '{}': {}", path, strerror(errno));
    std::string text;
    char chunk[1 << 16];
    while (file.read(chunk, sizeof(chunk)) || file.gcount() > 0)
        text.append(chunk, static_cast<size_t>(file.gcount()));
    if (file.bad()) fail(ErrorCode::io, "text", "cannot read '{}': {}", path, strerror(errno));
    check_text(text, path);
    return text;
}

TextTable::TextTable(std::vector<std::string> header) { rows_.push_back(std::move(header)); }

void TextTable::add(std::vector<std::string> row) {
    row.resize(rows_[0].size());
    rows_.push_back(std::move(row));
}

// Terminal columns, approximated by code points.
static size_t width(const std::string& cell) {
    return static_cast<size_t>(std::count_if(
        cell.begin(), cell.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string TextTable::str() const {
    std::vector<size_t> widths(rows_[0].size(), 0);
    for (const auto& row : rows_) {
        for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
    }
    std::string out;
    for (size_t r = 0; r < rows_.size(); ++r) {
        std::string line;
        for (size_t c = 0; c < rows_[r].size(); ++c) {
            const std::string pad(widths[c] - width(rows_[r][c]), ' ');
            line += c == 0 ? rows_[r][c] + pad : "  " + pad + rows_[r][c];
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
        if (r == 0)
            out += std::string(std::accumulate(widths.begin(), widths.end(), 2 * (widths.size() - 1)), '-') +
                   "\n";
    }
    return out;
}

}  // namespace refold
