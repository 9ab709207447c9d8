#include "engine/ggml/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/ggml/attention.cpp"
// clang-format off
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>

#ifndef REFOLD_ATTENTION_ROWS
#define REFOLD_ATTENTION_ROWS
namespace refold {

// Rows [0, count) of keys or values of one head, `stride` bytes apart, and `heads` vectors of head_dim
// floats.
struct CachedRows {
    const void* data;
    size_t stride;
    int64_t count, head_dim;
};

// What turns products into scores for one group of query heads.
struct ScoreRules {
    float scale, softcap;
    const float* slopes;  // ALiBi, one per query head; null without
    int64_t distance;     // of the query to the first row
};

}  // namespace refold
#endif

HWY_BEFORE_NAMESPACE();
namespace refold::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;

static HWY_INLINE hn::Vec<D> LoadFloats(D d, const float* from) { return hn::LoadU(d, from); }
static HWY_INLINE hn::Vec<D> LoadFloats(D d, const hwy::float16_t* from) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), from));
}
static float Scalar(const float* from) { return *from; }
static float Scalar(const hwy::float16_t* from) { return ggml_fp16_to_fp32(from->bits); }

template <typename T>
static const T* Row(const CachedRows& rows, int64_t i) {
    return reinterpret_cast<const T*>(static_cast<const char*>(rows.data) +
                                      static_cast<size_t>(i) * rows.stride);
}

// scores[h][i] = scale * <query h, key i> for N query heads that share the keys.
template <int N, typename T>
static void Scores(const CachedRows& keys, const float* queries, float scale, float* scores,
                   int64_t scores_stride) {
    const D d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const int64_t whole = keys.head_dim / lanes * lanes;
    for (int64_t i = 0; i < keys.count; ++i) {
        const T* key = Row<T>(keys, i);
        hn::Vec<D> sums[N];
        for (int h = 0; h < N; ++h) sums[h] = hn::Zero(d);
        for (int64_t c = 0; c < whole; c += lanes) {
            const auto k = LoadFloats(d, key + c);
            for (int h = 0; h < N; ++h)
                sums[h] = hn::MulAdd(k, hn::LoadU(d, queries + h * keys.head_dim + c), sums[h]);
        }
        for (int h = 0; h < N; ++h) {
            float sum = hn::GetLane(hn::SumOfLanes(d, sums[h]));
            for (int64_t c = whole; c < keys.head_dim; ++c)
                sum += Scalar(key + c) * queries[h * keys.head_dim + c];
            scores[h * scores_stride + i] = sum * scale;
        }
    }
}

// out[h] = sum over i of weights[h][i] * value i, for V vectors of columns from `first` on: the sums stay in
// registers.
template <int N, int V, typename T>
static void WeightedColumns(const CachedRows& values, int64_t first, const float* weights,
                            int64_t weights_stride, float* out, int64_t out_stride) {
    const D d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    hn::Vec<D> sums[N][V];
    for (auto& row : sums) {
        for (auto& sum : row) sum = hn::Zero(d);
    }
    for (int64_t i = 0; i < values.count; ++i) {
        const T* value = Row<T>(values, i) + first;
        hn::Vec<D> v[V];
        for (int64_t k = 0; k < V; ++k) v[k] = LoadFloats(d, value + k * lanes);
        for (int h = 0; h < N; ++h) {
            const auto weight = hn::Set(d, weights[h * weights_stride + i]);
            for (int k = 0; k < V; ++k) sums[h][k] = hn::MulAdd(weight, v[k], sums[h][k]);
        }
    }
    for (int h = 0; h < N; ++h) {
        for (int64_t k = 0; k < V; ++k) hn::StoreU(sums[h][k], d, out + h * out_stride + first + k * lanes);
    }
}

template <int N, typename T>
static void WeightedSum(const CachedRows& values, const float* weights, int64_t weights_stride, float* out,
                        int64_t out_stride) {
    const auto lanes = static_cast<int64_t>(hn::Lanes(D()));
    int64_t c = 0;
    for (; c + 4 * lanes <= values.head_dim; c += 4 * lanes)
        WeightedColumns<N, 4, T>(values, c, weights, weights_stride, out, out_stride);
    for (; c + lanes <= values.head_dim; c += lanes)
        WeightedColumns<N, 1, T>(values, c, weights, weights_stride, out, out_stride);
    for (; c < values.head_dim; ++c) {
        for (int h = 0; h < N; ++h) {
            float sum = 0;
            for (int64_t i = 0; i < values.count; ++i)
                sum += weights[h * weights_stride + i] * Scalar(Row<T>(values, i) + c);
            out[h * out_stride + c] = sum;
        }
    }
}

// x[i] = exp(x[i] - maximum); returns their sum.
static float ExpInPlace(float* x, int64_t count, float maximum) {
    const D d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto shift = hn::Set(d, maximum);
    auto sums = hn::Zero(d);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
        const auto e = hn::Exp(d, hn::Sub(hn::LoadU(d, x + i), shift));
        hn::StoreU(e, d, x + i);
        sums = hn::Add(sums, e);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, sums));
    for (; i < count; ++i) sum += x[i] = std::exp(x[i] - maximum);
    return sum;
}

static void CapScores(float* x, int64_t count, float cap) {
    const D d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const auto in = hn::Set(d, 1.0F / cap), out = hn::Set(d, cap);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes)
        hn::StoreU(hn::Mul(out, hn::Tanh(d, hn::Mul(in, hn::LoadU(d, x + i)))), d, x + i);
    for (; i < count; ++i) x[i] = cap * std::tanh(x[i] / cap);
}

// Unnormalised attention of N query heads; `out` per head: maximum, sum of weights, weighted values.
template <int N, typename T>
static void AttendHeads(const CachedRows& keys, const CachedRows& values, const float* queries,
                        const ScoreRules& rules, float* scores, float* out) {
    const int64_t stride = 2 + keys.head_dim;
    Scores<N, T>(keys, queries, rules.scale, scores, keys.count);
    for (int h = 0; h < N; ++h) {
        float* row = scores + h * keys.count;
        if (rules.softcap > 0) CapScores(row, keys.count, rules.softcap);
        if (rules.slopes != nullptr) {
            for (int64_t i = 0; i < keys.count; ++i)
                row[i] -= rules.slopes[h] * static_cast<float>(rules.distance - i);
        }
        out[h * stride] = *std::max_element(row, row + keys.count);
        out[h * stride + 1] = ExpInPlace(row, keys.count, out[h * stride]);
    }
    WeightedSum<N, T>(values, scores, keys.count, out + 2, stride);
}

template <typename T>
static void AttendGroup(const CachedRows& keys, const CachedRows& values, const float* queries, int64_t heads,
                        ScoreRules rules, float* scores, float* out) {
    const int64_t stride = 2 + keys.head_dim;
    // As many heads together as keep their sums in registers.
    for (; heads >= 3; heads -= 3, queries += 3 * keys.head_dim, out += 3 * stride) {
        AttendHeads<3, T>(keys, values, queries, rules, scores, out);
        if (rules.slopes != nullptr) rules.slopes += 3;
    }
    if (heads == 2) AttendHeads<2, T>(keys, values, queries, rules, scores, out);
    if (heads == 1) AttendHeads<1, T>(keys, values, queries, rules, scores, out);
}

static void AttendF16(const CachedRows& k, const CachedRows& v, const float* q, int64_t heads,
                      const ScoreRules& rules, float* scores, float* out) {
    AttendGroup<hwy::float16_t>(k, v, q, heads, rules, scores, out);
}
static void AttendF32(const CachedRows& k, const CachedRows& v, const float* q, int64_t heads,
                      const ScoreRules& rules, float* scores, float* out) {
    AttendGroup<float>(k, v, q, heads, rules, scores, out);
}

}  // namespace refold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace refold {

HWY_EXPORT(AttendF16);
HWY_EXPORT(AttendF32);

// Fewer cached rows than this are not worth splitting between threads.
constexpr int64_t kMinChunk = 32;

// As ggml's soft_max_ext and flash_attn_ext derive them.
static std::vector<float> alibi_slopes(int64_t n_head, float max_bias) {
    std::vector<float> slopes;
    if (max_bias <= 0) return slopes;
    const auto whole = int64_t{1} << static_cast<int>(std::floor(std::log2(static_cast<double>(n_head))));
    const double first = std::pow(2.0, -static_cast<double>(max_bias) / static_cast<double>(whole)),
                 second = std::sqrt(first);
    for (int64_t h = 0; h < n_head; ++h)
        slopes.push_back(
            static_cast<float>(h < whole ? std::pow(first, h + 1) : std::pow(second, 2 * (h - whole) + 1)));
    return slopes;
}

DecodeAttention::DecodeAttention(int64_t n_head, int64_t head_dim, AttentionRules rules, int64_t max_cached,
                                 int threads)
    : head_dim_(head_dim),
      rules_(rules),
      slopes_(alibi_slopes(n_head, rules.max_alibi)),
      partial_(static_cast<size_t>(threads * kMaxTokens * n_head * (2 + head_dim))),
      scores_(static_cast<size_t>(threads), std::vector<float>(static_cast<size_t>(3 * max_cached))) {}

ggml_tensor* DecodeAttention::node(ggml_context* context, ggml_tensor* queries, ggml_tensor* cache,
                                   ggml_tensor* positions, float scale, int64_t window) {
    Node& node = nodes_.try_emplace({scale, window}, Node{this, scale, window}).first->second;
    ggml_tensor* arguments[] = {queries, cache, positions};
    return ggml_custom_4d(context, GGML_TYPE_F32, queries->ne[0], queries->ne[1], 1, 1, arguments, 3, compute,
                          GGML_N_TASKS_MAX, &node);
}

void DecodeAttention::compute(ggml_tensor* dst, int thread, int threads, void* node) {
    const auto* n = static_cast<const Node*>(node);
    n->attention->attend(dst, *n, thread, threads);
}

void DecodeAttention::wait(int threads) {
    const int generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
        arrived_.store(0, std::memory_order_relaxed);
        generation_.store(generation + 1, std::memory_order_release);
        return;
    }
    // Threads arrive within microseconds, unless the machine is shared.
    for (int spins = 0; generation_.load(std::memory_order_acquire) == generation; ++spins) {
        if (spins > 10000) std::this_thread::yield();
    }
}

void DecodeAttention::attend(ggml_tensor* dst, const Node& node, int thread, int threads) {
    const int64_t window = node.window;
    const ggml_tensor* queries = dst->src[0];
    const ggml_tensor* cache = dst->src[1];
    const auto* positions = static_cast<const int32_t*>(dst->src[2]->data);
    const int64_t n_head = dst->ne[0] / head_dim_, n_head_kv = cache->ne[2] / 2;
    const int64_t tokens = dst->ne[1], group = n_head / n_head_kv, stride = 2 + head_dim_;
    const bool half = cache->type == GGML_TYPE_F16;
    // Whole heads per thread where they divide evenly, else every head's rows are cut into one chunk per
    // thread.
    const int64_t seen = window > 0 ? std::min<int64_t>(window, positions[0]) : positions[0];
    const bool split = (tokens * n_head_kv) % threads != 0 && seen >= kMinChunk * threads;
    const int64_t chunks = split ? threads : 1;
    const int64_t units = tokens * n_head_kv * chunks;
    for (int64_t unit = thread; unit < units; unit += threads) {
        const int64_t chunk = unit % chunks, head = unit / chunks % n_head_kv,
                      token = unit / chunks / n_head_kv;
        const int64_t end = positions[token] + 1, begin = window > 0 ? std::max<int64_t>(0, end - window) : 0;
        const int64_t first = begin + (end - begin) * chunk / chunks,
                      last = begin + (end - begin) * (chunk + 1) / chunks;
        const auto rows = [&](int64_t cached_head) {
            const auto offset =
                static_cast<size_t>(first) * cache->nb[1] + static_cast<size_t>(cached_head) * cache->nb[2];
            return CachedRows{static_cast<const char*>(cache->data) + offset, cache->nb[1], last - first,
                              head_dim_};
        };
        const auto* q = reinterpret_cast<const float*>(static_cast<const char*>(queries->data) +
                                                       static_cast<size_t>(token) * queries->nb[1]);
        float* out = partial_.data() + ((chunk * tokens + token) * n_head + head * group) * stride;
        float* scores = scores_[static_cast<size_t>(thread)].data();
        const CachedRows keys = rows(head), values = rows(n_head_kv + head);
        const ScoreRules rules{node.scale, rules_.softcap,
                               slopes_.empty() ? nullptr : slopes_.data() + head * group,
                               positions[token] - first};
        if (half) {
            HWY_DYNAMIC_DISPATCH(AttendF16)
            (keys, values, q + head * group * head_dim_, group, rules, scores, out);
        } else {
            HWY_DYNAMIC_DISPATCH(AttendF32)
            (keys, values, q + head * group * head_dim_, group, rules, scores, out);
        }
    }
    wait(threads);
    merge(dst, n_head, chunks, thread, threads);
}

void DecodeAttention::merge(ggml_tensor* dst, int64_t n_head, int64_t chunks, int thread, int threads) const {
    const int64_t rows = dst->ne[1] * n_head, stride = 2 + head_dim_;
    for (int64_t row = rows * thread / threads; row < rows * (thread + 1) / threads; ++row) {
        const auto part = [&](int64_t chunk) { return partial_.data() + (chunk * rows + row) * stride; };
        float maximum = -std::numeric_limits<float>::infinity();
        for (int64_t c = 0; c < chunks; ++c) maximum = std::max(maximum, part(c)[0]);
        float sum = 0;
        for (int64_t c = 0; c < chunks; ++c) sum += part(c)[1] * std::exp(part(c)[0] - maximum);
        auto* out = reinterpret_cast<float*>(static_cast<char*>(dst->data) +
                                             static_cast<size_t>(row / n_head) * dst->nb[1]) +
                    row % n_head * head_dim_;
        std::fill(out, out + head_dim_, 0.0F);
        for (int64_t c = 0; c < chunks; ++c) {
            const float weight = std::exp(part(c)[0] - maximum) / sum;
            for (int64_t i = 0; i < head_dim_; ++i) out[i] += weight * part(c)[2 + i];
        }
    }
}

}  // namespace refold
#endif
