// Several files as one input.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace refold {

using Bundle = std::map<std::string, std::string>;  // bytes by name

// Every file begins with the line "@@ NAME", which a newline ends and, but for the first, begins.
inline std::string bundled(const Bundle& files) {
    std::string out;
    for (const auto& [name, bytes] : files) {
        if (!out.empty()) out += '\n';
        out += "@@ " + name + "\n" + bytes;
    }
    return out;
}

// Reads any bytes; what comes before the first such line is dropped.
inline Bundle unbundled(std::string_view input) {
    constexpr std::string_view kMark = "\n@@ ";
    Bundle files;
    const std::string text = "\n" + std::string(input);
    for (size_t at = text.find(kMark); at != std::string::npos;) {
        const size_t name = at + kMark.size();
        const size_t line_end = text.find('\n', name);
        if (line_end == std::string::npos) break;
        at = text.find(kMark, line_end);
        const size_t begin = line_end + 1;
        files[text.substr(name, line_end - name)] =
            begin < at ? text.substr(begin, at == std::string::npos ? at : at - begin) : "";
    }
    return files;
}

}  // namespace refold
