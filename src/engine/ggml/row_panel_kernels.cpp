// Products of row panels.
//
// In: a panel [block][16 rows] as row_panels.h describes it, or unpacked to bytes; inputs int8
// [token][column] with F32 scales [token][group] and sums. Out: F32 [token][row]. One thread; the caller
// splits panels.
//
// A vector holds four columns of kLanes rows, sixteen where vectors have 64 bytes, and meets four broadcast
// bytes of each of up to eight tokens (vpdpbusd, or what the CPU has in its place). Bytes are kZero above the
// numbers that they stand for, so the integer sums start at -kZero times the sum of the inputs. Integer sums
// live for one half of a group or for a group, float sums (one vector per token) for a row. Few tokens meet
// the panel as it is stored, and the next one is prefetched; many meet one that was unpacked before, with the
// same numbers in the same order.
#include "engine/ggml/row_panel_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ggml/row_panel_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include "engine/ggml/row_panel_types-inl.h"
#include "engine/ggml/row_panel_grids-inl.h"
#include "engine/ggml/vnni-inl.h"
// clang-format on

#include <array>
#include <cstring>
#include <utility>

HWY_BEFORE_NAMESPACE();
#if REFOLD_HAS_VNNI
#pragma GCC target("avx512vnni")
#endif
namespace refold::HWY_NAMESPACE {

using row_panels::Kernels;
using row_panels::kRows;
using row_panels::Panel;
using row_panels::Product;
using row_panels::Unpacked;

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

static const Kernels* KernelsOf(ggml_type) { return nullptr; }

#else
namespace {

using Ints = hn::Vec<DInts>;
using DShorts = hn::Repartition<int16_t, DWords>;
using DQuants = hn::Repartition<int8_t, DWords>;
constexpr int64_t kParts = kRows / kLanes;

// Whether products of bytes above 127 are products of signed numbers, which need no kZero.
#if REFOLD_HAS_VNNI
constexpr bool kSigned = false;
#else
constexpr bool kSigned = true;
#endif

#if HWY_ARCH_X86 && !REFOLD_HAS_VNNI
// Sums of two products, unsigned with signed; these must fit into 16 bits.
HWY_INLINE hn::Vec<DShorts> PairsOfProducts(hn::Vec<DBytes> w, hn::Vec<DQuants> x) {
#if HWY_TARGET <= HWY_AVX3
    return hn::Vec<DShorts>{_mm512_maddubs_epi16(w.raw, x.raw)};
#elif HWY_TARGET == HWY_AVX2
    return hn::Vec<DShorts>{_mm256_maddubs_epi16(w.raw, x.raw)};
#else
    return hn::Vec<DShorts>{_mm_maddubs_epi16(w.raw, x.raw)};
#endif
}
HWY_INLINE Ints PairsOfShorts(hn::Vec<DShorts> x) {
    const auto ones = hn::Set(DShorts(), 1);
#if HWY_TARGET <= HWY_AVX3
    return Ints{_mm512_madd_epi16(x.raw, ones.raw)};
#elif HWY_TARGET == HWY_AVX2
    return Ints{_mm256_madd_epi16(x.raw, ones.raw)};
#else
    return Ints{_mm_madd_epi16(x.raw, ones.raw)};
#endif
}
#endif

#if HWY_ARCH_X86 && !REFOLD_HAS_VNNI
// Keeps the compiler from adding in another order, for which it would store all products first.
template <class V>
HWY_INLINE V InOrder(V sum) {
    asm("" : "+v"(sum.raw));
    return sum;
}

// x, negative where `sign` is; anything where it is zero.
HWY_INLINE hn::Vec<DQuants> WithSignOf(hn::Vec<DQuants> x, hn::Vec<DQuants> sign) {
#if HWY_TARGET <= HWY_AVX3
    return hn::IfThenElse(hn::Lt(sign, hn::Zero(DQuants())), hn::Neg(x), x);
#elif HWY_TARGET == HWY_AVX2
    return hn::Vec<DQuants>{_mm256_sign_epi8(x.raw, sign.raw)};
#else
    return hn::Vec<DQuants>{_mm_sign_epi8(x.raw, sign.raw)};
#endif
}
#endif

// Quads of bytes up to `most` whose sums of two products fit into 16 bits together, at most `limit`: a power
// of two.
constexpr int QuadsInShorts(int most, int limit) {
    constexpr int kLargestInput = 127;
    int quads = 1;
    while (2 * quads <= limit && 2 * quads * 2 * most * kLargestInput <= 32767) quads *= 2;
    return quads;
}

// sum + four products: bytes `w` with the signed bytes of `x`. `wide`: w goes beyond 127.
template <bool wide>
HWY_INLINE Ints Dot(Ints sum, Words w, Ints x) {
#if REFOLD_HAS_VNNI
    return Ints{_mm512_dpbusd_epi32(sum.raw, w.raw, x.raw)};
#elif HWY_ARCH_X86
    const DQuants q;
    auto quants = hn::BitCast(q, x);
    auto bytes = hn::BitCast(DBytes(), w);
    if constexpr (wide) {
        // |w - 128| with x of its sign.
        const auto moved = hn::BitCast(q, hn::Xor(bytes, hn::Set(DBytes(), 0x80)));
        bytes = hn::BitCast(DBytes(), hn::Abs(moved));
        quants = WithSignOf(quants, moved);
    }
    return InOrder(hn::Add(sum, PairsOfShorts(PairsOfProducts(bytes, quants))));
#elif HWY_ARCH_ARM_A64
    auto bytes = hn::BitCast(DBytes(), w);
    if constexpr (wide) bytes = hn::Xor(bytes, hn::Set(DBytes(), 0x80));
    const int8x16_t a = vreinterpretq_s8_u8(bytes.raw), b = vreinterpretq_s8_s32(x.raw);
#if defined(__ARM_FEATURE_DOTPROD)
    return Ints{vdotq_s32(sum.raw, a, b)};
#else
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return Ints{vpadalq_s16(sum.raw, vpaddq_s16(low, high))};
#endif
#else
#error "no products of bytes for this CPU"
#endif
}

// Lanes [part * kLanes, (part + 1) * kLanes) of a panel as it is stored, group by group.
template <class Type>
class Stored : public Type {
public:
    // Begins at group `first` of the row.
    HWY_INLINE Stored(const Panel& panel, int64_t part, int64_t first, size_t ahead)
        : next_{panel.odd, panel.dwords}, ahead_(ahead), group_(first % Type::kGroups) {
        const auto blocks = static_cast<size_t>(first / Type::kGroups);
        next_.odd += blocks * kOdd * kRows + static_cast<size_t>(part * kLanes) * kOdd;
        next_.dwords += blocks * kDwords + static_cast<size_t>(part * kLanes) * sizeof(uint32_t);
        if (group_ != 0) enter_block();
    }

    HWY_INLINE void next() {
        if (group_ == Type::kGroups) group_ = 0;
        if (group_ == 0) enter_block();
        Type::group(group_++);
    }

private:
    HWY_INLINE void enter_block() {
        Type::enter(next_);
        for (size_t i = 0; ahead_ != 0 && i < kDwords; i += 64) __builtin_prefetch(next_.dwords + ahead_ + i);
        next_.odd += kOdd * kRows;
        next_.dwords += kDwords;
    }

    static constexpr size_t kOdd = Type::kBytes % sizeof(uint32_t);
    static constexpr size_t kDwords = (Type::kBytes - kOdd) * kRows;

    Block next_;
    size_t ahead_;
    int64_t group_;
};

// The same of a panel that was unpacked.
template <int scales, int minimums, int zero, int most>
class Bytes {
public:
    static constexpr int kScales = scales, kMinimums = minimums, kZero = zero, kMost = most;
    HWY_INLINE Bytes(const Unpacked& panel, int64_t part)
        : quants_(panel.quants - kInputGroup * kRows + part * kLanes * 4),
          scales_(panel.scales - kScales * kRows + part * kLanes),
          minimums_(panel.minimums - kMinimums * kRows + part * kLanes) {}

    HWY_INLINE void next() {
        quants_ += kInputGroup * kRows;
        scales_ += kScales * kRows;
        minimums_ += kMinimums * kRows;
    }
    HWY_INLINE Words quad(int j) const {
        return hn::Load(DWords(), reinterpret_cast<const uint32_t*>(quants_ + j * kDwordStride));
    }
    HWY_INLINE Floats scale(int h) const { return hn::Load(DFloats(), scales_ + h * kRows); }
    HWY_INLINE Floats minimum(int h) const { return hn::Load(DFloats(), minimums_ + h * kRows); }

private:
    const std::byte* quants_;
    const float *scales_, *minimums_;
};

template <class Type>
void Unpack(const Panel& panel, int64_t first_group, int64_t groups, const Unpacked& out) {
    for (int64_t part = 0; part < kParts; ++part) {
        Stored<Type> from(panel, part, first_group, 0);
        std::byte* quants = out.quants + part * kLanes * 4;
        float *scales = out.scales + part * kLanes, *minimums = out.minimums + part * kLanes;
        for (int64_t g = 0; g < groups; ++g, quants += kInputGroup * kRows) {
            from.next();
            for (int j = 0; j < 8; ++j)
                hn::Store(from.quad(j), DWords(), reinterpret_cast<uint32_t*>(quants + j * kDwordStride));
            for (int h = 0; h < Type::kScales; ++h, scales += kRows)
                hn::Store(from.scale(h), DFloats(), scales);
            for (int h = 0; h < Type::kMinimums; ++h, minimums += kRows)
                hn::Store(from.minimum(h), DFloats(), minimums);
        }
    }
}

// Writes the sums of one token for row `fold` of each stored row of a part.
HWY_INLINE void Write(Floats sums, const Product& product, int64_t part, int64_t token, int64_t fold) {
    const DFloats d;
    const int64_t rows = std::min(kLanes, product.rows - part * kLanes);
    float* to = product.data + static_cast<size_t>(token) * product.stride +
                static_cast<size_t>(part * kLanes * product.folds + fold);
    if (product.folds == 1 && rows == kLanes) {
        hn::StoreU(product.add ? hn::Add(sums, hn::LoadU(d, to)) : sums, d, to);
        return;
    }
    HWY_ALIGN float all[kLanes];
    hn::Store(sums, d, all);
    for (int64_t i = 0; i < rows; ++i, to += product.folds) *to = product.add ? all[i] + *to : all[i];
}

constexpr int Log2(int power) { return power <= 1 ? 0 : 1 + Log2(power / 2); }

#if HWY_ARCH_X86 && !REFOLD_HAS_VNNI
// Quads [j, j + quads) times T tokens, added in 16 bits first: a third less to do than by Dot().
template <int T, int quads, class Source, class Input, class Add>
HWY_INLINE void AddTogether(const Source& source, int j, const Input& input, const Add& add) {
    hn::Vec<DShorts> sums[T];
#pragma GCC unroll 8
    for (int i = 0; i < quads; ++i) {
        const auto columns = hn::BitCast(DBytes(), source.quad(j + i));
        for (int t = 0; t < T; ++t) {
            const auto products = PairsOfProducts(columns, hn::BitCast(DQuants(), input(t, j + i)));
            sums[t] = i == 0 ? products : InOrder(hn::Add(sums[t], products));
        }
    }
    for (int t = 0; t < T; ++t) add(t, PairsOfShorts(sums[t]));
}
#endif

// T tokens times a part of a panel.
template <int T, class Source>
HWY_INLINE void Multiply(Source source, const Product& product, int64_t part) {
    const DInts di;
    const DFloats df;
    constexpr bool kWide = Source::kZero == 128, kStartsBelow = Source::kZero > 0 && !(kWide && kSigned);
    // Independent integer sums of a token: of the halves of a group, or where one chain of sums would be
    // bound by its latency.
    constexpr int S = Source::kScales, C = S == 2 || T <= 2 ? 2 : 1;
    // Halves of a group have sums of their own, which come before that of the group.
    constexpr int kSum = S == 2 ? 0 : 2, kValue = Source::kMinimums == 2 ? 0 : 2;
    const Inputs& x = product.inputs;
    for (int64_t fold = 0; fold < product.folds; ++fold) {
        const int8_t* quants = x.quants + product.first * x.groups * kInputGroup;
        const float* scales = x.scales + product.first * x.groups;
        const int32_t* sums_of_inputs = x.negative_sums + product.first * x.groups * 3 + kSum;
        const float* values = x.values + product.first * x.groups * 3 + kValue;
        Floats sums[T];
        for (int t = 0; t < T; ++t) sums[t] = hn::Zero(df);
        for (int64_t g = 0; g < product.groups;
             ++g, quants += kInputGroup, ++scales, sums_of_inputs += 3, values += 3) {
            source.next();
            Ints dots[T][C];
            for (int t = 0; t < T; ++t) {
                const int32_t* sum = sums_of_inputs + t * x.groups * 3;
                for (int c = 0; c < C; ++c) {
                    dots[t][c] = kStartsBelow && c < S
                                     ? hn::ShiftLeft<Log2(Source::kZero)>(hn::Set(di, sum[c]))
                                     : hn::Zero(di);
                }
            }
            const auto input = [&](int t, int j) {
                int32_t four;
                memcpy(&four, quants + t * x.groups * kInputGroup + j * 4, sizeof(four));
                return hn::Set(di, four);
            };
#if HWY_ARCH_X86 && !REFOLD_HAS_VNNI
            constexpr int kTogether = kWide ? 1 : QuadsInShorts(Source::kMost, 8 / C);
#else
            constexpr int kTogether = 1;
#endif
// Otherwise sums of halves are in memory.
#pragma GCC unroll 8
            for (int j = 0; j < 8; j += kTogether) {
                if constexpr (kTogether == 1) {
                    const Words columns = source.quad(j);
                    for (int t = 0; t < T; ++t) {
                        Ints& dot = dots[t][j * C / 8];
                        dot = Dot<kWide>(dot, columns, input(t, j));
                    }
                } else {
                    AddTogether<T, kTogether>(source, j, input, [&](int t, Ints sum) {
                        Ints& dot = dots[t][j * C / 8];
                        dot = hn::Add(dot, sum);
                    });
                }
            }
            for (int t = 0; t < T; ++t) {
                const Floats of_input = hn::Set(df, scales[t * x.groups]);
                if constexpr (S == 2) {
                    const Floats second = hn::Mul(hn::ConvertTo(df, dots[t][1]), source.scale(1)),
                                 both = hn::MulAdd(hn::ConvertTo(df, dots[t][0]), source.scale(0), second);
                    sums[t] = hn::MulAdd(both, of_input, sums[t]);
                } else {
                    const Ints dot = C == 1 ? dots[t][0] : hn::Add(dots[t][0], dots[t][C - 1]);
                    sums[t] = hn::MulAdd(hn::ConvertTo(df, dot), hn::Mul(source.scale(0), of_input), sums[t]);
                }
                for (int m = 0; m < Source::kMinimums; ++m)
                    sums[t] =
                        hn::NegMulAdd(source.minimum(m), hn::Set(df, values[t * x.groups * 3 + m]), sums[t]);
            }
        }
        for (int t = 0; t < T; ++t) Write(sums[t], product, part, product.first + t, fold);
    }
}

template <class Type, int T>
void MultiplyStored(const Panel& panel, const Product& product, size_t ahead) {
    for (int64_t part = 0; part < kParts; ++part)
        Multiply<T>(Stored<Type>(panel, part, product.first_group, part == 0 ? ahead : 0), product, part);
}

template <class Bytes, int T>
void MultiplyBytes(const Unpacked& panel, const Product& product) {
    for (int64_t part = 0; part < kParts; ++part) Multiply<T>(Bytes(panel, part), product, part);
}

template <class Type, size_t... T>
constexpr Kernels MakeKernels(std::index_sequence<T...>) {
    return {Type::kScales,
            Type::kMinimums,
            Unpack<Type>,
            {MultiplyStored<Type, static_cast<int>(T) + 1>...},
            {MultiplyBytes<Bytes<Type::kScales, Type::kMinimums, Type::kZero, Type::kMost>,
                           static_cast<int>(T) + 1>...}};
}

template <class... Types>
const Kernels* Find(ggml_type type) {
    static constexpr std::array all = {
        std::pair{Types::kType, MakeKernels<Types>(std::make_index_sequence<8>())}...};
    for (const auto& [of, kernels] : all)
        if (of == type) return &kernels;
    return nullptr;
}

}  // namespace

static const Kernels* KernelsOf(ggml_type type) {
#if REFOLD_HAS_VNNI
    if (const auto* grids = Find<Iq2Xxs, Iq2Xs, Iq2S, Iq3Xxs, Iq3S, Iq1S, Iq1M>(type)) return grids;
#endif
    return Find<Q40, Q41, Q50, Q51, Q80, Iq4Nl, Mxfp4, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Xs>(type);
}

#endif

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(KernelsOf);

namespace row_panels {

const Kernels* kernels_of(ggml_type type) { return HWY_DYNAMIC_DISPATCH(KernelsOf)(type); }

}  // namespace row_panels
}  // namespace refold
#endif
