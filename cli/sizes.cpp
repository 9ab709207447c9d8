#include "cli/sizes.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <sstream>

#include "core/error.h"

namespace refold::cli {
namespace {

const std::map<std::string, double> kUnits = {{"", 1},     {"B", 1},        {"KB", 1e3},     {"MB", 1e6},
                                              {"GB", 1e9}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}};

}  // namespace

NamedSize parse_size(const std::string& text, const char* option) {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    const auto unit = kUnits.find(end);
    if (end == text.c_str() || unit == kUnits.end() || !std::isfinite(number) || number <= 0 ||
        number * unit->second > 0x1p60)
        fail(ErrorCode::usage, "options", "{} {}: expected a size such as 70MiB or 1.5GB", option, text);
    return {text, static_cast<uint64_t>(number * unit->second)};
}

std::vector<NamedSize> parse_sizes(const std::string& text, const char* option) {
    std::vector<std::string> words;
    std::istringstream in(text);
    for (std::string word; std::getline(in, word, ',');) words.push_back(word);
    std::vector<NamedSize> out;
    std::string unit;
    for (auto word = words.rbegin(); word != words.rend(); ++word) {
        const size_t digits = std::min(word->find_first_not_of("0123456789."), word->size());
        if (digits < word->size()) unit = word->substr(digits);
        out.push_back(parse_size(word->substr(0, digits) + unit, option));
    }
    if (out.empty()) parse_size(text, option);
    std::ranges::sort(out, {}, &NamedSize::bytes);
    const auto twice = std::ranges::adjacent_find(out, {}, &NamedSize::bytes);
    if (twice != out.end()) fail(ErrorCode::usage, "options", "{}: {} is given twice", option, twice->name);
    return out;
}

}  // namespace refold::cli
