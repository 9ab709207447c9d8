#include "engine/checked_options.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/parallel.h"
#include "core/text.h"
#include "engine/devices.h"

namespace refold {
namespace {

constexpr int kMaxThreads = 512;
constexpr int64_t kDefaultContext = 4096;

// Tokens of a sequence that the learned positions can tell apart; 0: no learned positions.
int64_t learned_limit(const ModelConfig& config) {
    if (config.n_learned_positions == 0) return 0;
    return config.n_learned_positions - (config.padding_token ? *config.padding_token + 1 : 0);
}

int64_t context_of(const EngineOptions& options, const ModelConfig& config) {
    if (options.context != 0) return options.context;
    const int64_t context = std::min(config.context_length, kDefaultContext), limit = learned_limit(config);
    return limit > 0 ? std::min(context, limit) : context;
}

bool stretches_rotation(const ModelConfig& config, int64_t context) { return config.rope.stretches(context); }

void check_numbers(const EngineOptions& o, const ModelConfig& config) {
    if (o.threads < 0 || o.threads > kMaxThreads)
        fail(ErrorCode::usage, "engine", "threads must be 1 to {}, got {}", kMaxThreads, o.threads);
    if (o.context < 0 || o.context > std::numeric_limits<int32_t>::max() / 2)
        fail(ErrorCode::usage, "engine", "context out of range: {}", o.context);
    if (o.chunk < 1) fail(ErrorCode::usage, "engine", "chunk must be at least 1, got {}", o.chunk);
    if (const int64_t limit = learned_limit(config); limit > 0 && o.context > limit) {
        fail(ErrorCode::usage, "engine", "context must be at most {}, the model's learned positions, got {}",
             limit, o.context);
    }
    if (o.sequences < 0)
        fail(ErrorCode::usage, "engine", "sequences must be at least 0, got {}", o.sequences);
    if (o.kv_tokens < 0) fail(ErrorCode::usage, "engine", "KV tokens out of range: {}", o.kv_tokens);
}

void check_range(const EngineOptions& o, const ModelConfig& config, const Topology& topology) {
    if (!o.range) return;
    if (config.n_stream > 1)
        fail(ErrorCode::unsupported, "engine",
             "a range of layers: '{}' has {} residual streams and inputs of each layer, so layers do not run "
             "apart",
             config.family, config.n_stream);
    const size_t n_layer = topology.layers.size();
    if (o.range->first > o.range->last || o.range->last > n_layer) {
        fail(ErrorCode::usage, "engine", "layers {} to {} of a model with {}", o.range->first, o.range->last,
             n_layer);
    }
    for (size_t p = o.range->first; p < o.range->last; ++p) {
        const AttentionSource& source = topology.source(p);
        if (!source.own() && !o.range->contains(source.from(p)))
            fail(ErrorCode::internal, "engine", "layer {} without the source of its attention", p);
    }
}

// `context` is complete.
void check_eviction(const EngineOptions& options, const ModelConfig& config) {
    const EvictionOptions& o = options.eviction;
    const auto is_fraction = [](double x) { return x >= 0 && x <= 1; };
    if (!(o.budget > 0)) fail(ErrorCode::usage, "engine", "KV budget must be above 0, got {}", o.budget);
    if (!is_fraction(o.recent))
        fail(ErrorCode::usage, "engine", "KV recent part must be 0 to 1, got {}", o.recent);
    if (o.sinks < 0) fail(ErrorCode::usage, "engine", "KV sinks must be at least 0, got {}", o.sinks);
    if (o.policy == KvPolicy::none) {
        if (o.budget < 1) fail(ErrorCode::usage, "engine", "a KV budget needs a policy: h2o or recent");
        return;
    }
    const auto refuse = [&](const char* reason) {
        fail(ErrorCode::unsupported, "engine", "KV eviction ({}) {}", kv_policy_name(o.policy), reason);
    };
    if (!config.causal) refuse("needs a decoder: an encoder has no KV cache");
    if (options.kind != EngineKind::ggml) refuse("needs the ggml engine");
    if (config.max_alibi_bias > 0) refuse("does not work with ALiBi: its distances are those of all rows");
    if (config.n_prefix > 0) refuse("does not work with a prefix, which every token sees");
    if (!o.active()) return;
    if (options.range || options.observer) refuse("does not work with ranges and observers");
    const int64_t rows = o.rows(options.context), least = o.policy == KvPolicy::recent ? o.sinks + 1 : 1;
    if (rows - rows_freed(longest_step(rows), rows) < least) {
        fail(ErrorCode::usage, "engine",
             "a KV budget of {} of {} tokens is {} rows, too few for policy {}{} - raise the budget or the "
             "context",
             o.budget, options.context, rows, kv_policy_name(o.policy),
             o.policy == KvPolicy::recent ? fmt::format(" with {} sinks", o.sinks) : "");
    }
}

void check_cache_type(const EngineOptions& o, const ModelConfig& config) {
    const int64_t block = block_elements(element_type(o.kv));
    if (o.f32 || o.kind != EngineKind::ggml || block == 1) return;
    if (!config.causal)
        fail(ErrorCode::unsupported, "engine", "a KV cache of type {}: '{}' is an encoder and has none",
             kv_type_name(o.kv), config.family);
    if (config.head_dim % block != 0)
        fail(ErrorCode::unsupported, "engine",
             "a KV cache of type {} has blocks of {} numbers, and the model's heads have {} - use f16",
             kv_type_name(o.kv), block, config.head_dim);
}

void check_several(const EngineOptions& o, const Model& model) {
    if (o.sequences == 1 && !o.by_loop) return;
    const std::string obstacle = obstacle_to_several_sequences(model, o);
    if (!obstacle.empty()) {
        fail(ErrorCode::unsupported, "engine", "{}: {}",
             o.by_loop ? "steps by loop" : "many sequences at once", obstacle);
    }
}

// Room of several sequences. `context` is complete.
int64_t kv_tokens_of(const EngineOptions& o, const Model& model) {
    const int64_t loops = o.by_loop ? model.topology.loops : 1,
                  most = std::numeric_limits<int32_t>::max() / 2 / loops, prefix = model.config.n_prefix,
                  contexts = o.sequences == 0 ? kDefaultContexts : o.sequences;
    if (o.kv_tokens == 0 && contexts > most / (prefix + o.context)) {
        fail(ErrorCode::usage, "engine", "{} sequences of {} tokens are more than {} KV tokens", contexts,
             o.context, most);
    }
    const int64_t tokens = o.kv_tokens > 0 ? o.kv_tokens : contexts * (prefix + o.context);
    if (tokens > most) fail(ErrorCode::usage, "engine", "KV tokens must be at most {}, got {}", most, tokens);
    return std::max(tokens, prefix + 1);
}

}  // namespace

std::string obstacle_to_several_sequences(const Model& model, const EngineOptions& options) {
    if (options.rope.active()) {
        EngineOptions others = options;
        others.rope = {};
        return obstacle_to_several_sequences(with_rope(model, options.rope), others);
    }
    const ModelConfig& config = model.config;
    if (options.kind != EngineKind::ggml) return "not by the torch engine - use --engine ggml";
    if (options.range || options.observer) return "neither ranges of layers nor observers";
    if (!config.causal) return fmt::format("'{}' is an encoder", config.family);
    if (options.eviction.active()) return "not with a KV cache that evicts rows - leave out --kv-policy";
    if (stretches_rotation(config, context_of(options, config))) {
        return fmt::format(
            "the rotation is stretched for sequences longer than {} tokens - use a --context of at most that",
            config.rope.original_context);
    }
    return "";
}

// Chooses the device.
void check_device(EngineOptions& o) {
    if (o.kind != EngineKind::ggml) {
        if (o.device.empty()) o.device = "auto";
        return;
    }
    if (o.device.empty()) o.device = kCpu;
    if (o.device == kCpu) {  // looks for no others
        if (o.gpu_layers >= 0)
            fail(ErrorCode::usage, "engine", "--gpu-layers needs a --device other than the CPU");
        return;
    }
    // Workers are asked once, by the engine.
    if (o.device.find(kWorker) != std::string::npos) return;
    std::vector<std::string> names;
    for (const Device& device : find_devices(o.device, o.workers)) names.push_back(device.name);
    o.device = join(names, ",");
}

EngineOptions checked_options(EngineOptions o, const Model& model) {
    const ModelConfig& config = model.config;
    if (model.shapes_only)
        fail(ErrorCode::input, "engine", "{}: no weights: only config.json was given", model.label);
    // First what the model or the engine cannot do at all, then numbers.
    if (o.kind == EngineKind::torch && o.observer &&
        std::ranges::any_of(o.observer->taps,
                            [](const auto& tap) { return tap.second == Tap::probabilities; }))
        fail(ErrorCode::unsupported, "engine", "probabilities of attention are observed by the ggml engine");
    if (o.kind == EngineKind::torch && o.precision != Precision::stored)
        fail(ErrorCode::unsupported, "engine",
             "the torch engine computes in float32 - leave out --precision");
    check_several(o, model);
    check_cache_type(o, config);
    check_numbers(o, config);
    if (o.sequences == 1 && o.kv_tokens > 0)
        fail(ErrorCode::usage, "engine", "KV tokens are the room of several sequences; one has its context");
    check_range(o, config, model.topology);
    if (o.threads == 0) o.threads = default_threads();
    check_device(o);
    o.context = context_of(o, config);
    check_eviction(o, config);
    // An encoder attends to its whole sequence at once.
    if (!config.causal) o.chunk = o.context;
    if (o.eviction.active()) o.chunk = std::min(o.chunk, longest_step(o.eviction.rows(o.context)));
    o.by_loop = o.by_loop && model.topology.loops > 1;
    if (o.sequences != 1 || o.by_loop) o.kv_tokens = kv_tokens_of(o, model);
    return o;
}

Capabilities capabilities_of(const Model& model, const EngineOptions& options) {
    const ModelConfig& config = model.config;
    Capabilities out;
    out.family = config.family;
    out.context = options.context;
    out.kv_tokens = options.kv_tokens > 0 ? options.kv_tokens : options.context;
    out.sequences = options.sequences > 0 ? options.sequences : out.kv_tokens;
    out.max_rows = options.chunk;
    out.n_vocab = config.n_vocab;
    out.n_embd = config.n_embd;
    out.threads = options.threads;
    out.loops = options.by_loop ? static_cast<int32_t>(model.topology.loops) : 1;
    out.exit_gate = out.loops > 1 && model.topology.globals.contains(Slot::exit_gate);
    out.causal = config.causal;
    out.range = options.range;
    out.observed = options.observer != nullptr;
    out.logits = !options.range && model.topology.globals.contains(Slot::output) &&
                 !(out.observed && options.observer->only_taps);
    out.adapters = options.kind == EngineKind::ggml && (options.sequences != 1 || options.by_loop);
    out.evicts = options.eviction.active();
    out.stretches_rotation = stretches_rotation(config, options.context);
    out.exact_truncation = !out.evicts && !out.stretches_rotation;
    return out;
}

}  // namespace refold
