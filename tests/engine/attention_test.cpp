// The decoding attention against the definition, for head sizes that do and do not fill vectors.
#include "engine/ggml/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace refold {
namespace {

struct Shape {
    int64_t heads, kv_heads, head_dim, tokens;
    int32_t past;
    int threads;
    int64_t window = 0;
    float softcap = 0, alibi = 0;

    AttentionRules rules() const { return {softcap, alibi}; }
    float scale() const { return 1.0F / std::sqrt(static_cast<float>(head_dim)); }
};

class Fixture {
public:
    Fixture(const Shape& shape, ggml_type type)
        : shape_(shape),
          attention_(shape.heads, shape.head_dim, shape.rules(), kRows, shape.threads) {
        context_.reset(ggml_init({size_t{64} << 20, nullptr, false}));
        queries_ =
            ggml_new_tensor_2d(context_.get(), GGML_TYPE_F32, shape.heads * shape.head_dim, shape.tokens);
        cache_ = ggml_new_tensor_3d(context_.get(), type, shape.head_dim, kRows, 2 * shape.kv_heads);
        positions_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_I32, shape.tokens);
        std::mt19937 random(1);
        std::normal_distribution<float> normal(0.0F, 1.0F);
        for (int64_t i = 0; i < ggml_nelements(queries_); ++i)
            static_cast<float*>(queries_->data)[i] = normal(random);
        for (int64_t i = 0; i < ggml_nelements(cache_); ++i) {
            if (type == GGML_TYPE_F32) {
                static_cast<float*>(cache_->data)[i] = normal(random);
            } else {
                static_cast<ggml_fp16_t*>(cache_->data)[i] = ggml_fp32_to_fp16(normal(random));
            }
        }
        for (int64_t t = 0; t < shape.tokens; ++t)
            static_cast<int32_t*>(positions_->data)[t] = shape.past + static_cast<int32_t>(t);
    }

    double largest_error() {
        ggml_tensor* out =
            attention_.node(context_.get(), queries_, cache_, positions_, shape_.scale(), shape_.window);
        ggml_cgraph* graph = ggml_new_graph(context_.get());
        ggml_build_forward_expand(graph, out);
        ggml_graph_compute_with_ctx(context_.get(), graph, shape_.threads);
        double largest = 0;
        for (int64_t t = 0; t < shape_.tokens; ++t) {
            for (int64_t h = 0; h < shape_.heads; ++h) {
                const auto expected = attend(t, h);
                for (int64_t i = 0; i < shape_.head_dim; ++i) {
                    const double got =
                        static_cast<float*>(out->data)[(t * shape_.heads + h) * shape_.head_dim + i];
                    largest = std::max(largest, std::abs(got - expected[static_cast<size_t>(i)]));
                }
            }
        }
        return largest;
    }

private:
    static constexpr int64_t kRows = 512;

    double cached(int64_t head, int64_t row, int64_t i) const {
        const auto at = (head * kRows + row) * shape_.head_dim + i;
        return cache_->type == GGML_TYPE_F32 ? static_cast<float*>(cache_->data)[at]
                                             : ggml_fp16_to_fp32(static_cast<ggml_fp16_t*>(cache_->data)[at]);
    }

    // BLOOM's: 2^(-8 (h + 1) / n) for the greatest power of two n, the odd powers of twice as many for the
    // rest.
    double slope(int64_t head) const {
        if (shape_.alibi == 0) return 0;
        int64_t n = 1;
        while (2 * n <= shape_.heads) n *= 2;
        return head < n ? std::exp2(-shape_.alibi * static_cast<double>(head + 1) / static_cast<double>(n))
                        : std::exp2(-shape_.alibi * static_cast<double>(2 * (head - n) + 1) /
                                    static_cast<double>(2 * n));
    }

    std::vector<double> attend(int64_t token, int64_t head) const {
        const int64_t kv = head / (shape_.heads / shape_.kv_heads), visible = shape_.past + token + 1;
        const float* q =
            static_cast<float*>(queries_->data) + (token * shape_.heads + head) * shape_.head_dim;
        std::vector<double> out(static_cast<size_t>(shape_.head_dim)), weights;
        double sum = 0;
        for (int64_t row = 0; row < visible; ++row) {
            double score = 0;
            for (int64_t i = 0; i < shape_.head_dim; ++i) score += q[i] * cached(kv, row, i);
            score /= std::sqrt(static_cast<double>(shape_.head_dim));
            if (shape_.softcap > 0) score = shape_.softcap * std::tanh(score / shape_.softcap);
            score -= slope(head) * static_cast<double>(visible - 1 - row);
            const bool seen = shape_.window == 0 || row >= visible - shape_.window;
            weights.push_back(seen ? std::exp(score) : 0);
            sum += weights.back();
        }
        for (int64_t row = 0; row < visible; ++row) {
            for (int64_t i = 0; i < shape_.head_dim; ++i) {
                out[static_cast<size_t>(i)] +=
                    weights[static_cast<size_t>(row)] / sum * cached(shape_.kv_heads + kv, row, i);
            }
        }
        return out;
    }

    Shape shape_;
    DecodeAttention attention_;
    ggml_context_ptr context_;
    ggml_tensor *queries_, *cache_, *positions_;
};

TEST(DecodeAttention, EqualsTheDefinition) {
    ggml_cpu_init();
    for (const Shape& shape :
         {Shape{9, 3, 64, 1, 400, 2}, Shape{9, 3, 64, 4, 500, 2}, Shape{4, 4, 16, 1, 0, 2},
          Shape{8, 1, 80, 2, 100, 2}, Shape{5, 5, 10, 3, 300, 2}, Shape{7, 1, 128, 1, 511, 1},
          Shape{6, 3, 72, 1, 200, 3}, Shape{4, 2, 32, 1, 300, 2, 16}, Shape{3, 3, 24, 4, 9, 2, 10},
          Shape{6, 2, 32, 2, 200, 2, 128, 4.0F}, Shape{5, 5, 16, 1, 300, 2, 0, 0, 8.0F},
          Shape{6, 3, 16, 4, 100, 2, 0, 2.0F, 8.0F}}) {
        for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16}) {
            EXPECT_LT(Fixture(shape, type).largest_error(), 2e-6)
                << shape.heads << " " << shape.head_dim << " " << ggml_type_name(type);
        }
    }
}

}  // namespace
}  // namespace refold
