#include "train/identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

namespace refold {
namespace {

std::map<std::string, std::string> values_of(const std::string& text) {
    std::map<std::string, std::string> out;
    for (size_t first = 0; first < text.size();) {
        const size_t end = std::min(text.find('\n', first), text.size());
        const std::string line = text.substr(first, end - first);
        const size_t colon = std::min(line.find(": "), line.size());
        out[line.substr(0, colon)] = colon == line.size() ? "" : line.substr(colon + 2);
        first = end + 1;
    }
    return out;
}

}  // namespace

std::string identity_difference(const std::string& a, const std::string& b, const char* there,
                                const char* here) {
    const auto before = values_of(a), now = values_of(b);
    std::vector<std::string> out;
    for (const auto& [what, value] : now) {
        const auto found = before.find(what);
        if (found == before.end())
            out.push_back(fmt::format("{} (only {})", what, here));
        else if (found->second != value)
            // Long values are hashes, which mean nothing to a reader.
            out.push_back(value.size() > 40 || found->second.size() > 40
                              ? fmt::format("another {}", what)
                              : fmt::format("{} ({} {}, {} {})", what, there, found->second, here, value));
    }
    for (const auto& [what, value] : before)
        if (!now.contains(what)) out.push_back(fmt::format("{} (only {})", what, there));
    return fmt::format("{}", fmt::join(out, ", "));
}

}  // namespace refold
