#include "linalg/surgeon.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "linalg/blas.h"

namespace refold {
namespace {

using blas::Op;
using Doubles = std::vector<double>;

constexpr int64_t kRounds = 128;

// (gram + ridge)^-1, both triangles.
Doubles inverse(const SurgeonMap& map) {
    const auto n = static_cast<size_t>(map.inputs);
    Doubles gram(map.gram.begin(), map.gram.end()), out(n * n);
    double mean = 0;
    for (size_t i = 0; i < n; ++i) mean += gram[i * (n + 1)] / static_cast<double>(n);
    for (size_t i = 0; i < n; ++i) {
        gram[i * (n + 1)] += map.ridge * mean;
        out[i * (n + 1)] = 1;
    }
    if (!blas::solve_positive(map.inputs, map.inputs, gram.data(), out.data()))
        fail(
            ErrorCode::input, "surgeon",
            "the Gram matrix of {} inputs is not positive definite at ridge {} - raise it, or give more text",
            map.inputs, map.ridge);
    return out;
}

// The inputs that are left, with the inverse of their Gram matrix and their weights [outputs x left].
class Surgeon {
public:
    explicit Surgeon(const SurgeonMap& map)
        : width_(static_cast<size_t>(map.width)),
          outputs_(static_cast<int64_t>(map.weights.size()) / map.inputs),
          inverse_(inverse(map)),
          weights_(map.weights.begin(), map.weights.end()) {
        for (int64_t i = 0; i < map.inputs; ++i) inputs_.push_back(i);
        for (int64_t p = 0; p < map.parts; ++p) parts_.push_back(p);
    }

    // Removes the `count` parts that cost least alone.
    void remove(int64_t count, Removals& out) {
        std::vector<std::pair<double, size_t>> costs = this->costs();
        std::partial_sort(costs.begin(), costs.begin() + count, costs.end());
        costs.resize(static_cast<size_t>(count));
        std::vector<size_t> gone, places;
        double alone = 0;
        for (const auto& [own, at] : costs) {
            places.push_back(at);
            alone += own;
        }
        std::sort(places.begin(), places.end());
        for (const size_t at : places) {
            const auto some = inputs_of(at);
            gone.insert(gone.end(), some.begin(), some.end());
        }
        // What they cost together, spread over them.
        const double together = cost(gone);
        for (const auto& [own, at] : costs) {
            error_ += alone > 0 ? together * own / alone : 0;
            out.parts.push_back(parts_[at]);
            out.errors.push_back(error_);
        }
        remove_inputs(gone);
        for (auto at = places.rbegin(); at != places.rend(); ++at)
            parts_.erase(parts_.begin() + static_cast<ptrdiff_t>(*at));
    }

    void finish(Removals& out) const {
        out.inputs = inputs_;
        out.weights.assign(weights_.begin(), weights_.end());
    }

private:
    // Positions among those that are left. Parts keep their order, so that the one at `at` begins there.
    std::vector<size_t> inputs_of(size_t at) const {
        std::vector<size_t> out(width_);
        std::iota(out.begin(), out.end(), at * width_);
        return out;
    }

    // Of each part alone, with its place.
    std::vector<std::pair<double, size_t>> costs() const {
        std::vector<std::pair<double, size_t>> out(parts_.size());
        for (size_t at = 0; at < out.size(); ++at) out[at].second = at;
        if (width_ > 1) {
            for (auto& [own, at] : out) own = cost(inputs_of(at));
            return out;
        }
        const size_t n = inputs_.size();
        for (size_t row = 0; row < weights_.size(); row += n) {
            for (auto& [own, at] : out) own += weights_[row + at] * weights_[row + at];
        }
        for (auto& [own, at] : out) own /= inverse_[at * (n + 1)];
        return out;
    }

    // [rows x columns] of the inverse, as BLAS's columns.
    Doubles part(const std::vector<size_t>& rows, const std::vector<size_t>& columns) const {
        const size_t n = inputs_.size();
        Doubles out;
        out.reserve(rows.size() * columns.size());
        for (const size_t c : columns) {
            for (const size_t r : rows) out.push_back(inverse_[c * n + r]);
        }
        return out;
    }

    // Columns of W: [some x outputs], as BLAS's columns.
    Doubles columns(const std::vector<size_t>& some) const {
        const size_t n = inputs_.size();
        Doubles out;
        out.reserve(some.size() * static_cast<size_t>(outputs_));
        for (size_t o = 0; o < static_cast<size_t>(outputs_); ++o) {
            for (const size_t i : some) out.push_back(weights_[o * n + i]);
        }
        return out;
    }

    static void solve(const std::vector<size_t>& some, int64_t count, Doubles matrix, Doubles& rows) {
        if (!blas::solve_positive(static_cast<int64_t>(some.size()), count, matrix.data(), rows.data()))
            fail(ErrorCode::input, "surgeon", "the inputs are dependent - raise the ridge");
    }

    // The sum over outputs of w (inverse of these inputs)^-1 w.
    double cost(const std::vector<size_t>& some) const {
        const Doubles w = columns(some);
        Doubles solved = w;
        solve(some, outputs_, part(some, some), solved);
        return std::inner_product(w.begin(), w.end(), solved.begin(), 0.0);
    }

    void remove_inputs(const std::vector<size_t>& gone) {
        std::vector<size_t> kept;
        for (size_t i = 0, g = 0; i < inputs_.size(); ++i) {
            if (g < gone.size() && gone[g] == i) {
                ++g;
            } else {
                kept.push_back(i);
            }
        }
        const auto k = static_cast<int64_t>(kept.size()), r = static_cast<int64_t>(gone.size());
        const Doubles across = part(gone, kept), square = part(gone, gone);
        Doubles factors = across, w = columns(gone), rest = part(kept, kept), map = columns(kept);
        solve(gone, k, square, factors);
        blas::multiply(Op::transposed, Op::plain, {k, k, r}, across.data(), factors.data(), rest.data(), 1,
                       -1);
        solve(gone, outputs_, square, w);
        blas::multiply(Op::transposed, Op::plain, {k, outputs_, r}, across.data(), w.data(), map.data(), 1,
                       -1);
        std::vector<int64_t> inputs;
        for (const size_t i : kept) inputs.push_back(inputs_[i]);
        inputs_ = std::move(inputs);
        inverse_ = std::move(rest);
        weights_ = std::move(map);
    }

    size_t width_;
    int64_t outputs_;
    Doubles inverse_, weights_;
    std::vector<int64_t> inputs_, parts_;  // those that are left, ascending
    double error_ = 0;
};

// The inputs that stay, and their columns of W.
void keep_rest(const SurgeonMap& map, Removals& out) {
    std::vector<bool> gone(static_cast<size_t>(map.parts));
    for (const int64_t part : out.parts) gone[static_cast<size_t>(part)] = true;
    for (int64_t i = 0; i < map.inputs; ++i) {
        const int64_t part = i / map.width;
        if (part >= map.parts || !gone[static_cast<size_t>(part)]) out.inputs.push_back(i);
    }
    const int64_t outputs = static_cast<int64_t>(map.weights.size()) / map.inputs;
    for (int64_t o = 0; o < outputs; ++o) {
        for (const int64_t i : out.inputs)
            out.weights.push_back(map.weights[static_cast<size_t>(o * map.inputs + i)]);
    }
}

}  // namespace

std::vector<Removals> remove_parts(const SurgeonMap& map, std::span<const int64_t> counts) {
    std::vector<Removals> out;
    Removals now;
    Surgeon surgeon(map);
    const int64_t most = std::max<int64_t>(1, map.parts / kRounds);
    for (const int64_t count : counts) {
        while (static_cast<int64_t>(now.parts.size()) < count)
            surgeon.remove(std::min(most, count - static_cast<int64_t>(now.parts.size())), now);
        surgeon.finish(now);
        out.push_back(now);
    }
    return out;
}

std::vector<Removals> remove_small_parts(const SurgeonMap& map, std::span<const int64_t> counts) {
    const auto n = static_cast<size_t>(map.inputs);
    std::vector<std::pair<double, int64_t>> sizes;
    for (int64_t p = 0; p < map.parts; ++p) sizes.emplace_back(0, p);
    for (size_t i = 0; i < map.weights.size(); ++i) {
        const size_t input = i % n, part = input / static_cast<size_t>(map.width);
        const auto w = static_cast<double>(map.weights[i]);
        if (part < sizes.size()) sizes[part].first += w * w * map.gram[input * (n + 1)];
    }
    std::sort(sizes.begin(), sizes.end());
    std::vector<Removals> out;
    for (const int64_t count : counts) {
        Removals& now = out.emplace_back();
        double error = 0;
        for (const auto& [size, part] : std::span(sizes).first(static_cast<size_t>(count))) {
            now.parts.push_back(part);
            now.errors.push_back(error += size);
        }
        keep_rest(map, now);
    }
    return out;
}

}  // namespace refold
