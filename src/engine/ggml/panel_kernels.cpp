// GEMM with panels of F32, F16 or BF16 weights, in float32.
//
// In: panels [panel][column][16 rows], BF16 [panel][column / 2][16 rows][2 columns]; x F32 [token][column].
// Out: F32 [token][row], written or added to.
// One thread; the caller splits panels.
//
// The micro-kernel keeps the sums of T tokens x P panels in registers over all columns: a vector of weights
// is loaded once and meets T broadcast inputs. As many panels as a core's own cache holds meet all tiles of
// tokens before the next panels are read.
#include "engine/ggml/panel_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ggml/panel_kernels.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
// clang-format on

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, Panels::kRows>;
using kernels::PanelProduct;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kVectors = Panels::kRows / kLanes;  // per column of a panel
// Most tokens of a tile: their sums must fit into the registers.
constexpr int kTokens = kVectors == 1 ? 8 : kVectors == 2 ? 6 : kVectors <= 4 ? 3 : 1;

// Per element type: how a vector of weights is read, and how many columns it holds (kInputs).
struct F32 {
    static constexpr int kInputs = 1;
    static constexpr size_t kVectorBytes = kLanes * sizeof(float);
    static HWY_INLINE hn::Vec<D> Load(const std::byte* from, int /*input*/) {
        return hn::LoadU(D(), reinterpret_cast<const float*>(from));
    }
};
struct F16 {
    static constexpr int kInputs = 1;
    static constexpr size_t kVectorBytes = kLanes * sizeof(hwy::float16_t);
    static HWY_INLINE hn::Vec<D> Load(const std::byte* from, int /*input*/) {
        return hn::PromoteTo(
            D(), hn::LoadU(hn::Rebind<hwy::float16_t, D>(), reinterpret_cast<const hwy::float16_t*>(from)));
    }
};
struct Bf16 {
    static constexpr int kInputs = 2;
    static constexpr size_t kVectorBytes = kLanes * sizeof(uint32_t);
    static HWY_INLINE hn::Vec<D> Load(const std::byte* from, int input) {
        const hn::RebindToUnsigned<D> u;
        const auto pairs = hn::LoadU(u, reinterpret_cast<const uint32_t*>(from));
        return hn::BitCast(D(),
                           input == 0 ? hn::ShiftLeft<16>(pairs) : hn::And(pairs, hn::Set(u, 0xFFFF0000U)));
    }
};

// Micro-kernel: T tokens from `token` on times P panels from `panel` on.
template <class Type, int T, int P>
static HWY_INLINE void MultiplyTile(const PanelProduct& m, int64_t panel, int64_t token) {
    const D d;
    constexpr int kWidth = P * kVectors;
    hn::Vec<D> sums[T * kWidth];
    for (auto& sum : sums) sum = hn::Zero(d);
    const float* x[T];
    for (int t = 0; t < T; ++t) x[t] = m.x.floats + (token + t) * m.x.stride;
    const std::byte* from = m.weights + static_cast<size_t>(panel) * m.panel_bytes;
    for (int64_t c = 0; c < m.columns; c += Type::kInputs) {
        for (int i = 0; i < Type::kInputs && c + i < m.columns; ++i) {
            hn::Vec<D> weights[kWidth];
            for (int p = 0; p < P; ++p) {
                for (int v = 0; v < kVectors; ++v) {
                    weights[p * kVectors + v] =
                        Type::Load(from + static_cast<size_t>(p) * m.panel_bytes + v * Type::kVectorBytes, i);
                }
            }
            for (int t = 0; t < T; ++t) {
                const auto input = hn::Set(d, x[t][c + i]);
                for (int v = 0; v < kWidth; ++v)
                    sums[t * kWidth + v] = hn::MulAdd(weights[v], input, sums[t * kWidth + v]);
            }
        }
        from += kVectors * Type::kVectorBytes;
    }
    for (int t = 0; t < T; ++t) {
        float* y = m.y + (token + t) * m.y_stride + panel * Panels::kRows;
        for (int p = 0; p < P; ++p, y += Panels::kRows) {
            const auto* own = sums + t * kWidth + p * kVectors;
            const int64_t rows = m.rows - (panel + p) * Panels::kRows;
            if (rows < Panels::kRows) {
                float panel_sums[Panels::kRows];
                for (int v = 0; v < kVectors; ++v) hn::StoreU(own[v], d, panel_sums + v * kLanes);
                for (int64_t i = 0; i < rows; ++i) y[i] = m.add ? y[i] + panel_sums[i] : panel_sums[i];
                continue;
            }
            for (int v = 0; v < kVectors; ++v) {
                float* to = y + v * kLanes;
                hn::StoreU(m.add ? hn::Add(own[v], hn::LoadU(d, to)) : own[v], d, to);
            }
        }
    }
}

template <class Type, int T>
static void MultiplyTokens(const PanelProduct& m, int64_t& token) {
    // Few tokens take several panels, so that there are enough independent sums to hide their latency.
    constexpr int kPanelsPerTile = kVectors == 1 ? (T == 8 ? 2 : 4) : kVectors == 2 && T <= 2 ? 2 : 1;
    for (; token + T <= m.x.tokens; token += T) {
        int64_t panel = m.range.first;
        for (; panel + kPanelsPerTile <= m.range.last; panel += kPanelsPerTile)
            MultiplyTile<Type, T, kPanelsPerTile>(m, panel, token);
        for (; panel < m.range.last; ++panel) MultiplyTile<Type, T, 1>(m, panel, token);
    }
}

template <class Type>
static void MultiplyOfType(const PanelProduct& all) {
    constexpr int64_t kCachedBytes = 256 * 1024;
    const int64_t panels = std::max<int64_t>(4, kCachedBytes / static_cast<int64_t>(all.panel_bytes) / 4 * 4);
    PanelProduct m = all;
    for (int64_t first = all.range.first; first < all.range.last; first += panels) {
        m.range = {first, std::min(first + panels, all.range.last)};
        int64_t token = 0;
        if constexpr (kTokens >= 8) MultiplyTokens<Type, 8>(m, token);
        if constexpr (kTokens >= 6) {
            MultiplyTokens<Type, 6>(m, token);
            MultiplyTokens<Type, 4>(m, token);
        }
        if constexpr (kTokens >= 3) {
            MultiplyTokens<Type, 3>(m, token);
            MultiplyTokens<Type, 2>(m, token);
        }
        MultiplyTokens<Type, 1>(m, token);
    }
}

static void MultiplyPanels(PanelType type, const PanelProduct& m) {
    switch (type) {
        case PanelType::f32: return MultiplyOfType<F32>(m);
        case PanelType::f16: return MultiplyOfType<F16>(m);
        case PanelType::bf16: return MultiplyOfType<Bf16>(m);
        case PanelType::q8: return;  // has kernels of its own (row_panels.h)
    }
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(MultiplyPanels);

void kernels::multiply_panels(PanelType type, const PanelProduct& product) {
    HWY_DYNAMIC_DISPATCH(MultiplyPanels)(type, product);
}

}  // namespace refold
#endif
