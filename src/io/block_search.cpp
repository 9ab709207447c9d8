#include "io/block_search.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "io/block_search.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
// clang-format on

#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "io/block_grid.h"

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

constexpr size_t kLanes = hn::MaxLanes(D()), kMostElements = 256, kMostRuns = 16;
constexpr float kNothing = 1e-15F;  // blocks of no larger values are all zeros for ggml

static HWY_INLINE V Constant(float value) { return hn::Set(D(), value); }
static HWY_INLINE V At(const float* lanes, size_t i) { return hn::Load(D(), lanes + i * kLanes); }
static HWY_INLINE void Put(V value, float* lanes, size_t i) { hn::Store(value, D(), lanes + i * kLanes); }

// ggml's nearest_int(): to even in ties, for what is far from overflowing.
static HWY_INLINE V Nearest(V x) {
    const V large = Constant(12582912.0F);
    return hn::Sub(hn::Add(x, large), large);
}

static HWY_INLINE V NearestFrom(V x, float low, float high) {
    return hn::Min(hn::Max(Nearest(x), Constant(low)), Constant(high));
}

// The value of the largest magnitude.
struct Peak {
    V value, magnitude;
};
static HWY_INLINE Peak PeakOf(const float* x, size_t n) {
    Peak peak = {Constant(0), Constant(0)};
    for (size_t i = 0; i < n; ++i) {
        const V value = At(x, i), magnitude = hn::Abs(value);
        const auto larger = hn::Gt(magnitude, peak.magnitude);
        peak.value = hn::IfThenElse(larger, value, peak.value);
        peak.magnitude = hn::IfThenElse(larger, magnitude, peak.magnitude);
    }
    return peak;
}

// Sums over elements of weight * x * code and weight * code^2: scale = of_x / of_squares fits best.
struct Fitted {
    V of_x, of_squares;

    HWY_INLINE V Scale() const {
        return hn::IfThenElseZero(hn::Gt(of_squares, Constant(0)), hn::Div(of_x, of_squares));
    }
};

// The best scale of several tries, and the factor whose rounded products with x were its codes.
struct Best {
    V scale, factor, gain;

    HWY_INLINE void Take(const Fitted& tried, V tried_factor) {
        const auto better = hn::And(hn::Gt(tried.of_squares, Constant(0)),
                                    hn::Gt(hn::Mul(tried.of_x, tried.of_x), hn::Mul(gain, tried.of_squares)));
        const V tried_scale = hn::Div(tried.of_x, tried.of_squares);
        scale = hn::IfThenElse(better, tried_scale, scale);
        factor = hn::IfThenElse(better, tried_factor, factor);
        gain = hn::IfThenElse(better, hn::Mul(tried_scale, tried.of_x), gain);
    }
};

// ---- codes on both sides of zero (make_qx_quants)

static HWY_INLINE Fitted FitSymmetric(const float* x, const float* w, size_t n, float levels, V factor) {
    Fitted out = {Constant(0), Constant(0)};
    for (size_t i = 0; i < n; ++i) {
        const V value = At(x, i), weight = At(w, i);
        const V code = NearestFrom(hn::Mul(factor, value), -levels, levels - 1);
        out.of_x = hn::Add(out.of_x, hn::Mul(hn::Mul(weight, value), code));
        out.of_squares = hn::Add(out.of_squares, hn::Mul(hn::Mul(weight, code), code));
    }
    return out;
}

// Codes from -levels to levels - 1.
static Best SearchSymmetric(const float* x, const float* w, size_t n, float levels) {
    const Peak peak = PeakOf(x, n);
    V factor = hn::Div(Constant(-levels), peak.value);
    const Fitted first = FitSymmetric(x, w, n, levels, factor);
    Best best = {first.Scale(), factor, Constant(0)};
    best.gain = hn::Mul(best.scale, first.of_x);
    for (int step = -9; step <= 9; ++step) {
        if (step == 0) continue;
        factor = hn::Div(Constant(-(levels + 0.1F * static_cast<float>(step))), peak.value);
        best.Take(FitSymmetric(x, w, n, levels, factor), factor);
    }
    const auto any = hn::Ge(peak.magnitude, Constant(kNothing));
    best.scale = hn::IfThenElseZero(any, best.scale);
    best.factor = hn::IfThenElseZero(any, best.factor);
    return best;
}

// ---- codes from an offset on (make_qkx3_quants)

// Values low + scale * code, whose codes are rounded from factor * (x - base).
struct Offset {
    V scale, low, factor, base;

    HWY_INLINE V Code(V x, float top) const { return NearestFrom(hn::Mul(factor, hn::Sub(x, base)), 0, top); }
};

static HWY_INLINE V ErrorOf(const float* x, const float* w, const float* codes, size_t n, V scale, V low) {
    V sum = Constant(0);
    for (size_t i = 0; i < n; ++i) {
        const V error = hn::Sub(hn::Add(hn::Mul(scale, At(codes, i)), low), At(x, i));
        sum = hn::Add(sum, hn::Mul(At(w, i), hn::Mul(error, error)));
    }
    return sum;
}

static Offset SearchOffset(const float* x, const float* w, size_t n, float top) {
    HWY_ALIGN float codes[32 * kLanes];
    V low = At(x, 0), high = low, sum_w = At(w, 0), sum_x = hn::Mul(sum_w, low);
    for (size_t i = 1; i < n; ++i) {
        const V value = At(x, i), weight = At(w, i);
        low = hn::Min(low, value);
        high = hn::Max(high, value);
        sum_w = hn::Add(sum_w, weight);
        sum_x = hn::Add(sum_x, hn::Mul(weight, value));
    }
    const V zero = Constant(0);
    low = hn::Min(low, zero);
    const auto any = hn::Gt(high, low);
    const V lowest = low;
    Offset best = {zero, low, hn::Div(Constant(top), hn::Sub(high, low)), low};
    best.scale = hn::Div(Constant(1), best.factor);
    for (size_t i = 0; i < n; ++i) Put(best.Code(At(x, i), top), codes, i);
    V least = ErrorOf(x, w, codes, n, best.scale, best.low);
    for (int step = 0; step <= 36; ++step) {
        Offset tried = best;
        tried.base = best.low;
        tried.factor =
            hn::Div(Constant(-0.9F + 0.05F * static_cast<float>(step) + top), hn::Sub(high, best.low));
        V of_codes = zero, of_squares = zero, of_x = zero;
        for (size_t i = 0; i < n; ++i) {
            const V value = At(x, i), code = tried.Code(value, top);
            const V weighted = hn::Mul(At(w, i), code);
            Put(code, codes, i);
            of_codes = hn::Add(of_codes, weighted);
            of_squares = hn::Add(of_squares, hn::Mul(weighted, code));
            of_x = hn::Add(of_x, hn::Mul(weighted, value));
        }
        const V determinant = hn::Sub(hn::Mul(sum_w, of_squares), hn::Mul(of_codes, of_codes));
        tried.scale = hn::Div(hn::Sub(hn::Mul(sum_w, of_x), hn::Mul(sum_x, of_codes)), determinant);
        tried.low = hn::Div(hn::Sub(hn::Mul(of_squares, sum_x), hn::Mul(of_codes, of_x)), determinant);
        const auto above = hn::Gt(tried.low, zero);
        tried.low = hn::IfThenElse(above, zero, tried.low);
        tried.scale = hn::IfThenElse(above, hn::Div(of_x, of_squares), tried.scale);
        const V error = ErrorOf(x, w, codes, n, tried.scale, tried.low);
        const auto better = hn::And(hn::Gt(determinant, zero), hn::Lt(error, least));
        least = hn::IfThenElse(better, error, least);
        best.scale = hn::IfThenElse(better, tried.scale, best.scale);
        best.low = hn::IfThenElse(better, tried.low, best.low);
        best.factor = hn::IfThenElse(better, tried.factor, best.factor);
        best.base = hn::IfThenElse(better, tried.base, best.base);
    }
    best.scale = hn::IfThenElseZero(any, best.scale);
    best.low = hn::IfThenElse(any, best.low, lowest);
    best.factor = hn::IfThenElseZero(any, best.factor);
    best.base = hn::IfThenElse(any, best.base, lowest);
    return best;
}

// ---- scales of the runs of a block (make_qp_quants)

// Codes from 0 to `top` of values that are not negative, [n] in `codes`. Returns their scale.
static V SearchPositive(const float* x, const float* w, size_t n, float top, float* codes) {
    const V zero = Constant(0);
    V most = zero;
    for (size_t i = 0; i < n; ++i) most = hn::Max(most, At(x, i));
    const auto any = hn::Ge(most, Constant(kNothing));
    const auto error_of = [&](V factor) {
        const V scale = hn::Div(Constant(1), factor);
        V sum = Constant(0);
        for (size_t i = 0; i < n; ++i) {
            const V code = NearestFrom(hn::Mul(factor, At(x, i)), 0, top);
            const V error = hn::Sub(At(x, i), hn::Mul(scale, code));
            sum = hn::Add(sum, hn::Mul(hn::Mul(At(w, i), error), error));
        }
        return sum;
    };
    V factor = hn::Div(Constant(top), most), least = error_of(factor);
    for (int step = -4; step <= 4; ++step) {
        if (step == 0) continue;
        const V tried = hn::Div(Constant(0.1F * static_cast<float>(step) + top), most);
        const V error = error_of(tried);
        const auto better = hn::Lt(error, least);
        least = hn::IfThenElse(better, error, least);
        factor = hn::IfThenElse(better, tried, factor);
    }
    V of_x = zero, of_squares = zero;
    for (size_t i = 0; i < n; ++i) {
        const V code = hn::IfThenElseZero(any, NearestFrom(hn::Mul(factor, At(x, i)), 0, top));
        Put(code, codes, i);
        of_x = hn::Add(of_x, hn::Mul(hn::Mul(At(w, i), At(x, i)), code));
        of_squares = hn::Add(of_squares, hn::Mul(hn::Mul(At(w, i), code), code));
    }
    // Each code in turn, with the scale that fits the others.
    for (int round = 0; round < 5; ++round) {
        for (size_t i = 0; i < n; ++i) {
            const V value = At(x, i), weight = At(w, i), code = At(codes, i);
            const V x_of_others = hn::Sub(of_x, hn::Mul(hn::Mul(weight, value), code)),
                    squares_of_others = hn::Sub(of_squares, hn::Mul(hn::Mul(weight, code), code));
            const V tried = NearestFrom(hn::Div(hn::Mul(value, squares_of_others), x_of_others), 0, top);
            const V new_x = hn::Add(x_of_others, hn::Mul(hn::Mul(weight, value), tried)),
                    new_squares = hn::Add(squares_of_others, hn::Mul(hn::Mul(weight, tried), tried));
            const auto better =
                hn::Gt(hn::Mul(hn::Mul(new_x, new_x), of_squares), hn::Mul(hn::Mul(of_x, of_x), new_squares));
            const auto take = hn::And(hn::And(hn::Gt(x_of_others, zero), hn::Gt(squares_of_others, zero)),
                                      hn::And(better, hn::Ne(tried, code)));
            Put(hn::IfThenElse(take, tried, code), codes, i);
            of_x = hn::IfThenElse(take, new_x, of_x);
            of_squares = hn::IfThenElse(take, new_squares, of_squares);
        }
    }
    return hn::IfThenElseZero(any, Fitted{of_x, of_squares}.Scale());
}

// ---- codes of a table (quantize_row_iq4_nl_impl)

struct TableCode {
    V code, level;
};
static HWY_INLINE TableCode NearestOfTable(const BlockGrid& grid, V x) {
    TableCode out = {Constant(0), Constant(grid.levels[0])};
    for (int code = 1; code < grid.codes; ++code) {
        const float below = grid.levels[code - 1], level = grid.levels[code];
        const auto above = hn::Ge(x, Constant((below + level) / 2));
        out.code = hn::IfThenElse(above, Constant(static_cast<float>(code)), out.code);
        out.level = hn::IfThenElse(above, Constant(level), out.level);
    }
    return out;
}

static HWY_INLINE Fitted FitTable(const BlockGrid& grid, const float* x, const float* w, size_t n, V factor) {
    Fitted out = {Constant(0), Constant(0)};
    for (size_t i = 0; i < n; ++i) {
        const V value = At(x, i), level = NearestOfTable(grid, hn::Mul(factor, value)).level;
        const V weighted = hn::Mul(At(w, i), level);
        out.of_x = hn::Add(out.of_x, hn::Mul(weighted, value));
        out.of_squares = hn::Add(out.of_squares, hn::Mul(weighted, level));
    }
    return out;
}

static V SearchTable(const BlockGrid& grid, const float* x, const float* w, size_t n) {
    const float lowest = grid.levels[0];
    const Peak peak = PeakOf(x, n);
    const V factor = hn::Div(Constant(1), hn::Div(hn::Neg(peak.value), Constant(lowest)));
    const Fitted first = FitTable(grid, x, w, n, factor);
    Best best = {first.Scale(), factor, Constant(0)};
    best.gain = hn::Mul(best.scale, first.of_x);
    for (int step = -7; step <= 7; ++step) {
        const V tried = hn::Div(Constant(static_cast<float>(step) + lowest), peak.value);
        best.Take(FitTable(grid, x, w, n, tried), tried);
    }
    return hn::IfThenElseZero(hn::Ge(peak.magnitude, Constant(kNothing)), best.scale);
}

// ---- blocks

// Blocks side by side: [element][lane].
struct Lanes {
    HWY_ALIGN float x[kMostElements * kLanes];
    HWY_ALIGN float importance[kMostElements * kLanes];
    HWY_ALIGN float weights[kMostElements * kLanes];
    HWY_ALIGN float codes[kMostElements * kLanes];
    HWY_ALIGN float mean_squares[kLanes];  // of the row's elements
    std::byte* blocks[kLanes];             // where they are packed
    size_t count;                          // of the lanes that are used
};

using Search = void (*)(Lanes& lanes, const BlockGrid& grid);

// Weights of squared errors in the search: importance * sqrt(mean + x^2).
static HWY_INLINE void Weigh(Lanes& lanes, size_t n, V mean) {
    for (size_t i = 0; i < n; ++i) {
        const V x = At(lanes.x, i);
        Put(hn::Mul(At(lanes.importance, i), hn::Sqrt(hn::Add(mean, hn::Mul(x, x)))), lanes.weights, i);
    }
}

static HWY_INLINE V SumOfSquares(const Lanes& lanes, size_t n) {
    V sum = Constant(0);
    for (size_t i = 0; i < n; ++i) sum = hn::Add(sum, hn::Mul(At(lanes.x, i), At(lanes.x, i)));
    return sum;
}

static V SumOf(const float* values, size_t n) {
    V sum = Constant(0);
    for (size_t i = 0; i < n; ++i) sum = hn::Add(sum, At(values, i));
    return sum;
}

static void PutHalf(std::byte* to, float value) {
    const ggml_fp16_t half = ggml_fp32_to_fp16(value);
    memcpy(to, &half, sizeof half);
}

// As a float16 number holds them.
static HWY_INLINE V InHalf(V value) {
    HWY_ALIGN float lanes[kLanes];
    hn::Store(value, D(), lanes);
    for (float& one : lanes) one = ggml_fp16_to_fp32(ggml_fp32_to_fp16(one));
    return hn::Load(D(), lanes);
}

static void PutCodes(const Lanes& lanes, const BlockGrid& grid, size_t n) {
    for (size_t lane = 0; lane < lanes.count; ++lane) {
        uint8_t codes[kMostElements];
        for (size_t i = 0; i < n; ++i) codes[i] = static_cast<uint8_t>(lanes.codes[i * kLanes + lane]);
        grid.write_codes(lanes.blocks[lane], codes);
    }
}

// Q4_0 to Q5_1: 32 elements, a float16 scale, for some a float16 offset after it.
struct Plain {
    V scale, low, factor, base;
};

// Sum over elements of importance * error^2; the values are low + scale * (first + code).
static HWY_INLINE V WeightedError(const Lanes& lanes, const float* codes, float first, V scale, V low) {
    V sum = Constant(0);
    for (size_t i = 0; i < 32; ++i) {
        const V value = hn::Add(hn::Mul(hn::Add(At(codes, i), Constant(first)), scale), low);
        const V error = hn::Sub(value, At(lanes.x, i));
        sum = hn::Add(sum, hn::Mul(hn::Mul(At(lanes.importance, i), error), error));
    }
    return sum;
}

// The blocks get the lanes' codes with this scale and offset, or those of plain rounding where these are
// nearer: its codes are what is left of the point in factor * (x - base) + shift.
static HWY_INLINE void PutNearer(Lanes& lanes, const BlockGrid& grid, V scale, V low, const Plain& plain,
                                 float shift) {
    HWY_ALIGN float plain_codes[32 * kLanes];
    HWY_ALIGN float numbers[2 * kLanes];
    const V top = Constant(static_cast<float>(grid.codes - 1));
    const V half_scale = InHalf(scale), half_low = InHalf(low), plain_scale = InHalf(plain.scale),
            plain_low = InHalf(plain.low);
    for (size_t i = 0; i < 32; ++i) {
        const V scaled = hn::Mul(hn::Sub(At(lanes.x, i), plain.base), plain.factor);
        Put(hn::Min(top, hn::Trunc(hn::Add(scaled, Constant(shift)))), plain_codes, i);
    }
    const auto first = static_cast<float>(grid.first);
    const auto nearer = hn::Lt(WeightedError(lanes, plain_codes, first, plain_scale, plain_low),
                               WeightedError(lanes, lanes.codes, first, half_scale, half_low));
    for (size_t i = 0; i < 32; ++i)
        Put(hn::IfThenElse(nearer, At(plain_codes, i), At(lanes.codes, i)), lanes.codes, i);
    Put(hn::IfThenElse(nearer, plain.scale, scale), numbers, 0);
    Put(hn::IfThenElse(nearer, plain.low, low), numbers, 1);
    for (size_t lane = 0; lane < lanes.count; ++lane) {
        PutHalf(lanes.blocks[lane], numbers[lane]);
        if (grid.first == 0) PutHalf(lanes.blocks[lane] + 2, numbers[kLanes + lane]);
    }
    PutCodes(lanes, grid, 32);
}

static HWY_INLINE V Inverse(V scale) {
    return hn::IfThenElseZero(hn::Ne(scale, Constant(0)), hn::Div(Constant(1), scale));
}

// Q4_0, Q5_0
static void SmallSymmetric(Lanes& lanes, const BlockGrid& grid) {
    const auto levels = static_cast<float>(-grid.first);
    Weigh(lanes, 32, At(lanes.mean_squares, 0));
    const Best best = SearchSymmetric(lanes.x, lanes.weights, 32, levels);
    for (size_t i = 0; i < 32; ++i) {
        const V code = NearestFrom(hn::Mul(best.factor, At(lanes.x, i)), -levels, levels - 1);
        Put(hn::Add(code, Constant(levels)), lanes.codes, i);
    }
    const V scale = hn::Div(PeakOf(lanes.x, 32).value, Constant(-levels)), zero = Constant(0);
    PutNearer(lanes, grid, best.scale, zero, {scale, zero, Inverse(scale), zero}, levels + 0.5F);
}

// Q4_1, Q5_1
static void SmallOffset(Lanes& lanes, const BlockGrid& grid) {
    const auto top = static_cast<float>(grid.codes - 1);
    Weigh(lanes, 32, At(lanes.mean_squares, 0));
    const Offset best = SearchOffset(lanes.x, lanes.weights, 32, top);
    V low = At(lanes.x, 0), high = low;
    for (size_t i = 0; i < 32; ++i) {
        Put(best.Code(At(lanes.x, i), top), lanes.codes, i);
        low = hn::Min(low, At(lanes.x, i));
        high = hn::Max(high, At(lanes.x, i));
    }
    const V scale = hn::Div(hn::Sub(high, low), Constant(top));
    PutNearer(lanes, grid, best.scale, best.low, {scale, low, Inverse(scale), low}, 0.5F);
}

// Codes of a run whose values are scale * (first + code) - offset.
static HWY_INLINE void RunCodes(Lanes& lanes, const BlockGrid& grid, size_t begin, size_t n, V scale,
                                V offset) {
    const float first = static_cast<float>(grid.first);
    const auto none = hn::Eq(scale, Constant(0));
    for (size_t i = begin; i < begin + n; ++i) {
        const V level = hn::Div(hn::Add(At(lanes.x, i), offset), scale);
        const V code = NearestFrom(level, first, first + static_cast<float>(grid.codes - 1));
        Put(hn::IfThenZeroElse(none, hn::Sub(code, Constant(first))), lanes.codes, i);
    }
}

// Q2_K, Q4_K and Q5_K: runs of n elements with scales and offsets of `most` at most. The mean square that
// weights take is `means` times that of the block. put(lane, scales, offsets) packs those of the runs.
template <typename PutScales>
static HWY_INLINE void LargeOffset(Lanes& lanes, const BlockGrid& grid, size_t n, float most, float means,
                                   size_t at, const PutScales& put) {
    HWY_ALIGN float scales[kMostRuns * kLanes];
    HWY_ALIGN float offsets[kMostRuns * kLanes];
    HWY_ALIGN float sums[kMostRuns * kLanes];
    HWY_ALIGN float scale_codes[kMostRuns * kLanes];
    HWY_ALIGN float offset_codes[kMostRuns * kLanes];
    const size_t runs = kMostElements / n;
    const V squares = SumOfSquares(lanes, kMostElements);
    Weigh(lanes, kMostElements, hn::Div(hn::Mul(Constant(means), squares), Constant(kMostElements)));
    for (size_t run = 0; run < runs; ++run) {
        const float *x = lanes.x + run * n * kLanes, *w = lanes.weights + run * n * kLanes;
        const Offset best = SearchOffset(x, w, n, static_cast<float>(grid.codes - 1));
        Put(best.scale, scales, run);
        Put(hn::Neg(best.low), offsets, run);
        Put(SumOf(w, n), sums, run);
    }
    HWY_ALIGN float d[kLanes];
    HWY_ALIGN float dmin[kLanes];
    Put(SearchPositive(scales, sums, runs, most, scale_codes), d, 0);
    Put(SearchPositive(offsets, sums, runs, most, offset_codes), dmin, 0);
    for (size_t lane = 0; lane < lanes.count; ++lane) {
        PutHalf(lanes.blocks[lane] + at, d[lane]);
        PutHalf(lanes.blocks[lane] + at + 2, dmin[lane]);
        int of_scales[kMostRuns], of_offsets[kMostRuns];
        for (size_t run = 0; run < runs; ++run) {
            of_scales[run] = static_cast<int>(scale_codes[run * kLanes + lane]);
            of_offsets[run] = static_cast<int>(offset_codes[run * kLanes + lane]);
        }
        put(reinterpret_cast<uint8_t*>(lanes.blocks[lane]), of_scales, of_offsets);
    }
    const V half_d = InHalf(At(d, 0)), half_dmin = InHalf(At(dmin, 0));
    for (size_t run = 0; run < runs; ++run)
        RunCodes(lanes, grid, run * n, n, hn::Mul(half_d, At(scale_codes, run)),
                 hn::Mul(half_dmin, At(offset_codes, run)));
    PutCodes(lanes, grid, kMostElements);
}

static void SearchQ2K(Lanes& lanes, const BlockGrid& grid) {
    LargeOffset(lanes, grid, 16, 15, 1, 80, [](uint8_t* block, const int* scales, const int* offsets) {
        for (int run = 0; run < 16; ++run) block[run] = static_cast<uint8_t>(scales[run] | offsets[run] << 4);
    });
}

static void SearchQ45K(Lanes& lanes, const BlockGrid& grid) {
    LargeOffset(lanes, grid, 32, 63, 2, 0, [](uint8_t* block, const int* scales, const int* offsets) {
        uint8_t* const to = block + 4;
        for (int run = 0; run < 4; ++run) {
            const int scale = scales[run + 4], offset = offsets[run + 4];
            to[run] = static_cast<uint8_t>(scales[run] | scale >> 4 << 6);
            to[run + 4] = static_cast<uint8_t>(offsets[run] | offset >> 4 << 6);
            to[run + 8] = static_cast<uint8_t>((scale & 15) | (offset & 15) << 4);
        }
    });
}

// Of Q3_K and Q6_K: the scale of each run of 16.
static HWY_INLINE void SearchRuns(const Lanes& lanes, const float* w, float levels, float* scales) {
    for (size_t run = 0; run < 16; ++run) {
        const size_t at = run * 16 * kLanes;
        Put(SearchSymmetric(lanes.x + at, w + at, 16, levels).scale, scales, run);
    }
}

static void SearchQ3K(Lanes& lanes, const BlockGrid& grid) {
    HWY_ALIGN float scales[16 * kLanes];
    HWY_ALIGN float sums[16 * kLanes];
    HWY_ALIGN float d[kLanes];
    const V squares = SumOfSquares(lanes, kMostElements);
    Weigh(lanes, kMostElements, hn::Div(hn::Mul(Constant(2), squares), Constant(kMostElements)));
    SearchRuns(lanes, lanes.weights, 4, scales);
    for (size_t run = 0; run < 16; ++run) Put(SumOf(lanes.weights + run * 16 * kLanes, 16), sums, run);
    const Best best = SearchSymmetric(scales, sums, 16, 32);
    Put(best.scale, d, 0);
    const V half_d = InHalf(best.scale);
    for (size_t run = 0; run < 16; ++run) {
        const V code = NearestFrom(hn::Mul(best.factor, At(scales, run)), -32, 31);
        RunCodes(lanes, grid, run * 16, 16, hn::Mul(half_d, code), Constant(0));
        Put(hn::Add(code, Constant(32)), scales, run);
    }
    for (size_t lane = 0; lane < lanes.count; ++lane) {
        PutHalf(lanes.blocks[lane] + 108, d[lane]);
        auto* const to = reinterpret_cast<uint8_t*>(lanes.blocks[lane]) + 96;
        std::fill_n(to, 12, uint8_t{0});
        for (size_t run = 0; run < 16; ++run) {
            const auto code = static_cast<unsigned>(scales[run * kLanes + lane]);
            to[run % 8] |= static_cast<uint8_t>((code & 15) << run / 8 * 4);
            to[8 + run % 4] |= static_cast<uint8_t>(code >> 4 << run / 4 * 2);
        }
    }
    PutCodes(lanes, grid, kMostElements);
}

static void SearchQ6K(Lanes& lanes, const BlockGrid& grid) {
    HWY_ALIGN float scales[16 * kLanes];
    HWY_ALIGN float d[kLanes];
    SearchRuns(lanes, lanes.importance, 32, scales);
    const Peak peak = PeakOf(scales, 16);
    const auto any = hn::Ge(peak.magnitude, Constant(kNothing));
    const V factor = hn::IfThenElseZero(any, hn::Div(Constant(-128), peak.value));
    Put(hn::IfThenElseZero(any, hn::Div(Constant(1), factor)), d, 0);
    const V half_d = InHalf(At(d, 0));
    for (size_t run = 0; run < 16; ++run) {
        const V code = hn::Min(Nearest(hn::Mul(factor, At(scales, run))), Constant(127));
        RunCodes(lanes, grid, run * 16, 16, hn::Mul(half_d, code), Constant(0));
        Put(code, scales, run);
    }
    for (size_t lane = 0; lane < lanes.count; ++lane) {
        PutHalf(lanes.blocks[lane] + 208, d[lane]);
        auto* const to = reinterpret_cast<int8_t*>(lanes.blocks[lane]) + 192;
        for (size_t run = 0; run < 16; ++run) to[run] = static_cast<int8_t>(scales[run * kLanes + lane]);
    }
    PutCodes(lanes, grid, kMostElements);
}

// Of a run of a table's type; factor 0: the nearest to zero.
static HWY_INLINE void TableCodes(Lanes& lanes, const BlockGrid& grid, size_t begin, V factor) {
    for (size_t i = begin; i < begin + 32; ++i)
        Put(NearestOfTable(grid, hn::Mul(factor, At(lanes.x, i))).code, lanes.codes, i);
}

static HWY_INLINE V MeanForTable(const Lanes& lanes, size_t n) {
    return hn::Mul(SumOfSquares(lanes, n), Constant(2.0F / static_cast<float>(n)));
}

static void SearchIq4Nl(Lanes& lanes, const BlockGrid& grid) {
    HWY_ALIGN float d[kLanes];
    Weigh(lanes, 32, MeanForTable(lanes, 32));
    const V scale = SearchTable(grid, lanes.x, lanes.weights, 32);
    Put(scale, d, 0);
    TableCodes(lanes, grid, 0, Inverse(scale));
    for (size_t lane = 0; lane < lanes.count; ++lane) PutHalf(lanes.blocks[lane], d[lane]);
    PutCodes(lanes, grid, 32);
}

static void SearchIq4Xs(Lanes& lanes, const BlockGrid& grid) {
    HWY_ALIGN float scales[8 * kLanes];
    HWY_ALIGN float d[kLanes];
    Weigh(lanes, kMostElements, MeanForTable(lanes, kMostElements));
    for (size_t run = 0; run < 8; ++run) {
        const size_t at = run * 32 * kLanes;
        Put(SearchTable(grid, lanes.x + at, lanes.weights + at, 32), scales, run);
    }
    const V scale = hn::Div(hn::Neg(PeakOf(scales, 8).value), Constant(32)), inverse = Inverse(scale);
    Put(scale, d, 0);
    for (size_t run = 0; run < 8; ++run) {
        const V code = NearestFrom(hn::Mul(inverse, At(scales, run)), -32, 31);
        TableCodes(lanes, grid, run * 32, Inverse(hn::Mul(scale, code)));
        Put(hn::Add(code, Constant(32)), scales, run);
    }
    for (size_t lane = 0; lane < lanes.count; ++lane) {
        PutHalf(lanes.blocks[lane], d[lane]);
        auto* const to = reinterpret_cast<uint8_t*>(lanes.blocks[lane]) + 2;
        std::fill_n(to, 6, uint8_t{0});
        for (size_t run = 0; run < 8; ++run) {
            const auto code = static_cast<unsigned>(scales[run * kLanes + lane]);
            to[run / 4] |= static_cast<uint8_t>(code >> 4 << run % 4 * 2);
            to[2 + run / 2] |= static_cast<uint8_t>((code & 15) << run % 2 * 4);
        }
    }
    PutCodes(lanes, grid, kMostElements);
}

static Search SearchOf(DType type) {
    switch (type) {
        case DType::Q4_0:
        case DType::Q5_0: return SmallSymmetric;
        case DType::Q4_1:
        case DType::Q5_1: return SmallOffset;
        case DType::Q2_K: return SearchQ2K;
        case DType::Q3_K: return SearchQ3K;
        case DType::Q4_K:
        case DType::Q5_K: return SearchQ45K;
        case DType::Q6_K: return SearchQ6K;
        case DType::IQ4_NL: return SearchIq4Nl;
        case DType::IQ4_XS: return SearchIq4Xs;
        default: return nullptr;
    }
}

static bool HasSearch(DType type) { return SearchOf(type) != nullptr; }

// Mean squares of the rows from `first` on, as far as there are some: many sums at a time, each in the order
// of its row.
static void MeanSquares(std::span<const float> values, size_t row_elements, size_t first, float* out) {
    const size_t rows = std::min(kLanes, values.size() / row_elements - first);
    float sums[kLanes] = {};
    for (size_t i = 0; i < row_elements; ++i) {
        for (size_t row = 0; row < rows; ++row) {
            const float x = values[(first + row) * row_elements + i];
            sums[row] += x * x;
        }
    }
    for (size_t row = 0; row < rows; ++row) out[first + row] = sums[row] / static_cast<float>(row_elements);
}

static void SearchAll(DType type, std::span<const float> values, size_t row_elements,
                      std::span<const float> importance, std::span<std::byte> packed) {
    const BlockGrid& grid = *block_grid(type);
    const Search search = SearchOf(type);
    const size_t n = static_cast<size_t>(block_elements(type)), bytes = block_bytes(type),
                 blocks = values.size() / n, of_row = row_elements / n;
    std::vector<float> mean_squares(values.size() / row_elements);
    for (size_t row = 0; row < mean_squares.size(); row += kLanes)
        MeanSquares(values, row_elements, row, mean_squares.data());
    Lanes lanes;
    for (size_t first = 0; first < blocks; first += kLanes) {
        lanes.count = std::min(kLanes, blocks - first);
        for (size_t lane = 0; lane < kLanes; ++lane) {
            const size_t block = std::min(first + lane, blocks - 1);  // more than there are: once more
            const float *x = values.data() + block * n, *weights = importance.data() + block % of_row * n;
            for (size_t i = 0; i < n; ++i) {
                lanes.x[i * kLanes + lane] = x[i];
                lanes.importance[i * kLanes + lane] = weights[i];
            }
            lanes.mean_squares[lane] = mean_squares[block / of_row];
            lanes.blocks[lane] = packed.data() + block * bytes;
        }
        search(lanes, grid);
    }
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(HasSearch);
HWY_EXPORT(SearchAll);

bool has_block_search(DType type) { return HWY_DYNAMIC_DISPATCH(HasSearch)(type); }

void search_blocks(DType type, std::span<const float> values, size_t row_elements,
                   std::span<const float> importance, std::span<std::byte> packed) {
    HWY_DYNAMIC_DISPATCH(SearchAll)(type, values, row_elements, importance, packed);
}

}  // namespace refold
#endif
