// The least-squares problem of one linear map: inputs x and differences e of the residual stream, token by
// token.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <vector>

#include "compress/method/work.h"
#include "linalg/least_squares.h"

namespace refold {

struct MapSettings {
    int64_t inputs = 0, outputs = 0;  // features of x and of e
    int64_t rank = 0;                 // 0: full
    std::optional<double> ridge;      // empty: chosen on held-out rows
    // UniAttn, appendix F, which calls it N: the pseudo-inverse, with singular values above 1e-10, of x and e
    // as so many averages over sequences, each of all positions. 0: of all tokens.
    int64_t averages = 0;
};

struct SolvedMap {
    std::vector<float> weights;  // [out x inputs], of full rank
    std::vector<float> u, v;     // [out x rank], [rank x inputs]
    double ridge = 0;            // infinite when no map is better than none
    // Mean of |e|^2 over rows, before and after, for a map that is solved without the held-out rows. The
    // returned map is solved with all rows.
    double fit_before = 0, fit_after = 0, held_out_before = 0, held_out_after = 0;
};

// The ridge and the four means, as numbers that are kept beside the map, and as a JSON object.
Array figures_of(const SolvedMap& map);
nlohmann::json figures_to_json(std::span<const float> figures);

class CompensatingMap {
public:
    // `length`: tokens of the longest sequence.
    CompensatingMap(const MapSettings& settings, int64_t length);

    // A whole sequence: x [tokens x inputs], e [tokens x outputs]. `average`: the one it belongs to, from 0.
    void add(bool held_out, int64_t tokens, std::span<const float> x, std::span<const float> e,
             int64_t average = 0);
    // Sums over the sequences of all processes of group().
    void sum_over_processes();
    // W_o [outputs x n] follows the map. The map then has n outputs and is pinv(W_o) times the solution
    // without W_o, which is the least-squares solution.
    void put_before(std::vector<float> output);
    // Throws Error(input) as LeastSquares::solve().
    SolvedMap solve() const;

private:
    struct Means {
        std::vector<double> x, e, count;  // sums by average and position
    };
    struct Map {
        std::vector<float> weights, u, v;
    };
    std::vector<float> dense(const LeastSquares& sums, double ridge, bool with_held_out) const;
    std::vector<float> of_averages(bool with_held_out) const;
    Map reduced(const LeastSquares& sums, std::vector<float> weights) const;
    std::vector<float> before_output(const std::vector<float>& weights, int64_t columns) const;
    std::vector<float> effective(const Map& map) const;

    MapSettings settings_;
    int64_t length_;
    LeastSquares fit_, held_out_;
    Means fit_means_, held_out_means_;
    std::vector<float> output_;
};

}  // namespace refold
