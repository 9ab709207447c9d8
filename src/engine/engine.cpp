#include "engine/engine.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/parallel.h"
#include "engine/backend.h"
#include "engine/batch.h"
#include "engine/ggml/eviction.h"
#include "engine/positions.h"

namespace refold {
namespace {

constexpr int kMaxThreads = 512;
constexpr int64_t kDefaultContext = 4096;

// Tokens of a sequence that the learned positions can tell apart; 0: no learned positions.
int64_t learned_limit(const ModelConfig& config) {
    return config.n_learned_positions - (config.padding_token ? *config.padding_token + 1 : 0);
}

std::unique_ptr<Backend> make_backend(const Model& model, const EngineOptions& options) {
    if (model.shapes_only)
        fail(ErrorCode::input, "engine", "{}: no weights: only config.json was given", model.label);
    if (options.kind == EngineKind::torch && (options.range || options.observer))
        fail(ErrorCode::unsupported, "engine", "ranges and observers need the ggml engine");
    return options.kind == EngineKind::torch ? make_torch_backend(model, options)
                                             : make_ggml_backend(model, options);
}

}  // namespace

EngineOptions checked_options(EngineOptions o, const ModelConfig& config) {
    if (o.threads < 0 || o.threads > kMaxThreads)
        fail(ErrorCode::usage, "engine", "threads must be 1 to {}, got {}", kMaxThreads, o.threads);
    if (o.context < 0 || o.context > std::numeric_limits<int32_t>::max() / 2)
        fail(ErrorCode::usage, "engine", "context out of range: {}", o.context);
    if (o.chunk < 1) fail(ErrorCode::usage, "engine", "chunk must be at least 1, got {}", o.chunk);
    if (o.threads == 0) o.threads = default_threads();
    if (o.context == 0) {
        o.context = std::min(config.context_length, kDefaultContext);
        if (config.n_learned_positions > 0) o.context = std::min(o.context, learned_limit(config));
    }
    if (const int64_t limit = learned_limit(config); config.n_learned_positions > 0 && o.context > limit) {
        fail(ErrorCode::usage, "engine", "context must be at most {}, the model's learned positions, got {}",
             limit, o.context);
    }
    // An encoder sees its whole sequence at once.
    if (!config.causal) o.chunk = o.context;
    check_eviction(o, config);
    if (o.eviction.active()) o.chunk = std::min(o.chunk, longest_step(o.eviction.rows(o.context)));
    return o;
}

size_t logits_of_step(int64_t n_vocab) {
    return std::max<size_t>(16, (64 << 20) / (static_cast<size_t>(n_vocab) * sizeof(float)));
}

Engine::Engine(const Model& model, const EngineOptions& options)
    : options_(checked_options(options, model.config)),
      config_(model.config),
      backend_(make_backend(model, options_)) {}
Engine::~Engine() = default;

void Engine::check_room(size_t tokens) const {
    if (tokens == 0) fail(ErrorCode::usage, "engine", "no tokens given");
    if (const auto count = static_cast<int64_t>(tokens); length_ + count > options_.context) {
        fail(ErrorCode::input, "engine",
             "{} tokens do not fit: {} of {} are used - raise --context or shorten the text", count, length_,
             options_.context);
    }
}

void Engine::check(std::span<const int32_t> tokens) const {
    check_room(tokens.size());
    for (const int32_t token : tokens) {
        if (token < 0 || token >= config_.n_vocab)
            fail(ErrorCode::input, "engine", "token id {} is not in the vocabulary of {}", token,
                 config_.n_vocab);
    }
}

std::span<const float> Engine::step(std::span<const int32_t> tokens, int64_t outputs,
                                    int64_t sequence_length) {
    check_interrupt();
    const auto positions = positions_of(config_, tokens, length_);
    const auto logits = backend_->step({tokens, positions, {}, {}, length_, outputs, sequence_length});
    length_ += static_cast<int64_t>(tokens.size());
    return logits;
}

static void check_whole(const EngineOptions& options) {
    if (options.range) fail(ErrorCode::internal, "engine", "only a range of the model is loaded");
}

static void check_decoder(const ModelConfig& config) {
    if (!config.causal)
        fail(ErrorCode::usage, "engine", "'{}' is an encoder: it has no next token to predict",
             config.family);
}

std::span<const float> Engine::evaluate(std::span<const int32_t> tokens) {
    check_decoder(config_);
    check_whole(options_);
    check(tokens);
    const int64_t total = length_ + static_cast<int64_t>(tokens.size());
    std::span<const float> logits;
    const auto chunk = static_cast<size_t>(options_.chunk);
    for (size_t first = 0; first < tokens.size(); first += chunk)
        logits = step(tokens.subspan(first, std::min(chunk, tokens.size() - first)), 1, total);
    return logits;
}

void Engine::evaluate_all(std::span<const int32_t> tokens, const LogitsSink& sink, size_t from) {
    check_decoder(config_);
    check_whole(options_);
    check(tokens);
    const int64_t total = length_ + static_cast<int64_t>(tokens.size());
    const auto chunk = static_cast<size_t>(options_.chunk);
    const size_t rows = logits_of_step(config_.n_vocab);
    for (size_t first = 0, end = 0; first < tokens.size(); first = end) {
        const size_t wanted = std::max(first, from);
        end = std::min({first + chunk, wanted + rows, tokens.size()});
        const auto part = tokens.subspan(first, end - first);
        if (wanted >= end)
            step(part, 1, total);
        else
            sink(wanted, step(part, static_cast<int64_t>(end - wanted), total));
    }
}

std::span<const float> Engine::range_step(std::span<const int32_t> tokens, std::span<const float> residual,
                                          int64_t sequence_length) {
    check_interrupt();
    const size_t count =
        tokens.empty() ? residual.size() / static_cast<size_t>(config_.n_embd) : tokens.size();
    std::vector<int32_t> positions(count);
    std::iota(positions.begin(), positions.end(), static_cast<int32_t>(length_));
    const auto added = static_cast<int64_t>(count);
    StepInput input{tokens, positions, {}, {}, length_, added, sequence_length};
    input.residual = residual;
    const auto out = backend_->range_step(input);
    length_ += added;
    return out;
}

void Engine::evaluate_range(std::span<const float> residual, const LogitsSink& sink) {
    const auto width = static_cast<size_t>(config_.n_embd);
    if (!options_.range || residual.size() % width != 0)
        fail(ErrorCode::internal, "engine", "no range, or {} floats for rows of {}", residual.size(), width);
    const size_t count = residual.size() / width;
    check_room(count);
    const int64_t total = length_ + static_cast<int64_t>(count);
    const auto chunk = static_cast<size_t>(options_.chunk);
    for (size_t first = 0; first < count; first += chunk) {
        const size_t rows = std::min(chunk, count - first);
        sink(first, range_step({}, residual.subspan(first * width, rows * width), total));
    }
}

void Engine::evaluate_range(std::span<const int32_t> tokens, const LogitsSink& sink) {
    if (!options_.range || options_.range->first != 0)
        fail(ErrorCode::internal, "engine", "tokens are the input of ranges that begin at position 0");
    check(tokens);
    const int64_t total = length_ + static_cast<int64_t>(tokens.size());
    const auto chunk = static_cast<size_t>(options_.chunk);
    for (size_t first = 0; first < tokens.size(); first += chunk)
        sink(first, range_step(tokens.subspan(first, std::min(chunk, tokens.size() - first)), {}, total));
}

Encoding Engine::encode(const EncoderInput& input) {
    if (config_.causal)
        fail(ErrorCode::usage, "engine", "'{}' is a decoder: token types, masks and encoding need an encoder",
             config_.family);
    length_ = 0;
    check(input.tokens);
    const size_t count = input.tokens.size();
    const auto check_values = [&](std::span<const int32_t> values, const char* what, int64_t limit) {
        if (values.empty()) return;
        if (values.size() != count)
            fail(ErrorCode::input, "engine", "{} {} for {} tokens", values.size(), what, count);
        for (const int32_t value : values) {
            if (value < 0 || value >= limit)
                fail(ErrorCode::input, "engine", "{} must be 0 to {}, got {}", what, limit - 1, value);
        }
    };
    check_values(input.token_types, "token types", std::max<int64_t>(1, config_.n_token_types));
    check_values(input.mask, "mask values", 2);
    if (!input.mask.empty() && std::find(input.mask.begin(), input.mask.end(), 1) == input.mask.end())
        fail(ErrorCode::input, "engine", "the mask hides all tokens");
    const auto positions = positions_of(config_, input.tokens, 0);
    const auto tokens = static_cast<int64_t>(count);
    return backend_->encode({input.tokens, positions, input.token_types, input.mask, 0, tokens, tokens});
}

void Engine::truncate(int64_t length) {
    if (length < 0 || length > length_)
        fail(ErrorCode::usage, "engine", "cannot truncate {} tokens to {}", length_, length);
    if (evicts() && length != 0 && length != length_) {
        fail(ErrorCode::usage, "engine",
             "cannot truncate {} tokens to {}: rows of the KV cache may have been evicted - start again from "
             "0",
             length_, length);
    }
    length_ = length;
}

int64_t Engine::length() const { return length_; }
int64_t Engine::context() const { return options_.context; }
int64_t Engine::n_vocab() const { return config_.n_vocab; }
int Engine::threads() const { return options_.threads; }
EngineMemory Engine::memory() const { return backend_->memory(); }
void Engine::pause() { backend_->pause(); }

}  // namespace refold
