#include "analyze/matrix.h"

#include <cmath>

namespace refold {

SquareMatrix expanded(const SquareMatrix& given, std::span<const std::optional<size_t>> of) {
    SquareMatrix out(of.size());
    for (size_t i = 0; i < of.size(); ++i) {
        for (size_t j = 0; j < of.size(); ++j) {
            if (of[i] && of[j]) out(i, j) = given(*of[i], *of[j]);
        }
    }
    return out;
}

SquareMatrix cosines_of(std::span<const double> gram, size_t n) {
    SquareMatrix out(n);
    for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j <= i; ++j) {
            const double norms = std::sqrt(gram[i * n + i]) * std::sqrt(gram[j * n + j]);
            if (norms > 0) out(i, j) = out(j, i) = gram[i * n + j] / norms;
        }
    }
    return out;
}

std::vector<std::optional<Best>> best_of_earlier(const SquareMatrix& cosines, std::span<const size_t> layer) {
    std::vector<std::optional<Best>> out(cosines.size());
    for (size_t i = 0; i < cosines.size(); ++i) {
        for (size_t j = 0; j < i && layer[j] < layer[i]; ++j) {
            const double cosine = cosines(i, j);
            if (!std::isnan(cosine) && (!out[i] || cosine > out[i]->cosine)) out[i] = Best{j, cosine};
        }
    }
    return out;
}

}  // namespace refold
