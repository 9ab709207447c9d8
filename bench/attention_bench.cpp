// Compares the speed of our attention operations with ggml's flash attention, on random numbers: GFLOP/s of
// the two causal products (of one product for `apply` and `probabilities`), medians of rounds in turns.
//
//   refold_attention_bench [--threads 2] [--tokens 512] [--rounds 5] [--cached 512 2048 8192 16384] [--cache
//   f16]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/ggml/attention.h"
#include "engine/ggml/handles.h"

namespace refold {
namespace {

struct Shape {
    const char* name;
    int64_t heads, kv_heads, head_dim;
};

struct Settings {
    int threads = 2, rounds = 5;
    int64_t tokens = 512;
    std::vector<int64_t> cached = {512, 2048, 8192, 16384};
    std::string cache = "f16";

    ggml_type cache_type() const {
        return cache == "f32" ? GGML_TYPE_F32 : cache == "q8_0" ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
    }
    // A quantized cache goes with probabilities in F16, as in the engine.
    ggml_type probabilities_type() const { return cache == "f32" ? GGML_TYPE_F32 : GGML_TYPE_F16; }
};

constexpr size_t kOperations = 4;
constexpr const char* kNames[kOperations] = {"ggml flash", "fused", "probabilities", "apply"};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// One layer's attention for the last tokens of a sequence that fills the KV cache.
class Layer {
public:
    Layer(const Shape& shape, const Settings& settings, int64_t cached)
        : settings_(settings),
          attention_(shape.heads, shape.head_dim, {}, cached, settings.threads),
          threads_(settings.threads),
          context_(make_context(256, 2 * kOperations * ggml_graph_overhead_custom(16, false))) {
        ggml_context* c = context_.get();
        const int64_t tokens = settings.tokens, width = shape.heads * shape.head_dim;
        ggml_tensor* queries = ggml_new_tensor_2d(c, GGML_TYPE_F32, width, tokens);
        ggml_tensor* cache =
            ggml_new_tensor_3d(c, settings.cache_type(), shape.head_dim, cached, 2 * shape.kv_heads);
        ggml_tensor* seen = ggml_new_tensor_2d(c, GGML_TYPE_I32, 2, tokens);
        ggml_tensor* mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, cached, tokens);
        const auto half = [&](int64_t first) {
            return ggml_view_3d(c, cache, shape.head_dim, cached, shape.kv_heads, cache->nb[1], cache->nb[2],
                                static_cast<size_t>(first) * cache->nb[2]);
        };
        ggml_tensor *keys = half(0), *values = half(shape.kv_heads);
        const float scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
        ggml_tensor* split = ggml_view_3d(c, queries, shape.head_dim, tokens, shape.heads, queries->nb[1],
                                          static_cast<size_t>(shape.head_dim) * sizeof(float), 0);
        ggml_tensor* flash = ggml_flash_attn_ext(c, split, keys, values, mask, scale, 0.0F, 0.0F);
        ggml_prec_set_acc(flash, GGML_PREC_F32);
        ggml_tensor* probabilities =
            attention_.probabilities(c, queries, keys, seen, scale, 0, cached, settings.probabilities_type());
        // The same memory as an input, so that the operation that reads it runs alone.
        ggml_tensor* given = ggml_view_tensor(c, probabilities);
        given->op = GGML_OP_NONE;
        given->src[0] = nullptr;
        ggml_tensor* nodes[kOperations] = {flash, attention_.node(c, queries, keys, values, seen, scale, 0),
                                           probabilities, attention_.apply(c, given, values, seen, 0)};
        buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(c, ggml_backend_cpu_buffer_type()));
        if (!buffer_) fail(ErrorCode::io, "attention_bench", "not enough memory");
        for (size_t i = 0; i < kOperations; ++i) {
            graphs_[i] = ggml_new_graph_custom(c, 16, false);
            ggml_build_forward_expand(graphs_[i], nodes[i]);
        }
        fill(queries, cache, seen, mask, cached);
        const double pairs =
            static_cast<double>(tokens) * (static_cast<double>(cached) - static_cast<double>(tokens - 1) / 2);
        gigaflop_ = 4e-9 * pairs * static_cast<double>(width);
    }

    // Seconds of each operation in every round.
    std::vector<std::vector<double>> time() {
        std::vector<std::vector<double>> seconds(kOperations);
        for (int round = -1; round < settings_.rounds; ++round) {
            for (size_t i = 0; i < kOperations; ++i) {
                const double s = run(graphs_[i]);
                if (round >= 0) seconds[i].push_back(s);
            }
        }
        return seconds;
    }

    double gigaflop() const { return gigaflop_; }

private:
    void fill(ggml_tensor* queries, ggml_tensor* cache, ggml_tensor* seen, ggml_tensor* mask,
              int64_t cached) {
        std::mt19937 random(1);
        std::normal_distribution<float> normal;
        std::vector<float> some(1 << 16);
        for (float& x : some) x = normal(random);
        std::vector<float> numbers(static_cast<size_t>(std::max(queries->ne[0], cache->ne[0])));
        for (ggml_tensor* tensor : {queries, cache}) {
            const auto* traits = ggml_get_type_traits_cpu(tensor->type);
            for (int64_t r = 0; r < ggml_nrows(tensor); ++r) {
                for (int64_t i = 0; i < tensor->ne[0]; ++i)
                    numbers[static_cast<size_t>(i)] =
                        some[static_cast<size_t>((r * tensor->ne[0] + i) * 7919) % some.size()];
                char* to = static_cast<char*>(tensor->data) + static_cast<size_t>(r) * tensor->nb[1];
                if (tensor->type == GGML_TYPE_F32) {
                    memcpy(to, numbers.data(), tensor->nb[1]);
                } else {
                    traits->from_float(numbers.data(), to, tensor->ne[0]);
                }
            }
        }
        for (int64_t t = 0; t < settings_.tokens; ++t) {
            const int64_t position = cached - settings_.tokens + t;
            static_cast<int32_t*>(seen->data)[2 * t] = 0;
            static_cast<int32_t*>(seen->data)[2 * t + 1] = static_cast<int32_t>(position);
            ggml_fp16_t* row = static_cast<ggml_fp16_t*>(mask->data) + t * cached;
            std::fill(row, row + position + 1, ggml_fp32_to_fp16(0.0F));
            std::fill(row + position + 1, row + cached, ggml_fp32_to_fp16(-INFINITY));
        }
    }

    double run(ggml_cgraph* graph) {
        ggml_cplan plan = ggml_graph_plan(graph, settings_.threads, threads_.awake());
        work_.resize(std::max(work_.size(), plan.work_size));
        plan.work_data = work_.data();
        const auto start = std::chrono::steady_clock::now();
        ggml_graph_compute(graph, &plan);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

    const Settings& settings_;
    Attention attention_;
    EngineThreads threads_;
    ggml_context_ptr context_;
    ggml_backend_buffer_ptr buffer_;
    ggml_cgraph* graphs_[kOperations] = {};
    std::vector<uint8_t> work_;
    double gigaflop_ = 0;
};

void report(const Shape& shape, const Settings& settings, int64_t cached) {
    Layer layer(shape, settings, cached);
    const auto seconds = layer.time();
    const double gigaflop = layer.gigaflop();
    std::vector<double> both, fused, halves, applied;
    for (size_t round = 0; round < seconds[0].size(); ++round) {
        both.push_back(seconds[2][round] + seconds[3][round]);
        fused.push_back(seconds[0][round] / seconds[1][round]);
        halves.push_back(seconds[0][round] / both.back());
        applied.push_back(seconds[0][round] / seconds[3][round]);
    }
    fmt::print("| {} | {} | {:.0f} | {:.0f} ({:.2f}) | {:.0f} ({:.2f}) | {:.0f} | {:.0f} ({:.2f}) |\n",
               shape.name, cached, gigaflop / median(seconds[0]), gigaflop / median(seconds[1]),
               median(fused), gigaflop / median(both), median(halves), gigaflop / 2 / median(seconds[2]),
               gigaflop / 2 / median(seconds[3]), median(applied));
}

int run(int argc, char** argv) {
    CLI::App app("Speed of attention of many tokens");
    Settings settings;
    app.add_option("--threads", settings.threads)->check(CLI::PositiveNumber);
    app.add_option("--tokens", settings.tokens)->check(CLI::PositiveNumber);
    app.add_option("--rounds", settings.rounds)->check(CLI::PositiveNumber);
    app.add_option("--cached", settings.cached)->check(CLI::PositiveNumber);
    app.add_option("--cache", settings.cache, "Type of the KV cache; with f32 probabilities are F32 as well")
        ->check(CLI::IsMember({"f16", "f32", "q8_0"}));
    CLI11_PARSE(app, argc, argv);
    ggml_cpu_init();
    fmt::print(
        "GFLOP/s; in brackets: speed relative to ggml's attention (`apply`: to all of it).\n\n"
        "| shape | cached | {} | {} | {} + {} | {} | {} |\n|---|---|---|---|---|---|---|\n",
        kNames[0], kNames[1], kNames[2], kNames[3], kNames[2], kNames[3]);
    for (const Shape& shape :
         {Shape{"9 heads, 3 KV, 64", 9, 3, 64}, Shape{"32 heads, 32 KV, 128", 32, 32, 128}}) {
        for (const int64_t cached : settings.cached) {
            report(shape, settings, std::max(cached, settings.tokens));
            std::fflush(stdout);
        }
    }
    return 0;
}

}  // namespace
}  // namespace refold

int main(int argc, char** argv) { return refold::run(argc, argv); }
