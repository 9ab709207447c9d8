// Sizes in bytes, as options give them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace refold::cli {

// A size and how the user wrote it.
struct NamedSize {
    std::string name;  // "70MiB"
    uint64_t bytes = 0;
};
// "70MiB", "1.5GB", "73400320". Throws Error(usage).
NamedSize parse_size(const std::string& text, const char* option);
// "60,70,1GiB", from small to large. A number without a unit has the unit of the next one that has one.
// Throws Error(usage) for a list without sizes and for a size that is given twice.
std::vector<NamedSize> parse_sizes(const std::string& text, const char* option);

}  // namespace refold::cli
