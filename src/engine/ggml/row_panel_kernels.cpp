// Products of row panels by AVX-512 VNNI.
//
// In: a panel [block][16 rows] as row_panels.h describes it, or unpacked to bytes; inputs int8
// [token][column] with F32 scales [token][group] and sums. Out: F32 [token][row]. One thread; the caller
// splits panels.
//
// vpdpbusd multiplies unsigned by signed bytes: a vector holds four columns of sixteen rows and meets four
// broadcast bytes of each of up to eight tokens. Bytes are kZero above the numbers that they stand for, so
// the integer sums start at -kZero times the sum of the inputs. Types with minimums have no kZero. Integer
// sums live for one half of a group or for a group, float sums (one vector per token) for a row. Few tokens
// meet the panel as it is stored, and the next one is prefetched; many meet one that was unpacked before,
// with the same numbers in the same order.
#include "engine/ggml/row_panel_kernels.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <array>
#include <cstring>
#include <utility>

#include "engine/ggml/row_panel_types.h"

namespace refold::row_panels {
namespace {

// A panel as it is stored, group by group.
template <class Type>
class Stored : public Type {
public:
    static constexpr int kScales = Type::kScales;
    // Begins at group `first` of the row.
    REFOLD_VNNI Stored(const Panel& panel, int64_t first, size_t ahead)
        : next_{panel.odd, panel.dwords}, ahead_(ahead), group_(first % Type::kGroups) {
        const auto blocks = static_cast<size_t>(first / Type::kGroups);
        next_.odd += blocks * kOdd;
        next_.dwords += blocks * kDwords;
        if (group_ != 0) enter_block();
    }

    REFOLD_VNNI void next() {
        if (group_ == Type::kGroups) group_ = 0;
        if (group_ == 0) enter_block();
        Type::group(group_++);
    }
    static constexpr int zero() { return Type::kZero; }

private:
    REFOLD_VNNI void enter_block() {
        Type::enter(next_);
        for (size_t i = 0; ahead_ != 0 && i < kDwords; i += 64) __builtin_prefetch(next_.dwords + ahead_ + i);
        next_.odd += kOdd;
        next_.dwords += kDwords;
    }

    static constexpr size_t kOdd = Type::kBytes % sizeof(uint32_t) * kRows;  // bytes of a block of all rows
    static constexpr size_t kDwords = Type::kBytes / sizeof(uint32_t) * sizeof(uint32_t) * kRows;

    Block next_;
    size_t ahead_;
    int64_t group_;
};

// A panel that was unpacked.
template <int scales, bool minimums>
class Bytes {
public:
    static constexpr int kScales = scales;
    static constexpr bool kMinimums = minimums;
    Bytes(const Unpacked& panel, int zero)
        : quants_(panel.quants - kInputGroup * kRows),
          scales_(panel.scales - kScales * kRows),
          minimums_(panel.minimums - kScales * kRows),
          zero_(zero) {}

    void next() {
        quants_ += kInputGroup * kRows;
        scales_ += kScales * kRows;
        minimums_ += kScales * kRows;
    }
    int zero() const { return zero_; }
    REFOLD_VNNI __m512i quad(int j) const { return _mm512_load_si512(quants_ + j * 64); }
    REFOLD_VNNI __m512 scale(int h) const { return _mm512_load_ps(scales_ + h * kRows); }
    REFOLD_VNNI __m512 minimum(int h) const { return _mm512_load_ps(minimums_ + h * kRows); }

private:
    const std::byte* quants_;
    const float *scales_, *minimums_;
    int zero_;
};

template <class Type>
REFOLD_VNNI void unpack(const Panel& panel, int64_t first_group, int64_t groups, const Unpacked& out) {
    Stored<Type> from(panel, first_group, 0);
    std::byte* quants = out.quants;
    float *scales = out.scales, *minimums = out.minimums;
    for (int64_t g = 0; g < groups; ++g, quants += kInputGroup * kRows) {
        from.next();
        for (int j = 0; j < 8; ++j) _mm512_store_si512(quants + j * 64, from.quad(j));
        for (int h = 0; h < Type::kScales; ++h, scales += kRows) _mm512_store_ps(scales, from.scale(h));
        for (int h = 0; h < Type::kScales && Type::kMinimums; ++h, minimums += kRows)
            _mm512_store_ps(minimums, from.minimum(h));
    }
}

// Writes the sums of one token for row `fold` of each stored row.
REFOLD_VNNI inline void write(__m512 sums, const Product& product, int64_t token, int64_t fold) {
    float* to = product.data + static_cast<size_t>(token) * product.stride + fold;
    const auto rows = static_cast<__mmask16>((1U << product.rows) - 1);
    if (product.folds > 1) {
        const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        const __m512i places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(product.folds)));
        if (product.add)
            sums = _mm512_add_ps(sums, _mm512_mask_i32gather_ps(sums, rows, places, to, sizeof(float)));
        _mm512_mask_i32scatter_ps(to, rows, places, sums, sizeof(float));
        return;
    }
    if (product.add) sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(rows, to));
    _mm512_mask_storeu_ps(to, rows, sums);
}

// T tokens times a panel.
template <int T, class Source>
REFOLD_VNNI inline void multiply(Source source, const Product& product) {
    // Independent integer sums of a token: of the halves of a group, or where one chain of sums would be
    // bound by its latency.
    constexpr int S = Source::kScales, C = S == 2 || T <= 2 ? 2 : 1;
    const Inputs& x = product.inputs;
    for (int64_t fold = 0; fold < product.folds; ++fold) {
        const int8_t* quants = x.quants + product.first * x.groups * kInputGroup;
        const float* scales = x.scales + product.first * x.groups;
        // Halves of a group have sums of their own, which come before that of the group.
        constexpr int kSum = S == 2 ? 0 : 2;
        const int32_t* sums_of_inputs = x.sums + product.first * x.groups * 3 + kSum;
        const float* values = x.values + product.first * x.groups * 3 + kSum;
        __m512 sums[T];
        for (int t = 0; t < T; ++t) sums[t] = _mm512_setzero_ps();
        for (int64_t g = 0; g < product.groups;
             ++g, quants += kInputGroup, ++scales, sums_of_inputs += 3, values += 3) {
            source.next();
            __m512i dots[T][C];
            for (int t = 0; t < T; ++t) {
                const int32_t* sum = sums_of_inputs + t * x.groups * 3;
                for (int c = 0; c < C; ++c)
                    dots[t][c] = Source::kMinimums || c >= S ? _mm512_setzero_si512()
                                                             : _mm512_set1_epi32(-source.zero() * sum[c]);
            }
            for (int j = 0; j < 8; ++j) {
                const __m512i columns = source.quad(j);
                for (int t = 0; t < T; ++t) {
                    int32_t four;
                    memcpy(&four, quants + t * x.groups * kInputGroup + j * 4, sizeof(four));
                    __m512i& dot = dots[t][j * C / 8];
                    dot = _mm512_dpbusd_epi32(dot, columns, _mm512_set1_epi32(four));
                }
            }
            for (int s = 0; s < S; ++s) {
                const __m512 scale = source.scale(s), minimum = source.minimum(s);
                for (int t = 0; t < T; ++t) {
                    const float of_input = scales[t * x.groups];
                    const __m512i dot =
                        S == 2 || C == 1 ? dots[t][s] : _mm512_add_epi32(dots[t][0], dots[t][C - 1]);
                    sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot),
                                              _mm512_mul_ps(scale, _mm512_set1_ps(of_input)), sums[t]);
                    if constexpr (Source::kMinimums) {
                        const __m512 value = _mm512_set1_ps(values[t * x.groups * 3 + s]);
                        sums[t] = _mm512_fnmadd_ps(minimum, value, sums[t]);
                    }
                }
            }
        }
        for (int t = 0; t < T; ++t) write(sums[t], product, product.first + t, fold);
    }
}

template <class Type, int T>
REFOLD_VNNI void multiply_stored(const Panel& panel, const Product& product, size_t ahead) {
    multiply<T>(Stored<Type>(panel, product.first_group, ahead), product);
}

template <int S, bool M, int T>
REFOLD_VNNI void multiply_bytes(const Unpacked& panel, const Product& product, int zero) {
    multiply<T>(Bytes<S, M>(panel, zero), product);
}

template <class Type, size_t... T>
constexpr Kernels kernels(std::index_sequence<T...>) {
    return {Type::kScales,
            Type::kMinimums,
            Type::kZero,
            unpack<Type>,
            {multiply_stored<Type, 1>, multiply_stored<Type, 2>, multiply_stored<Type, 3>,
             multiply_stored<Type, 4>},
            {multiply_bytes<Type::kScales, Type::kMinimums, static_cast<int>(T) + 1>...}};
}

template <class... Types>
struct List {
    static const Kernels* find(ggml_type type) {
        static constexpr std::array all = {
            std::pair{Types::kType, kernels<Types>(std::make_index_sequence<8>())}...};
        for (const auto& [of, kernels] : all)
            if (of == type) return &kernels;
        return nullptr;
    }
};

using All = List<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS>;

bool available() {
    static const bool has =
        __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
        __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
        __builtin_cpu_supports("avx512vnni") != 0;
    return has;
}

}  // namespace

const Kernels* kernels_of(ggml_type type) { return available() ? All::find(type) : nullptr; }

}  // namespace refold::row_panels

#else

namespace refold::row_panels {

const Kernels* kernels_of(ggml_type) { return nullptr; }

}  // namespace refold::row_panels

#endif
