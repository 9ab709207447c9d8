// Hyper-parameters of a model: what a family's description reads from metadata, in ggml's words.
#pragma once

#include <cstdint>
#include <string>

namespace refold {

enum class RopeKind {
    interleaved,  // rotates pairs (2i, 2i+1): llama.cpp's "NORM" layout of Llama checkpoints
    halves,       // rotates pairs (i, i + dims/2): "NEOX"
};

// Rotary position embedding with the scalings of Llama-family checkpoints (linear, YaRN; Llama 3's frequency
// factors are a tensor, see Slot::rope_freqs).
struct Rope {
    RopeKind kind = RopeKind::interleaved;
    int dims = 0;  // rotated dimensions of a head
    float base = 10000.0F;
    float frequency_scale = 1.0F;  // 1 / scaling factor
    int original_context = 0;
    float ext_factor = 0.0F;  // YaRN: 1, otherwise 0
    float attention_factor = 1.0F;
    float beta_fast = 32.0F;
    float beta_slow = 1.0F;
};

enum class Activation { silu };

struct ModelConfig {
    std::string family;  // GGUF general.architecture
    int64_t n_embd = 0;
    int64_t n_head = 0;
    int64_t n_head_kv = 0;  // n_head / n_head_kv query heads share one key/value head (GQA)
    int64_t head_dim = 0;
    int64_t n_ff = 0;
    int64_t n_vocab = 0;
    int64_t context_length = 0;  // tokens the model was trained for
    float norm_eps = 1e-5F;
    Activation activation = Activation::silu;
    Rope rope;

    int64_t q_per_kv() const { return n_head / n_head_kv; }
};

}  // namespace refold
