#include "api/config_json.h"

#include <nlohmann/json.hpp>

#include "model/activation.h"

namespace refold {
namespace {

using nlohmann::ordered_json;

const char* name_of(NormKind kind) { return kind == NormKind::rms ? "rms" : "layer"; }
const char* name_of(RopeKind kind) { return kind == RopeKind::interleaved ? "interleaved" : "halves"; }

ordered_json json_of(const Rope& rope) {
    return {{"kind", name_of(rope.kind)},
            {"dims", rope.dims},
            {"base", rope.base},
            {"frequency_scale", rope.frequency_scale},
            {"original_context", rope.original_context},
            {"ext_factor", rope.ext_factor},
            {"attention_factor", rope.attention_factor},
            {"beta_fast", rope.beta_fast},
            {"beta_slow", rope.beta_slow},
            {"dynamic_factor", rope.dynamic_factor},
            {"long_factors", rope.long_factors}};
}

}  // namespace

std::string to_json(const ModelConfig& c) {
    ordered_json out = {{"family", c.family},
                        {"n_embd", c.n_embd},
                        {"n_head", c.n_head},
                        {"n_head_kv", c.n_head_kv},
                        {"head_dim", c.head_dim},
                        {"n_ff", c.n_ff},
                        {"n_vocab", c.n_vocab},
                        {"heads_kv", c.heads_kv},
                        {"ffs", c.ffs},
                        {"context_length", c.context_length},
                        {"n_embedding", c.n_embedding},
                        {"n_stream", c.n_stream > 1 ? c.n_stream : 0},
                        {"n_laurel", c.n_laurel},
                        {"n_layer_input", c.n_layer_input},
                        {"first_kv_shared", c.first_kv_shared},
                        {"norm_values", c.norm_values},
                        {"ffn_cuts", c.ffn_cuts},
                        {"n_expert", c.n_expert},
                        {"n_expert_used", c.n_expert_used},
                        {"n_ff_expert", c.n_ff_expert},
                        {"experts", c.experts},
                        {"norm_expert_weights", c.n_expert > 0 && c.norm_expert_weights},
                        {"norm", name_of(c.norm)},
                        {"norm_eps", c.norm_eps},
                        {"activation", activation_name(c.activation)},
                        {"parallel_residual", c.parallel_residual},
                        {"embedding_scale", c.embedding_scale},
                        {"residual_scale", c.residual_scale},
                        {"causal", c.causal},
                        {"attention_scale", c.attention_scale},
                        {"scale_by_layer", c.scale_by_layer},
                        {"attention_softcap", c.attention_softcap},
                        {"max_alibi_bias", c.max_alibi_bias},
                        {"alibi_heads", c.alibi_heads},
                        {"windows", c.windows},
                        {"rope", json_of(c.rope)},
                        {"local_rope", nullptr},
                        {"rotated", c.rotated},
                        {"norm_after_rope", c.norm_after_rope},
                        {"norm_by_head", c.norm_by_head},
                        {"n_prefix", c.n_prefix},
                        {"n_learned_positions", c.n_learned_positions},
                        {"n_token_types", c.n_token_types},
                        {"padding_token", nullptr},
                        {"norm_head", c.norm_head},
                        {"logit_scale", c.logit_scale},
                        {"logit_softcap", c.logit_softcap}};
    if (c.local_rope) out["local_rope"] = json_of(*c.local_rope);
    if (c.padding_token) out["padding_token"] = *c.padding_token;
    return out.dump();
}

}  // namespace refold
