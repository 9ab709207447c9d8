#include "engine/ggml/streams.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/ggml/thread_share.h"
#include "engine/ggml/token_rows.h"
#include "model/forward_ops.h"

namespace refold {
namespace {

// Threads split the features, not the tokens: decoding has one token.
void mix(ggml_tensor* dst, int thread, int threads, void* user) {
    const int64_t width = *static_cast<const int64_t*>(user);
    const ggml_tensor *x = dst->src[0], *coefficients = dst->src[1];
    const int64_t from = x->ne[0] / width, to = dst->ne[0] / width;
    const auto [first, last] = thread_share(width, thread, threads);
    for (int64_t token = 0; token < dst->ne[1]; ++token) {
        const float *in = row_of(x, token), *c = row_of(coefficients, token);
        float* out = row_of(dst, token);
        for (int64_t b = 0; b < to; ++b) {
            float* y = out + b * width;
            std::fill(y + first, y + last, 0.0F);
            for (int64_t a = 0; a < from; ++a) {
                const float factor = c[b * from + a];
                const float* stream = in + a * width;
                for (int64_t i = first; i < last; ++i) y[i] += factor * stream[i];
            }
        }
    }
}

double mean_square(const float* values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
    return sum / static_cast<double>(count);
}

void rescale(ggml_tensor* dst, int thread, int threads, void* /*unused*/) {
    const ggml_tensor *x = dst->src[0], *y = dst->src[1];
    const auto [first, last] = thread_share(dst->ne[1], thread, threads);
    for (int64_t token = first; token < last; ++token) {
        const float* in = row_of(x, token);
        const double own = std::max(mean_square(in, x->ne[0]), static_cast<double>(kLeastSquare)),
                     wanted = mean_square(row_of(y, token), y->ne[0]);
        const auto factor = static_cast<float>(std::sqrt(wanted / own));
        float* out = row_of(dst, token);
        for (int64_t i = 0; i < x->ne[0]; ++i) out[i] = factor * in[i];
    }
}

void cut(ggml_tensor* dst, int thread, int threads, void* user) {
    const float deviations = *static_cast<const float*>(user);
    const ggml_tensor* x = dst->src[0];
    const int64_t n = x->ne[0];
    const auto [first, last] = thread_share(dst->ne[1], thread, threads);
    for (int64_t token = first; token < last; ++token) {
        const float* in = row_of(x, token);
        double mean = 0, squares = 0;
        for (int64_t i = 0; i < n; ++i) mean += in[i];
        mean /= static_cast<double>(n);
        for (int64_t i = 0; i < n; ++i) squares += (in[i] - mean) * (in[i] - mean);
        const auto least =
            static_cast<float>(mean + deviations * std::sqrt(squares / static_cast<double>(n)));
        float* out = row_of(dst, token);
        for (int64_t i = 0; i < n; ++i) out[i] = std::max(0.0F, in[i] - least);
    }
}

ggml_tensor* node(ggml_context* context, int64_t features, std::array<ggml_tensor*, 2> sources, int count,
                  ggml_custom_op_t function, void* user) {
    return ggml_custom_4d(context, GGML_TYPE_F32, features, sources[0]->ne[1], 1, 1, sources.data(), count,
                          function, GGML_N_TASKS_MAX, user);
}

}  // namespace

ggml_tensor* mix_streams(ggml_context* context, ggml_tensor* x, ggml_tensor* coefficients,
                         const int64_t& width) {
    const int64_t from = x->ne[0] / width, to = coefficients->ne[0] / from;
    return node(context, to * width, {x, coefficients}, 2, mix, const_cast<int64_t*>(&width));
}

ggml_tensor* with_rms_of(ggml_context* context, ggml_tensor* x, ggml_tensor* y) {
    return node(context, x->ne[0], {x, y}, 2, rescale, nullptr);
}

ggml_tensor* cut_gates(ggml_context* context, ggml_tensor* x, const float& deviations) {
    return node(context, x->ne[0], {x, nullptr}, 1, cut, const_cast<float*>(&deviations));
}

}  // namespace refold
