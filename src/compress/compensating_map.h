// The least-squares problem of one W_c: inputs x and differences e of the residual stream, token by token.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <vector>

#include "compress/work.h"
#include "linalg/least_squares.h"

namespace refold {

struct MapSettings {
    int64_t inputs = 0, outputs = 0;  // features of x and of e
    int64_t rank = 0;                 // 0: full
    std::optional<double> ridge;      // empty: chosen on held-out rows
    // UniAttn, appendix F, N = 1: means over sequences of x and e for every place in the sequence, and the
    // pseudo-inverse of these means with singular values above 1e-10.
    bool by_means = false;
};

struct SolvedMap {
    std::vector<float> weights;  // [out x inputs], of full rank
    std::vector<float> u, v;     // [out x rank], [rank x inputs]
    double ridge = 0;            // infinite where nothing is better than no W_c at all
    // Mean of |e|^2 over rows, before and after, both of the map that is solved without the held-out rows;
    // the map that is returned is solved with all.
    double fit_before = 0, fit_after = 0, held_out_before = 0, held_out_after = 0;
};

// The ridge and the four means of a map as numbers that are kept beside it, and these as a JSON object.
Array figures_of(const SolvedMap& map);
nlohmann::json figures_to_json(std::span<const float> figures);

class CompensatingMap {
public:
    // `length`: tokens of the longest sequence.
    CompensatingMap(const MapSettings& settings, int64_t length);

    // One sequence: x [tokens x inputs], e [tokens x outputs], from its first token on.
    void add(bool held_out, int64_t tokens, std::span<const float> x, std::span<const float> e);
    // The sequences of all processes of group() together, in all of them.
    void sum_over_processes();
    // The map's result goes through W_o [outputs x n] before it makes up for e: it then has n outputs, and is
    // the least-squares solution pinv(W_o) times that without W_o.
    void put_before(std::vector<float> output);
    // Throws Error(input) as LeastSquares::solve().
    SolvedMap solve() const;

private:
    struct Means {
        std::vector<double> x, e, count;  // sums by place in the sequence
    };
    struct Map {
        std::vector<float> weights, u, v;
    };
    std::vector<float> dense(const LeastSquares& sums, double ridge, bool with_held_out) const;
    std::vector<float> by_means(bool with_held_out) const;
    Map reduced(const LeastSquares& sums, std::vector<float> weights) const;
    std::vector<float> before_output(const std::vector<float>& weights, int64_t columns) const;
    std::vector<float> effective(const Map& map) const;

    MapSettings settings_;
    LeastSquares fit_, held_out_;
    Means fit_means_, held_out_means_;
    std::vector<float> output_;
};

}  // namespace refold
