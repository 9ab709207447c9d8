// The bundled beginning of WikiText-2's test split.
#pragma once

#include <string>

#include "core/text.h"

namespace refold {

inline const std::string kExcerpt =
    std::string(REFOLD_FIXTURES) + "/../../bench/data/wikitext-2-test-excerpt.txt";

// The first lines, as `head -n` prints them.
inline std::string excerpt(int lines) {
    const std::string text = read_text_file(kExcerpt);
    size_t end = 0;
    for (int i = 0; i < lines; ++i) end = text.find('\n', end) + 1;
    return text.substr(0, end);
}

}  // namespace refold
