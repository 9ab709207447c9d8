// Checks for tests of pages and figures.
#pragma once

#include <string>
#include <vector>

namespace refold {

// Checks that tags nest, attributes are quoted and entities are complete, which is enough to find broken
// markup.
inline std::string markup_error(const std::string& html) {
    std::vector<std::string> open;
    for (size_t i = 0; i < html.size(); ++i) {
        if (html[i] == '&') {
            const size_t end = html.find(';', i);
            if (end == std::string::npos || end - i > 8) return "bare & at " + html.substr(i, 40);
        }
        if (html[i] == '>') return "bare > at " + html.substr(i, 40);
        if (html[i] != '<') continue;
        const size_t start = ++i;
        bool quoted = false;
        for (; i < html.size() && (quoted || html[i] != '>'); ++i) {
            if (html[i] == '"') quoted = !quoted;
            if (html[i] == '<') return "< inside a tag: " + html.substr(start, 40);
        }
        if (i == html.size()) return "unfinished tag: " + html.substr(start, 40);
        const std::string tag = html.substr(start, i - start);
        if (tag[0] == '!' || tag.ends_with("/")) continue;
        if (tag[0] == '/') {
            if (open.empty() || open.back() != tag.substr(1))
                return "closes " + tag + " in " + (open.empty() ? "nothing" : open.back());
            open.pop_back();
        } else {
            open.push_back(tag.substr(0, tag.find_first_of(" \n")));
        }
    }
    return open.empty() ? "" : "not closed: " + open.back();
}

}  // namespace refold
