#include "tasks/meteor.h"

#include <cmath>
#include <optional>
#include <vector>

#include "tasks/bleu.h"
#include "tasks/python_text.h"

namespace refold {

double meteor(std::string_view translation, std::string_view reference) {
    const auto words = tokenize_13a(lower(translation)), expected = tokenize_13a(lower(reference));
    std::vector<bool> taken(expected.size());
    std::vector<std::optional<size_t>> match(words.size());
    double matches = 0;
    for (size_t i = words.size(); i-- > 0;) {
        for (size_t j = expected.size(); j-- > 0;) {
            if (taken[j] || words[i] != expected[j]) continue;
            taken[j] = true;
            match[i] = j;
            ++matches;
            break;
        }
    }
    if (matches == 0) return 0;
    double runs = 0;
    for (size_t i = 0; i < words.size(); ++i) {
        const bool goes_on = i > 0 && match[i] && match[i - 1] && *match[i] == *match[i - 1] + 1;
        if (match[i] && !goes_on) ++runs;
    }
    const double precision = matches / static_cast<double>(words.size()),
                 recall = matches / static_cast<double>(expected.size());
    const double mean = precision * recall / (0.9 * precision + 0.1 * recall);
    return mean * (1 - 0.5 * std::pow(runs / matches, 3));
}

}  // namespace refold
