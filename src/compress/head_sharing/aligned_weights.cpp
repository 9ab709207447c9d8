#include "compress/head_sharing/aligned_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>

#include "compress/head_sharing/similarity.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/text.h"

namespace refold {
namespace {

// Products of one pair of rows of a slot, of all units.
class PairGram {
public:
    PairGram(const Model& model, const HeadUnits& units, Slot slot, std::pair<int64_t, int64_t> rows)
        : n_(2 * units.stored().size()) {
        MatrixOfEach matrix;
        for (const Unit& unit : units.stored()) {
            for (const int64_t row : {rows.first, rows.second}) {
                auto& blocks = matrix.emplace_back();
                for (const HeadRef& head : units.heads_of(unit, slot))
                    blocks.push_back({head.tensor, head.head * model.config.head_dim + row, 1});
            }
        }
        gram_ = gram_matrix(model, {matrix}, "");
    }

    // Of an earlier unit and another one, as complex rows.
    std::complex<double> operator()(size_t former, size_t later) const {
        const auto at = [&](size_t a, size_t b) { return a >= b ? gram_[a * n_ + b] : gram_[b * n_ + a]; };
        const size_t f = 2 * former, l = 2 * later;
        return {at(l, f) + at(l + 1, f + 1), at(l, f + 1) - at(l + 1, f)};
    }
    double norm(size_t unit) const { return std::sqrt((*this)(unit, unit).real()); }

private:
    size_t n_;
    std::vector<double> gram_;
};

constexpr std::array kHeadNorms = {Slot::attn_q_norm, Slot::attn_k_norm, Slot::attn_q_norm_all,
                                   Slot::attn_k_norm_all};

void check(const Model& model, const HeadUnits& units) {
    for (const Unit& unit : units.stored()) {
        const Topology& topology = model.topology;
        if (model.config.rope_of(unit.layer).dims != model.config.head_dim ||
            std::ranges::any_of(kHeadNorms, [&](Slot s) { return topology.has(unit.layer, s); }))
            fail(ErrorCode::unsupported, "direct_share",
                 "align=symmetries compares weights only of heads that are rotated as a whole, without norms "
                 "of queries and keys (layer {} is not like that) - use metric=output",
                 unit.layer);
    }
}

}  // namespace

std::vector<double> aligned_cosines(const Model& model, const HeadUnits& units) {
    check(model, units);
    const size_t n = units.stored().size();
    std::vector<double> out(n * n);
    if (n == 0) return out;
    const int64_t half = model.config.head_dim / 2;
    Progress progress("aligning " + format_count(n) + " heads", static_cast<uint64_t>(half), "rotated pairs");
    for (int64_t i = 0; i < half; ++i) {
        const auto rows = model.config.rope.kind == RopeKind::interleaved ? std::pair(2 * i, 2 * i + 1)
                                                                          : std::pair(i, i + half);
        const PairGram q(model, units, Slot::attn_q, rows), k(model, units, Slot::attn_k, rows);
        // The scale s of q_i, and 1 / s of k_i, that make |s q_i| = |k_i / s|.
        std::vector<double> scale;
        for (size_t u = 0; u < n; ++u) {
            const double of_q = q.norm(u), of_k = k.norm(u);
            scale.push_back(of_q == 0 || of_k == 0 ? 0 : std::sqrt(of_k / of_q));
        }
        for (size_t a = 0; a < n; ++a) {
            for (size_t b = 0; b <= a; ++b) {
                const double s = scale[a] * scale[b];
                if (s != 0) out[a * n + b] += std::abs(q(b, a) * s + k(b, a) / s);
            }
        }
        progress.advance(1);
    }
    progress.finish();
    std::vector<double> squares;
    for (size_t a = 0; a < n; ++a) squares.push_back(out[a * n + a]);
    for (size_t a = 0; a < n; ++a) {
        for (size_t b = 0; b <= a; ++b) {
            const double norms = std::sqrt(squares[a]) * std::sqrt(squares[b]);
            if (a != b) out[a * n + b] = norms > 0 ? out[a * n + b] / norms : 0;
        }
    }
    // Not a number where weights are not finite.
    for (size_t a = 0; a < n; ++a) out[a * n + a] = std::isfinite(squares[a]) ? 1 : squares[a];
    return out;
}

}  // namespace refold
