#include "engine/engine.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/parallel.h"
#include "engine/ggml/graph.h"
#include "io/ggml_log.h"

namespace refold {
namespace {

// Attention reads the cache in steps of this many rows, so a graph lives for as many tokens.
constexpr int64_t kCacheStep = 256;
constexpr int64_t kDefaultContext = 4096;
constexpr uint64_t kLogitsBytes = 64ULL << 20;  // bound on the logits of one step

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

EngineOptions checked(EngineOptions o, const Model& model) {
    if (o.threads < 0 || o.threads > GGML_MAX_N_THREADS)
        fail(ErrorCode::usage, "engine", "threads must be 1 to {}, got {}", GGML_MAX_N_THREADS, o.threads);
    if (o.context < 0 || o.context > std::numeric_limits<int32_t>::max() / 2)
        fail(ErrorCode::usage, "engine", "context out of range: {}", o.context);
    if (o.chunk < 1) fail(ErrorCode::usage, "engine", "chunk must be at least 1, got {}", o.chunk);
    if (o.threads == 0) o.threads = default_threads();
    if (o.context == 0) o.context = std::min(model.config.context_length, kDefaultContext);
    return o;
}

ThreadpoolPtr make_pool(int threads) {
    capture_ggml_log();
    ggml_cpu_init();
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    ThreadpoolPtr pool(ggml_threadpool_new(&params));
    if (!pool) fail(ErrorCode::io, "engine", "cannot start {} threads", threads);
    return pool;
}

}  // namespace

struct Engine::Impl {
    Impl(const Model& model, const EngineOptions& given)
        : options(checked(given, model)),
          config(model.config),
          n_positions(model.topology.positions.size()),
          pool(make_pool(options.threads)),
          weights(model, options.f32, options.shared, options.threads),
          cache(config, n_positions, round_up(options.context, kCacheStep),
                options.f32 || options.kv == KvType::f32 ? GGML_TYPE_F32 : GGML_TYPE_F16),
          decode(config, round_up(options.context, kCacheStep), options.threads),
          prefill(config, round_up(options.context, kCacheStep), options.threads) {}

    // One step: appends `tokens`, computes the logits of the last `outputs` of them.
    const float* step(std::span<const int32_t> tokens, int64_t outputs) {
        check_interrupt();
        const auto count = static_cast<int64_t>(tokens.size());
        StepGraph& graph = count == 1 ? decode : prefill;
        graph.prepare(config, n_positions, weights, cache,
                      {count, round_up(length + count, kCacheStep), outputs});
        for (size_t t = 0; t < tokens.size(); ++t) {
            const auto width = static_cast<size_t>(config.n_embd);
            weights.embedding(tokens[t], {graph.input() + t * width, width});
        }
        graph.compute(length, pool.get());
        length += count;
        return graph.logits();
    }

    void check(std::span<const int32_t> tokens) const {
        if (tokens.empty()) fail(ErrorCode::usage, "engine", "no tokens given");
        if (const auto count = static_cast<int64_t>(tokens.size()); length + count > options.context) {
            fail(ErrorCode::input, "engine",
                 "{} tokens do not fit: {} of {} are used - raise --context or shorten the text", count,
                 length, options.context);
        }
        for (const int32_t token : tokens) {
            if (token < 0 || token >= config.n_vocab)
                fail(ErrorCode::input, "engine", "token id {} is not in the vocabulary of {}", token,
                     config.n_vocab);
        }
    }

    EngineOptions options;
    ModelConfig config;
    size_t n_positions;
    ThreadpoolPtr pool;
    Weights weights;
    KvCache cache;
    StepGraph decode, prefill;
    int64_t length = 0;
};

Engine::Engine(const Model& model, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, options)) {}
Engine::~Engine() = default;

std::span<const float> Engine::evaluate(std::span<const int32_t> tokens) {
    impl_->check(tokens);
    const float* logits = nullptr;
    const auto chunk = static_cast<size_t>(impl_->options.chunk);
    for (size_t first = 0; first < tokens.size(); first += chunk) {
        logits = impl_->step(tokens.subspan(first, std::min(chunk, tokens.size() - first)), 1);
    }
    return {logits, static_cast<size_t>(impl_->config.n_vocab)};
}

void Engine::evaluate_all(std::span<const int32_t> tokens, const LogitsSink& sink) {
    impl_->check(tokens);
    const uint64_t row_bytes = static_cast<uint64_t>(impl_->config.n_vocab) * sizeof(float);
    const auto chunk = static_cast<size_t>(std::min<int64_t>(
        impl_->options.chunk, std::max<int64_t>(16, static_cast<int64_t>(kLogitsBytes / row_bytes))));
    for (size_t first = 0; first < tokens.size(); first += chunk) {
        const auto part = tokens.subspan(first, std::min(chunk, tokens.size() - first));
        const float* logits = impl_->step(part, static_cast<int64_t>(part.size()));
        sink(first, {logits, part.size() * static_cast<size_t>(impl_->config.n_vocab)});
    }
}

void Engine::truncate(int64_t length) {
    if (length < 0 || length > impl_->length)
        fail(ErrorCode::usage, "engine", "cannot truncate {} tokens to {}", impl_->length, length);
    impl_->length = length;
}

int64_t Engine::length() const { return impl_->length; }
int64_t Engine::context() const { return impl_->options.context; }
int64_t Engine::n_vocab() const { return impl_->config.n_vocab; }
int Engine::threads() const { return impl_->options.threads; }
void Engine::pause() { ggml_threadpool_pause(impl_->pool.get()); }

EngineMemory Engine::memory() const {
    return {impl_->weights.bytes(), ggml_backend_buffer_get_size(impl_->cache.buffer.get()),
            impl_->decode.compute_bytes() + impl_->prefill.compute_bytes() + impl_->weights.scratch_bytes()};
}

}  // namespace refold
