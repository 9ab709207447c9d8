#include "engine/ggml/loop_weights.h"

#include <algorithm>
#include <functional>

#include "core/parallel.h"
#include "engine/ggml/thread_share.h"
#include "model/materialize.h"

namespace refold {
namespace {

RowTerms::Factors factors_of(const Model& block, const LowRank& e) {
    const Tensor &u = block.tensor(e.u), &v = block.tensor(e.v);
    RowTerms::Factors factors{.rank = u.row_elements(), .a_type = v.type, .b_type = u.type};
    factors.a = floats_of(block, e.v);
    factors.b = floats_of(block, e.u);
    if (!e.scale.empty()) {
        const auto scales = floats_of(block, e.scale);
        const int64_t in = v.row_elements();
        for (int64_t i = 0; i < factors.rank; ++i) {
            const float scale = scales[static_cast<size_t>(e.row * factors.rank + i)];
            for (int64_t c = 0; c < in; ++c) factors.a[static_cast<size_t>(i * in + c)] *= scale;
        }
    }
    if (block.source) {
        block.source->release(u.mapped);
        block.source->release(v.mapped);
    }
    return factors;
}

// Calls biases(matrix, values) or vectors(slot, values) for what differs from loop to loop, values by loop.
template <class Biases, class Vectors>
void for_each_vector(const LoopedBlock& model, Biases biases, Vectors vectors) {
    for (const auto& [key, expressions] : model.vectors) {
        const auto [layer, slot] = key;
        std::vector<std::vector<float>> values;
        for (const Expression& e : expressions) values.push_back(materialize(model.block, e, slot, layer));
        const Slots& slots = model.block.topology.layers[layer];
        const auto matrix = std::find_if(slots.begin(), slots.end(), [bias = slot](const auto& s) {
            return is_matrix(s.first) && bias_of(s.first) == bias;
        });
        if (matrix != slots.end())
            biases(BlockSlot{layer, matrix->first}, std::move(values));
        else
            vectors(key, std::move(values));
    }
}

}  // namespace

LoopWeights::LoopWeights(const LoopedBlock& model, bool f32, int threads)
    : terms_(model.block.config, threads) {
    const Model& block = model.block;
    struct Loaded {
        BlockSlot slot;
        size_t loop;
        const LowRank* expression;
        RowTerms::Term term;
    };
    std::vector<Loaded> all;
    for (const auto& [slot, terms] : model.terms) {
        for (size_t loop = 0; loop < terms.size(); ++loop)
            if (terms[loop]) all.push_back({slot, loop, &*terms[loop], {}});
    }
    parallel_for(static_cast<int64_t>(all.size()), threads, [&](int64_t i) {
        Loaded& loaded = all[static_cast<size_t>(i)];
        loaded.term = RowTerms::term(factors_of(block, *loaded.expression), f32);
    });
    for (Loaded& loaded : all)
        terms_.put(loaded.slot.first, loaded.slot.second, loaded.loop, std::move(loaded.term));
    for_each_vector(
        model,
        [&](const BlockSlot& matrix, std::vector<std::vector<float>> values) {
            terms_.put_biases(matrix.first, matrix.second, std::move(values));
        },
        [&](const BlockSlot& vector, std::vector<std::vector<float>> values) {
            for (const auto& own : values) vector_bytes_ += own.size() * sizeof(float);
            vectors_[vector] = std::move(values);
        });
}

namespace {

// Calls apply(x, vector, n) for this thread's share of the rows of `dst`.
template <class Apply>
void for_vectors(ggml_tensor* dst, int thread, int threads, const void* user, Apply apply) {
    const auto& vectors = *static_cast<const std::vector<std::vector<float>>*>(user);
    const ggml_tensor* loops = dst->src[1];
    const int64_t rows = ggml_nrows(dst), heads = rows / loops->ne[0];
    const auto [first, last] = thread_share(rows, thread, threads);
    for (int64_t row = first; row < last; ++row) {
        const int32_t loop = static_cast<const int32_t*>(loops->data)[row / heads];
        apply(static_cast<float*>(dst->data) + row * dst->ne[0], vectors[static_cast<size_t>(loop)].data(),
              dst->ne[0]);
    }
}

void scale_rows(ggml_tensor* dst, int thread, int threads, void* user) {
    for_vectors(dst, thread, threads, user, [](float* x, const float* by, int64_t n) {
        for (int64_t i = 0; i < n; ++i) x[i] *= by[i];
    });
}

void add_to_rows(ggml_tensor* dst, int thread, int threads, void* user) {
    for_vectors(dst, thread, threads, user, [](float* x, const float* by, int64_t n) {
        for (int64_t i = 0; i < n; ++i) x[i] += by[i];
    });
}

}  // namespace

ggml_tensor* LoopWeights::scale(ggml_context* context, size_t layer, Slot slot, ggml_tensor* x,
                                ggml_tensor* loops) {
    return ggml_custom_inplace(context, x, &loops, 1, scale_rows, GGML_N_TASKS_MAX,
                               &vectors_.at({layer, slot}));
}

ggml_tensor* LoopWeights::add(ggml_context* context, size_t layer, Slot slot, ggml_tensor* x,
                              ggml_tensor* loops) {
    return ggml_custom_inplace(context, x, &loops, 1, add_to_rows, GGML_N_TASKS_MAX,
                               &vectors_.at({layer, slot}));
}

void put_loops(const LoopedBlock& model, DeviceTerms& out) {
    for (const auto& [slot, terms] : model.terms) {
        for (size_t loop = 0; loop < terms.size(); ++loop)
            if (terms[loop]) out.put(slot.first, slot.second, loop, factors_of(model.block, *terms[loop]));
    }
    for_each_vector(
        model,
        [&](const BlockSlot& matrix, const auto& values) {
            out.put_biases(matrix.first, matrix.second, values);
        },
        [&](const BlockSlot& vector, const auto& values) {
            out.put_vectors(vector.first, vector.second, values);
        });
    out.load();
}

}  // namespace refold
