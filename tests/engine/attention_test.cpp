// Attention operations against the definition in double precision. What no token may see is NaN.
#include "engine/ggml/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace refold {
namespace {

// New tokens of a sequence.
struct Sequence {
    int64_t past, tokens;
};

struct Shape {
    int64_t heads, kv_heads, head_dim, tokens, past;
    int threads;
    int64_t window = 0;
    float softcap = 0, alibi = 0;
    float spread = 1;                  // of the scores
    std::vector<Sequence> after = {};  // sequences behind that of `tokens` and `past`

    float scale() const { return spread / std::sqrt(static_cast<float>(head_dim)); }
    std::vector<Sequence> sequences() const {
        std::vector<Sequence> all = {{past, tokens}};
        all.insert(all.end(), after.begin(), after.end());
        return all;
    }
};

// A token's row, and the sequence's first one, with gaps between the sequences.
struct Place {
    int64_t first, own;
};
constexpr int64_t kGap = 3;

std::vector<Place> places_of(const Shape& shape) {
    std::vector<Place> places;
    int64_t first = 0;
    for (const Sequence& s : shape.sequences()) {
        for (int64_t t = 0; t < s.tokens; ++t) places.push_back({first, first + s.past + t});
        first += s.past + s.tokens + kGap;
    }
    return places;
}

void PrintTo(const Shape& s, std::ostream* out) {
    *out << s.heads << "/" << s.kv_heads << " heads of " << s.head_dim << ", " << s.tokens << " tokens after "
         << s.past << ", window " << s.window << ", cap " << s.softcap << ", ALiBi " << s.alibi << ", spread "
         << s.spread << ", threads " << s.threads;
    for (const Sequence& other : s.after) *out << ", and " << other.tokens << " after " << other.past;
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double number(const ggml_tensor* tensor, int64_t i, int64_t j, int64_t k) {
    const char* at = static_cast<const char*>(tensor->data) + i * static_cast<int64_t>(tensor->nb[0]) +
                     j * static_cast<int64_t>(tensor->nb[1]) + k * static_cast<int64_t>(tensor->nb[2]);
    return tensor->type == GGML_TYPE_F32 ? *reinterpret_cast<const float*>(at)
                                         : ggml_fp16_to_fp32(*reinterpret_cast<const ggml_fp16_t*>(at));
}

void set_number(ggml_tensor* tensor, int64_t i, float x) {
    if (tensor->type == GGML_TYPE_F32) {
        static_cast<float*>(tensor->data)[i] = x;
    } else {
        static_cast<ggml_fp16_t*>(tensor->data)[i] = ggml_fp32_to_fp16(x);
    }
}

// ALiBi's slopes (BLOOM): 2^(-8 (h + 1) / n) for the greatest power of two n, the odd powers of twice as many
// for the rest.
double slope(const Shape& shape, int64_t head) {
    if (shape.alibi == 0) return 0;
    int64_t n = 1;
    while (2 * n <= shape.heads) n *= 2;
    return head < n ? std::exp2(-shape.alibi * static_cast<double>(head + 1) / static_cast<double>(n))
                    : std::exp2(-shape.alibi * static_cast<double>(2 * (head - n) + 1) /
                                static_cast<double>(2 * n));
}

// One step's tensors: views with gaps between tokens and between cached rows, and more cached rows than seen.
class Step {
public:
    Step(const Shape& shape, ggml_type cache_type)
        : shape_(shape),
          places_(places_of(shape)),
          longest_(longest_of(shape)),
          attention_(shape.heads, shape.head_dim, {shape.softcap, shape.alibi}, longest_, shape.threads),
          context_(ggml_init({size_t{192} << 20, nullptr, false})) {
        const int64_t width = shape.heads * shape.head_dim, cached = places_.back().own + 1 + kUnused;
        ggml_tensor* wide = ggml_new_tensor_2d(context(), GGML_TYPE_F32, width + kGap, tokens());
        ggml_tensor* cache =
            ggml_new_tensor_3d(context(), cache_type, shape.head_dim + kGap, cached, 2 * shape.kv_heads);
        std::normal_distribution<float> normal;
        for (ggml_tensor* tensor : {wide, cache}) {
            for (int64_t i = 0; i < ggml_nelements(tensor); ++i) set_number(tensor, i, normal(random_));
        }
        std::vector<bool> visible(static_cast<size_t>(cached));
        for (int64_t t = 0; t < tokens(); ++t)
            for (int64_t row = begin(t); row < end(t); ++row)
                visible[static_cast<size_t>(place(t).first + row)] = true;
        for (int64_t i = 0; i < ggml_nelements(cache); ++i) {
            if (!visible[static_cast<size_t>(i / cache->ne[0] % cached)] ||
                i % cache->ne[0] >= shape.head_dim)
                set_number(cache, i, kNan);
        }
        queries = ggml_view_2d(context(), wide, width, tokens(), wide->nb[1], 0);
        keys = half(cache, 0);
        values = half(cache, shape.kv_heads);
        seen = seen_by(0, 1);
    }

    int64_t tokens() const { return static_cast<int64_t>(places_.size()); }
    Place place(int64_t token) const { return places_[static_cast<size_t>(token)]; }
    // Rows of its sequence that a token sees.
    int64_t end(int64_t token) const { return place(token).own - place(token).first + 1; }
    int64_t begin(int64_t token) const {
        return shape_.window == 0 ? 0 : std::max<int64_t>(0, end(token) - shape_.window);
    }
    // What every `step`-th token from `first` on sees.
    ggml_tensor* seen_by(int64_t first, int64_t step) const {
        ggml_tensor* out =
            ggml_new_tensor_2d(context(), GGML_TYPE_I32, 2, (tokens() - first + step - 1) / step);
        for (int64_t i = 0; i < out->ne[1]; ++i) {
            static_cast<int32_t*>(out->data)[2 * i] = static_cast<int32_t>(place(first + i * step).first);
            static_cast<int32_t*>(out->data)[2 * i + 1] = static_cast<int32_t>(place(first + i * step).own);
        }
        return out;
    }

    ggml_context* context() const { return context_.get(); }
    Attention& attention() { return attention_; }

    ggml_tensor* computed(ggml_tensor* out) const {
        // Nothing of an earlier result may be taken for this one.
        if (out->data != nullptr) {
            for (int64_t i = 0; i < ggml_nelements(out); ++i) set_number(out, i, kNan);
        }
        ggml_cgraph* graph = ggml_new_graph_custom(context(), 64, false);
        ggml_build_forward_expand(graph, out);
        ggml_graph_compute_with_ctx(context(), graph, shape_.threads);
        return out;
    }

    ggml_tensor* attended() {
        return attention_.node(context(), queries, keys, values, seen, shape_.scale(), shape_.window);
    }
    ggml_tensor* probabilities(ggml_type type) {
        return attention_.probabilities(context(), queries, keys, seen, shape_.scale(), shape_.window,
                                        longest_, type);
    }

    // By definition: probabilities of the rows that the token sees.
    std::vector<double> expected(int64_t token, int64_t head) const {
        const int64_t kv = head * shape_.kv_heads / shape_.heads;
        std::vector<double> weights;
        double sum = 0, largest = -std::numeric_limits<double>::infinity();
        for (int64_t row = begin(token); row < end(token); ++row) {
            double score = 0;
            for (int64_t i = 0; i < shape_.head_dim; ++i)
                score += number(queries, head * shape_.head_dim + i, token, 0) *
                         number(keys, i, place(token).first + row, kv);
            score *= shape_.scale();
            if (shape_.softcap > 0) score = shape_.softcap * std::tanh(score / shape_.softcap);
            score -= slope(shape_, head) * static_cast<double>(end(token) - 1 - row);
            weights.push_back(score);
            largest = std::max(largest, score);
        }
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        for (double& weight : weights) weight /= sum;
        return weights;
    }

    // Values of a token and head, weighted.
    std::vector<double> weighted(int64_t token, int64_t head, const std::vector<double>& weights) const {
        std::vector<double> out(static_cast<size_t>(shape_.head_dim));
        for (size_t i = 0; i < weights.size(); ++i) {
            for (size_t c = 0; c < out.size(); ++c) {
                out[c] += weights[i] * number(values, static_cast<int64_t>(c),
                                              place(token).first + begin(token) + static_cast<int64_t>(i),
                                              head * shape_.kv_heads / shape_.heads);
            }
        }
        return out;
    }

    ggml_tensor *queries = nullptr, *keys = nullptr, *values = nullptr, *seen = nullptr;

private:
    static constexpr int64_t kUnused = 5;

    static int64_t longest_of(const Shape& shape) {
        int64_t longest = 0;
        for (const Sequence& s : shape.sequences()) longest = std::max(longest, s.past + s.tokens);
        return longest;
    }

    ggml_tensor* half(ggml_tensor* cache, int64_t first) const {
        return ggml_view_3d(context(), cache, shape_.head_dim, cache->ne[1], shape_.kv_heads, cache->nb[1],
                            cache->nb[2], static_cast<size_t>(first) * cache->nb[2]);
    }

    Shape shape_;
    std::vector<Place> places_;
    int64_t longest_;
    Attention attention_;
    ggml_context_ptr context_;
    std::mt19937 random_{1};
};

// Largest difference, NaN counts as infinite.
class Error {
public:
    void compare(double got, double expected, double tolerance) {
        const double error = std::abs(got - expected) / tolerance;
        largest_ = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(largest_, error);
    }
    double largest() const { return largest_; }

private:
    double largest_ = 0;
};

// Float32 sums of numbers around 1 whose weights sum up to 1; larger scores are less exact.
double tolerance(const Shape& shape) { return 3e-6 * std::max(1.0F, shape.spread); }

double error_of_attention(const Shape& shape, ggml_type type) {
    Step step(shape, type);
    const ggml_tensor* out = step.computed(step.attended());
    Error error;
    for (int64_t t = 0; t < step.tokens(); ++t) {
        for (int64_t h = 0; h < shape.heads; ++h) {
            const auto expected = step.weighted(t, h, step.expected(t, h));
            for (int64_t i = 0; i < shape.head_dim; ++i)
                error.compare(number(out, h * shape.head_dim + i, t, 0), expected[static_cast<size_t>(i)],
                              tolerance(shape));
        }
    }
    return error.largest();
}

struct HalvesError {
    double probabilities, applied, sums;
};

// Probabilities by definition; what is made of them by the probabilities as stored, for every `stride`-th
// token from `skipped` on.
HalvesError errors_of_halves(const Shape& shape, ggml_type cache_type, ggml_type type, int64_t skipped,
                             int64_t stride) {
    Step step(shape, cache_type);
    ggml_context* c = step.context();
    ggml_tensor* p = step.computed(step.probabilities(type));
    p->op = GGML_OP_NONE;  // is given from here on
    ggml_tensor* seen = step.seen_by(skipped, stride);
    ggml_tensor* selected = ggml_new_tensor_1d(c, GGML_TYPE_I32, seen->ne[1]);
    for (int64_t i = 0; i < seen->ne[1]; ++i)
        static_cast<int32_t*>(selected->data)[i] = static_cast<int32_t>(skipped + i * stride);
    const ggml_tensor* applied =
        step.computed(step.attention().apply(c, p, step.values, seen, shape.window, selected));
    const ggml_tensor* sums =
        step.computed(step.attention().column_sums(c, p, step.seen, shape.window, shape.kv_heads));
    Error of_probabilities, of_applied, of_sums;
    std::vector<double> column_sums(static_cast<size_t>(p->ne[0] * shape.kv_heads));
    // F16: rounded twice.
    const double relative = type == GGML_TYPE_F16 ? 1.1e-3 : 5 * tolerance(shape);
    for (int64_t h = 0; h < shape.heads; ++h) {
        const int64_t kv = h * shape.kv_heads / shape.heads;
        for (int64_t t = 0; t < step.tokens(); ++t) {
            const auto expected = step.expected(t, h);
            std::vector<double> stored(expected.size());
            for (size_t i = 0; i < expected.size(); ++i) {
                const int64_t row = step.begin(t) + static_cast<int64_t>(i);
                stored[i] = number(p, row, t, h);
                column_sums[static_cast<size_t>(kv * p->ne[0] + row)] += stored[i];
                of_probabilities.compare(stored[i], expected[i], relative * expected[i] + 1.2e-7);
            }
            if (t < skipped || (t - skipped) % stride != 0) continue;
            const auto out = step.weighted(t, h, stored);
            for (int64_t i = 0; i < shape.head_dim; ++i)
                of_applied.compare(number(applied, h * shape.head_dim + i, (t - skipped) / stride, 0),
                                   out[static_cast<size_t>(i)], tolerance(shape));
        }
    }
    for (size_t i = 0; i < column_sums.size(); ++i)
        of_sums.compare(static_cast<const float*>(sums->data)[i], column_sums[i],
                        1e-5 * column_sums[i] + 1e-30);
    return {of_probabilities.largest(), of_applied.largest(), of_sums.largest()};
}

void check(const Shape& shape, ggml_type cache_type, ggml_type type, int64_t skipped, int64_t stride = 1) {
    EXPECT_LT(error_of_attention(shape, cache_type), 1)
        << testing::PrintToString(shape) << " " << ggml_type_name(cache_type);
    const HalvesError error = errors_of_halves(shape, cache_type, type, skipped, stride);
    for (const double e : {error.probabilities, error.applied, error.sums}) {
        EXPECT_LT(e, 1) << testing::PrintToString(shape) << " " << ggml_type_name(cache_type) << " "
                        << ggml_type_name(type) << ", applied to every " << stride << ". from " << skipped
                        << ": " << error.probabilities << " " << error.applied << " " << error.sums;
    }
}

TEST(Attention, OfFewTokensEqualsTheDefinition) {
    ggml_cpu_init();
    for (const Shape& shape :
         {Shape{9, 3, 64, 1, 400, 2}, Shape{9, 3, 64, 4, 500, 2}, Shape{4, 4, 16, 1, 0, 2},
          Shape{8, 1, 80, 2, 100, 2}, Shape{5, 5, 10, 3, 300, 2}, Shape{7, 1, 128, 1, 511, 1},
          Shape{6, 3, 72, 1, 200, 3}, Shape{4, 2, 32, 1, 300, 2, 16}, Shape{3, 3, 24, 4, 9, 2, 10},
          Shape{6, 2, 32, 2, 200, 2, 128, 4.0F}, Shape{5, 5, 16, 1, 300, 2, 0, 0, 8.0F},
          Shape{6, 3, 16, 4, 100, 2, 0, 2.0F, 8.0F}, Shape{4, 1, 20, 1, 900, 8}}) {
        for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16})
            check(shape, type, type, shape.tokens / 2);
    }
}

TEST(Attention, OfManyTokensEqualsTheDefinition) {
    ggml_cpu_init();
    for (const Shape& shape :
         {Shape{9, 3, 64, 64, 70, 2}, Shape{9, 3, 64, 5, 500, 2}, Shape{2, 2, 128, 200, 0, 2},
          Shape{8, 1, 20, 33, 300, 3}, Shape{4, 2, 8, 150, 0, 2, 7}, Shape{3, 1, 256, 9, 130, 8},
          Shape{14, 1, 64, 40, 130, 2, 100}, Shape{6, 2, 32, 70, 200, 2, 128, 4.0F},
          Shape{5, 5, 16, 37, 300, 2, 0, 0, 8.0F}, Shape{2, 1, 16, 200, 100, 1, 180, 0, 8.0F},
          Shape{6, 3, 16, 50, 100, 2, 60, 2.0F, 8.0F}, Shape{2, 1, 64, 140, 700, 2, 0, 0, 0, 8.0F},
          Shape{1, 1, 1, 6, 3, 4}}) {
        for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16})
            check(shape, type, type, shape.tokens / 2);
    }
}

// Rows that decode beside runs of a prompt; few units for many threads; tokens enough for units of their own.
TEST(Attention, OfSeveralSequencesEqualsTheDefinition) {
    ggml_cpu_init();
    const std::vector<Sequence> decoding = {{300, 1}, {0, 1}, {17, 1}, {250, 1}, {64, 1}};
    for (const Shape& shape :
         {Shape{9, 3, 64, 1, 400, 2, 0, 0, 0, 1, decoding}, Shape{9, 3, 64, 70, 30, 2, 0, 0, 0, 1, decoding},
          Shape{4, 1, 32, 1, 500, 8, 0, 0, 0, 1, decoding}, Shape{4, 2, 16, 2, 90, 2, 0, 0, 0, 1, {{5, 3}}},
          Shape{6, 2, 32, 1, 200, 2, 60, 4.0F, 0, 1, decoding},
          Shape{5, 5, 16, 9, 300, 2, 0, 0, 8.0F, 1, {{0, 20}, {40, 1}, {3, 9}}},
          Shape{6, 3, 24, 30, 100, 3, 50, 0, 8.0F, 1, {{7, 1}, {140, 12}}}}) {
        for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16})
            for (const int64_t stride : {1, 3}) check(shape, type, type, shape.tokens / 2, stride);
    }
}

TEST(Attention, OfRandomShapesEqualsTheDefinition) {
    ggml_cpu_init();
    std::mt19937 random(7);
    const auto up_to = [&](int64_t first, int64_t last) {
        return std::uniform_int_distribution<int64_t>(first, last)(random);
    };
    for (int i = 0; i < 40; ++i) {
        const int64_t kv_heads = up_to(1, 4), head_dim = up_to(0, 3) == 0 ? up_to(1, 256) : up_to(1, 70);
        const int64_t tokens = up_to(0, 2) == 0 ? up_to(1, 8) : up_to(5, 90);
        Shape shape{kv_heads * up_to(1, 5),       kv_heads, head_dim, tokens, up_to(0, 350),
                    static_cast<int>(up_to(1, 8))};
        if (up_to(0, 2) == 0) shape.window = up_to(1, shape.past + shape.tokens + 10);
        if (up_to(0, 3) == 0) shape.softcap = static_cast<float>(up_to(1, 30));
        if (up_to(0, 3) == 0) shape.alibi = 8.0F;
        shape.spread = static_cast<float>(up_to(1, 6));
        for (int64_t others = up_to(0, 2) == 0 ? up_to(1, 12) : 0; others > 0; --others)
            shape.after.push_back({up_to(0, 200), up_to(0, 3) == 0 ? up_to(2, 30) : 1});
        check(shape, up_to(0, 1) == 0 ? GGML_TYPE_F32 : GGML_TYPE_F16,
              up_to(0, 1) == 0 ? GGML_TYPE_F32 : GGML_TYPE_F16, up_to(0, tokens - 1), up_to(1, 3));
    }
}

// Attention to a quantized cache is that to the values it holds: to the last bit, but for few queries on
// Q8_0, which are rounded for products of integers.
TEST(Attention, OfQuantizedRowsIsThatOfTheirValues) {
    ggml_cpu_init();
    for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
        for (const auto& [heads, kv_heads, head_dim, tokens, past] :
             {std::array<int64_t, 5>{9, 3, 64, 1, 400},
              {4, 1, 32, 3, 500},
              {3, 3, 96, 64, 70},
              {2, 1, 128, 9, 131}}) {
            const ggml_context_ptr context(ggml_init({size_t{64} << 20, nullptr, false}));
            ggml_context* c = context.get();
            std::mt19937 random(5);
            std::normal_distribution<float> normal;
            ggml_tensor* queries = ggml_new_tensor_2d(c, GGML_TYPE_F32, heads * head_dim, tokens);
            ggml_tensor* exact = ggml_new_tensor_3d(c, GGML_TYPE_F32, head_dim, past + tokens, 2 * kv_heads);
            ggml_tensor* packed = ggml_new_tensor_3d(c, type, head_dim, past + tokens, 2 * kv_heads);
            for (ggml_tensor* tensor : {queries, exact}) {
                for (int64_t i = 0; i < ggml_nelements(tensor); ++i) set_number(tensor, i, normal(random));
            }
            const auto* traits = ggml_get_type_traits_cpu(type);
            for (int64_t row = 0; row < ggml_nrows(exact); ++row) {
                float* values = static_cast<float*>(exact->data) + row * head_dim;
                char* blocks = static_cast<char*>(packed->data) + static_cast<size_t>(row) * packed->nb[1];
                traits->from_float(values, blocks, head_dim);
                ggml_get_type_traits(type)->to_float(blocks, values, head_dim);
            }
            ggml_tensor* seen = ggml_new_tensor_2d(c, GGML_TYPE_I32, 2, tokens);
            for (int64_t t = 0; t < tokens; ++t) {
                static_cast<int32_t*>(seen->data)[2 * t] = 0;
                static_cast<int32_t*>(seen->data)[2 * t + 1] = static_cast<int32_t>(past + t);
            }
            Attention attention(heads, head_dim, {}, past + tokens, 2);
            ggml_cgraph* graph = ggml_new_graph(c);
            std::vector<ggml_tensor*> results;
            for (ggml_tensor* cache : {exact, packed}) {
                const auto part = [&](int64_t first) {
                    return ggml_view_3d(c, cache, head_dim, past + tokens, kv_heads, cache->nb[1],
                                        cache->nb[2], static_cast<size_t>(first) * cache->nb[2]);
                };
                results.push_back(attention.node(c, queries, part(0), part(kv_heads), seen, 0.125F, 0));
                ggml_build_forward_expand(graph, results.back());
            }
            ggml_graph_compute_with_ctx(c, graph, 2);
            const bool rounded = type == GGML_TYPE_Q8_0 && tokens <= few_tokens(type);
            for (int64_t i = 0; i < ggml_nelements(results[0]); ++i) {
                ASSERT_NEAR(static_cast<const float*>(results[1]->data)[i],
                            static_cast<const float*>(results[0]->data)[i], rounded ? 1e-4 : 0)
                    << ggml_type_name(type) << ", " << tokens << " tokens";
            }
        }
    }
}

// Two nodes of one object after each other, as in a graph of several layers.
TEST(Attention, NodesOfAGraphDoNotDisturbEachOther) {
    ggml_cpu_init();
    for (const int64_t tokens : {int64_t{2}, int64_t{50}}) {
        const Shape shape{6, 3, 24, tokens, 200, 3};
        Step step(shape, GGML_TYPE_F16);
        ggml_context* c = step.context();
        ggml_tensor* p = step.probabilities(GGML_TYPE_F32);
        ggml_tensor* applied = step.attention().apply(c, p, step.values, step.seen, 0);
        ggml_tensor* whole = step.attended();
        const ggml_tensor* difference = step.computed(ggml_sub(c, applied, whole));
        for (int64_t i = 0; i < ggml_nelements(difference); ++i)
            ASSERT_NEAR(static_cast<const float*>(difference->data)[i], 0, 2e-6) << tokens << " " << i;
    }
}

}  // namespace
}  // namespace refold
