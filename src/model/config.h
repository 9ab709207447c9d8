// Hyper-parameters of a model, which a family's description reads from metadata.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace refold {

enum class RopeKind {
    interleaved,  // rotates pairs (2i, 2i+1): llama.cpp's "NORM" layout of Llama checkpoints
    halves,       // rotates pairs (i, i + dims/2): "NEOX"
};

// Rotary position embedding with the scalings linear, dynamic and YaRN. Factors of each frequency (Llama 3,
// LongRoPE) are tensors: Slot::rope_freqs.
struct Rope {
    RopeKind kind = RopeKind::interleaved;
    int dims = 0;  // rotated dimensions of a head, its first ones; 0: no rotation
    float base = 10000.0F;
    float frequency_scale = 1.0F;  // 1 / scaling factor
    int original_context = 0;
    float ext_factor = 0.0F;  // YaRN: 1, otherwise 0
    float attention_factor = 1.0F;
    float beta_fast = 32.0F;
    float beta_slow = 1.0F;
    float dynamic_factor = 0.0F;  // NTK-aware scaling of sequences beyond original_context; 0: off
    bool long_factors = false;    // longer sequences than original_context: Slot::rope_freqs_long

    // Sequences of `length` tokens are rotated otherwise than short ones.
    bool stretches(int64_t length) const {
        return (dynamic_factor > 0 || long_factors) && length > original_context;
    }
    // Base for a sequence of `length` tokens: base * (f * length / context - (f - 1)) ^ (dims / (dims - 2)).
    float base_for(int64_t length) const {
        if (dynamic_factor <= 0 || !stretches(length)) return base;
        const double stretch =
            static_cast<double>(dynamic_factor) * static_cast<double>(length) / original_context -
            (static_cast<double>(dynamic_factor) - 1.0);
        return static_cast<float>(base * std::pow(stretch, static_cast<double>(dims) / (dims - 2)));
    }
};

enum class NormKind {
    rms,    // x / rms(x) * weight
    layer,  // (x - mean) / deviation * weight + bias
};

enum class Activation {
    silu,
    gelu,       // exact: x * Phi(x)
    gelu_tanh,  // its tanh approximation ("gelu_new", "gelu_pytorch_tanh")
    relu,
    relu_squared,
    tanh,
    // Of gates, with the map beside them (gpt-oss): min(g, 7) sigmoid(1.702 min(g, 7)) (clamp(u, -7, 7) + 1)
    swiglu_clamped,
};
constexpr float kSwigluLimit = 7.0F, kSwigluAlpha = 1.702F;  // of swiglu_clamped

// Modules and norms are not listed here: a layer has those whose slots the topology fills.
struct ModelConfig {
    std::string family;  // GGUF general.architecture
    int64_t n_embd = 0;
    int64_t n_head = 0;
    int64_t n_head_kv = 0;  // n_head / n_head_kv query heads share one key/value head (GQA)
    int64_t head_dim = 0;
    int64_t n_ff = 0;
    int64_t n_vocab = 0;
    // By layer, where pruning left fewer than n_head_kv or n_ff; 0: the layer lacks the module. Empty: no
    // layer differs.
    std::vector<int64_t> heads_kv, ffs;
    int64_t context_length = 0;  // tokens the model was trained for
    int64_t n_embedding = 0;     // of a row of the embeddings; 0: n_embd

    // Several residual streams of n_embd features (AltUp, Gemma 3n): a layer runs on the first one's
    // prediction, and all are corrected by what came of it.
    int64_t n_stream = 1;
    int64_t n_laurel = 0;                          // rank of LAuReL's map; 0: none
    int64_t n_layer_input = 0, n_input_layer = 0;  // features of the inputs of each layer, layers; 0: none
    int64_t n_layer_input_vocab = 0;               // tokens for which a checkpoint has such inputs; 0: all
    // The layers from this one on use the keys and values of the last one before it that has a window, or
    // none, as they do. 0: all layers have their own.
    size_t first_kv_shared = 0;

    // Mixture of experts; n_expert 0: every layer has an FFN.
    int64_t n_expert = 0, n_expert_used = 0, n_ff_expert = 0;
    // By layer, where some have fewer; 0: the layer has an FFN. Empty: n_expert.
    std::vector<int64_t> experts;
    // Weights of the experts that a token uses: their softmax over all experts, or (true) over those.
    bool norm_expert_weights = true;

    NormKind norm = NormKind::rms;
    float norm_eps = 1e-5F;
    Activation activation = Activation::silu;
    // By layer: the FFN's gates are max(0, gate - (mean + cut x deviation)) over a token's channels before
    // the activation; -infinity: as they are. Empty: in all layers.
    std::vector<float> ffn_cuts;
    bool parallel_residual = false;  // attention and FFN read the same residual stream
    float embedding_scale = 1.0F;
    float residual_scale = 1.0F;  // of what attention and FFN add to the residual stream

    bool causal = true;              // false: encoder, every token sees every token
    float attention_scale = 0.0F;    // of query-key products; see attention_scale_of()
    bool scale_by_layer = false;     // attention_scale / (layer + 1)
    float attention_softcap = 0.0F;  // cap * tanh(score / cap); 0: off
    float max_alibi_bias = 0.0F;     // ALiBi slopes 2^(-max_bias * i / n); 0: off
    // By layer, with ALiBi, where pruning left out some heads: the numbers that the key/value heads had,
    // whose slopes they keep. An empty list: 0, 1, 2, ...; empty: so in all layers.
    std::vector<std::vector<int64_t>> alibi_heads;
    // By layer: how many keys a token sees, itself included; 0: all. A shorter list repeats; empty: no
    // windows.
    std::vector<int64_t> windows;
    Rope rope;
    std::optional<Rope> local_rope;  // of layers with a window, where it differs
    // By layer: queries and keys are rotated. A shorter list repeats; empty: in all layers.
    std::vector<bool> rotated;
    bool norm_after_rope = false;  // norms of queries and keys follow the rotation
    bool norm_by_head = false;     // attn.q_norm_all, attn.k_norm_all: each head is normalized by itself
    bool norm_values = false;      // RMS norm of each head's values, without a gain

    int64_t n_prefix = 0;             // trained keys and values before the first token, at every layer
    int64_t n_learned_positions = 0;  // rows of position_embd; 0: none
    int64_t n_token_types = 0;
    std::optional<int32_t> padding_token;  // RoBERTa: positions count from padding_token + 1, without padding

    bool norm_head = false;      // logits are products with the output rows divided by their L2 norm
    float logit_scale = 1.0F;    // of logits, before the soft cap
    float logit_softcap = 0.0F;  // cap * tanh(logit / cap); 0: off

    int64_t q_per_kv() const { return n_head / n_head_kv; }
    int64_t n_head_kv_of(size_t layer) const { return layer < heads_kv.size() ? heads_kv[layer] : n_head_kv; }
    int64_t n_head_of(size_t layer) const { return n_head_kv_of(layer) * q_per_kv(); }
    int64_t n_ff_of(size_t layer) const { return layer < ffs.size() ? ffs[layer] : n_ff; }
    int64_t n_expert_of(size_t layer) const { return layer < experts.size() ? experts[layer] : n_expert; }
    bool cuts_ffn(size_t layer) const { return layer < ffn_cuts.size() && std::isfinite(ffn_cuts[layer]); }
    int64_t embedding_width() const { return n_embedding > 0 ? n_embedding : n_embd; }
    const std::vector<int64_t>& alibi_heads_of(size_t layer) const {
        static const std::vector<int64_t> all;
        return layer < alibi_heads.size() ? alibi_heads[layer] : all;
    }
    float attention_scale_of(size_t layer) const {
        return scale_by_layer ? attention_scale / static_cast<float>(layer + 1) : attention_scale;
    }
    int64_t window(size_t layer) const { return windows.empty() ? 0 : windows[layer % windows.size()]; }
    bool rotates(size_t layer) const { return rotated.empty() || rotated[layer % rotated.size()]; }
    // Without dimensions where the layer does not rotate.
    const Rope& rope_of(size_t layer) const {
        static const Rope none;
        if (!rotates(layer)) return none;
        return local_rope && window(layer) > 0 ? *local_rope : rope;
    }
};

}  // namespace refold
