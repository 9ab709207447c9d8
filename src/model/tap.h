// Activations of the forward pass that can be observed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <utility>

namespace refold {

enum class Tap {
    layer_input,     // residual stream [n_embd]
    attn_input,      // normed input of the attention, and of W_c [n_embd]
    q,               // after norm and rotation [n_head * head_dim]
    k,               // after norm and rotation [n_head_kv * head_dim]
    v,               // [n_head_kv * head_dim]
    probabilities,   // of own attention, n_head matrices of keys for every token: see Tapped
    attn_inner,      // input of attn.o [n_head * head_dim]
    attn_projected,  // input of attn.post_norm: output of attn.o, plus attn.comp_norm [n_embd]
    attn_output,     // the addend of the residual stream, without attn.comp [n_embd]
    residual,        // between attention and FFN [n_embd]; not with a parallel residual
    ffn_input,       // normed [n_embd]
    ffn_inner,       // input of ffn.down [n_ff]
    ffn_projected,   // output of ffn.down, before ffn.post_norm [n_embd]
    ffn_output,      // the addend of the residual stream [n_embd]
    logits,          // layer kWholeModel [n_vocab]
};
const char* tap_name(Tap tap);

// One activation of one step.
struct Tapped {
    size_t layer;
    Tap tap;
    int64_t first_token;  // position in the sequence of the first of `tokens` tokens
    int64_t tokens, features;
    // [tokens][features]; probabilities: [n_head][tokens][features], where features are the keys from 0 to
    // the step's last. Valid during the call.
    std::span<const float> values;
};

// `see` is called with the taps of every step, in the order of the forward pass.
struct Observer {
    std::set<std::pair<size_t, Tap>> taps;
    std::function<void(const Tapped&)> see;
    // Compute only what the taps need: a step has no result.
    bool only_taps = false;
};

}  // namespace refold
