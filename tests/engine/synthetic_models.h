// Tiny random models that together use every feature of ModelConfig and every slot, made by hand rather than
// by families.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "engine/reference.h"
#include "model/model.h"

namespace refold {

struct SyntheticModel {
    std::string name;
    Model model;
    reference::Input input;
};

// A model with these slots, each its own tensor of random values: "p<layer>.<slot>" or "<slot>".
struct SyntheticShape {
    ModelConfig config;
    std::vector<Slot> layer_slots, model_slots;
    size_t layers = 3;
};

// Different everywhere, the same in every run and with every standard library.
class RandomWeights {
public:
    explicit RandomWeights(uint32_t seed) : random_(seed) {}

    Tensor tensor(const SlotShape& shape, float mean, float spread) {
        std::vector<float> values(static_cast<size_t>(shape.in * shape.out));
        for (float& value : values)
            value = mean + spread * (static_cast<float>(random_() % 20001) / 10000.0F - 1.0F);
        Tensor tensor{DType::F32, {shape.in}, {}, {}};
        if (shape.out > 1) tensor.shape.push_back(shape.out);
        tensor.produce = [bytes = quantize(DType::F32, values, shape.in)] { return bytes; };
        return tensor;
    }

private:
    std::mt19937 random_;
};

inline bool is_norm(Slot slot) { return properties(slot).kind == SlotKind::norm_gain; }

inline Model synthetic_model(const SyntheticShape& shape, uint32_t seed = 1) {
    Model model;
    model.label = "synthetic model";
    model.config = shape.config;
    RandomWeights random(seed);
    const auto add = [&](Slots& slots, Slot slot, const std::string& prefix, size_t layer = kWholeModel) {
        const std::string name = prefix + slot_name(slot);
        // Norms around 1, factors of the rotation positive.
        const float mean = is_norm(slot)                                     ? 1.0F
                           : properties(slot).kind == SlotKind::rope_factors ? 2.0F
                                                                             : 0.0F;
        model.tensors[name] =
            random.tensor(slot_shape(slot, shape.config, layer), mean, mean == 1.0F ? 0.4F : 0.7F);
        slots[slot] = Dense{name};
    };
    for (size_t p = 0; p < shape.layers; ++p) {
        Slots& slots = model.topology.layers.emplace_back();
        for (const Slot slot : shape.layer_slots) add(slots, slot, "p" + std::to_string(p) + ".", p);
    }
    for (const Slot slot : shape.model_slots) add(model.topology.globals, slot, "");
    return model;
}

// Query, key, value and output matrices made of heads of several layers; the last two layers tied but
// for them; the output tied to the embeddings.
inline Model share(Model model) {
    auto& layers = model.topology.layers;
    const auto tensor = [](size_t p, Slot slot) { return "p" + std::to_string(p) + "." + slot_name(slot); };
    const int64_t heads = model.config.n_head, kv = model.config.n_head_kv;
    Slots last = layers[1];
    for (const Slot slot : {Slot::attn_q, Slot::attn_o}) {
        last[slot] = Heads{{{tensor(0, slot), heads - 1, 1}, {tensor(2, slot), 0, heads - 1}}};
        layers[1][slot] = Heads{{{tensor(1, slot), 1, heads - 1}, {tensor(1, slot), 0, 1}}};
    }
    for (const Slot slot : {Slot::attn_k, Slot::attn_v})
        last[slot] = Heads{{{tensor(2, slot), 0, kv - 1}, {tensor(0, slot), 0, 1}}};
    layers[2] = last;
    model.topology.globals[Slot::output] = model.topology.globals.at(Slot::token_embd);
    model.drop_unreferenced();
    return model;
}

namespace synthetic {

inline ModelConfig config() {
    ModelConfig c;
    c.family = "synthetic";
    c.n_embd = 12;
    c.n_head = 4;
    c.n_head_kv = 2;
    c.head_dim = 8;
    c.n_ff = 10;
    c.n_vocab = 17;
    c.context_length = 64;
    c.attention_scale = 0.35F;
    return c;
}

inline Rope rope(RopeKind kind = RopeKind::interleaved, int dims = 8) {
    Rope r;
    r.kind = kind;
    r.dims = dims;
    r.base = 100.0F;
    r.original_context = 64;
    return r;
}

inline const std::vector<Slot> kAttention = {Slot::attn_norm, Slot::attn_q, Slot::attn_k, Slot::attn_v,
                                             Slot::attn_o};
inline const std::vector<Slot> kGated = {Slot::ffn_norm, Slot::ffn_gate, Slot::ffn_up, Slot::ffn_down};
inline const std::vector<Slot> kModel = {Slot::token_embd, Slot::output_norm, Slot::output};

inline std::vector<Slot> join(std::vector<Slot> slots, const std::vector<Slot>& more) {
    slots.insert(slots.end(), more.begin(), more.end());
    return slots;
}

// Every slot also with its bias.
inline std::vector<Slot> with_biases(const std::vector<Slot>& slots) {
    std::vector<Slot> out = slots;
    for (const Slot slot : slots) {
        if (const auto bias = bias_of(slot)) out.push_back(*bias);
    }
    return out;
}

inline SyntheticShape decoder() {  // Llama
    SyntheticShape s{config(), join(kAttention, kGated), kModel};
    s.config.rope = rope();
    return s;
}

inline SyntheticShape learned_positions() {  // GPT-2
    SyntheticShape s{config(), with_biases(join(kAttention, {Slot::ffn_norm, Slot::ffn_up, Slot::ffn_down})),
                     with_biases(join(kModel, {Slot::position_embd}))};
    s.config.norm = NormKind::layer;
    s.config.activation = Activation::gelu_tanh;
    s.config.n_learned_positions = 24;
    return s;
}

inline SyntheticShape encoder() {  // BERT with all heads
    SyntheticShape s{
        config(),
        with_biases({Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o, Slot::attn_output_norm,
                     Slot::ffn_up, Slot::ffn_down, Slot::ffn_output_norm}),
        with_biases({Slot::token_embd, Slot::position_embd, Slot::token_types, Slot::embd_norm,
                     Slot::head_dense, Slot::head_norm, Slot::output, Slot::pooler, Slot::score})};
    s.config.norm = NormKind::layer;
    s.config.activation = Activation::gelu;
    s.config.causal = false;
    s.config.n_learned_positions = 24;
    s.config.n_token_types = 2;
    return s;
}

inline SyntheticShape parallel(bool two_norms) {  // GPT-NeoX, GPT-J
    SyntheticShape s{config(), with_biases(join(kAttention, {Slot::ffn_up, Slot::ffn_down})),
                     with_biases(kModel)};
    if (two_norms)
        s.layer_slots = with_biases(join(kAttention, {Slot::ffn_norm, Slot::ffn_up, Slot::ffn_down}));
    s.config.norm = NormKind::layer;
    s.config.activation = two_norms ? Activation::gelu : Activation::gelu_tanh;
    s.config.parallel_residual = true;
    s.config.rope = two_norms ? rope(RopeKind::halves, 4) : rope(RopeKind::interleaved, 6);
    return s;
}

inline SyntheticShape alibi() {  // BLOOM, with a number of heads that is no power of two
    SyntheticShape s = learned_positions();
    s.config.n_head = 6;
    s.config.n_head_kv = 6;
    s.config.n_learned_positions = 0;
    s.config.max_alibi_bias = 8.0F;
    s.model_slots = with_biases(join(kModel, {Slot::embd_norm}));
    return s;
}

inline SyntheticShape pruned_alibi() {  // with heads left out, and query heads that share key/value heads
    SyntheticShape s = alibi();
    s.config.n_head = 12;
    s.config.heads_kv = {3, 6, 1};
    s.config.alibi_heads = {{0, 2, 5}, {}, {4}};
    return s;
}

inline SyntheticShape capped_windows() {  // Gemma 2 and 3
    SyntheticShape s = decoder();
    s.layer_slots = join(s.layer_slots,
                         {Slot::attn_q_norm, Slot::attn_k_norm, Slot::attn_post_norm, Slot::ffn_post_norm});
    s.config.activation = Activation::gelu_tanh;
    s.config.embedding_scale = 3.5F;
    s.config.attention_softcap = 1.5F;
    s.config.logit_softcap = 2.0F;
    s.config.windows = {4, 4, 0};
    s.config.rope.frequency_scale = 0.125F;
    s.config.rope.kind = RopeKind::halves;
    s.config.local_rope = rope(RopeKind::halves);
    s.config.local_rope->base = 10.0F;
    s.model_slots = join(s.model_slots, {Slot::rope_freqs});
    return s;
}

inline SyntheticShape local_attention(Activation activation) {  // GPT-Neo
    SyntheticShape s = learned_positions();
    s.config.activation = activation;
    s.config.attention_scale = 1.0F;
    s.config.scale_by_layer = activation != Activation::relu;  // which moves kinks into the gradient test
    s.config.windows = {0, 3};
    return s;
}

inline SyntheticShape dynamic_rotation() {  // Baichuan 2, with dynamic NTK scaling
    SyntheticShape s = decoder();
    s.config.norm_head = true;
    s.config.rope.original_context = 5;
    s.config.rope.dynamic_factor = 2.0F;
    return s;
}

inline SyntheticShape yarn() {
    SyntheticShape s = decoder();
    s.config.head_dim = 16;
    s.config.rope.dims = 16;
    s.config.rope.kind = RopeKind::halves;
    s.config.rope.base = 10000.0F;
    s.config.rope.frequency_scale = 0.25F;
    s.config.rope.original_context = 128;
    s.config.rope.ext_factor = 1.0F;
    s.config.rope.attention_factor = 0.9F;
    s.config.rope.beta_fast = 8.0F;
    return s;
}

inline SyntheticShape multipliers() {  // Granite, with SmolLM3's layers that do not rotate
    SyntheticShape s = decoder();
    s.config.embedding_scale = 1.8F;
    s.config.residual_scale = 0.45F;
    s.config.logit_scale = 0.7F;
    s.config.logit_softcap = 2.0F;
    s.config.rotated = {true, false};
    return s;
}

inline SyntheticShape norms_of_all_heads() {  // OLMo 2, with the activation of Nemotron
    SyntheticShape s{
        config(),
        {Slot::attn_q, Slot::attn_k, Slot::attn_v, Slot::attn_o, Slot::attn_q_norm_all, Slot::attn_k_norm_all,
         Slot::attn_post_norm, Slot::ffn_up, Slot::ffn_down, Slot::ffn_post_norm},
        kModel};
    s.config.activation = Activation::relu_squared;
    s.config.rope = rope(RopeKind::halves);
    return s;
}

inline SyntheticShape gains_of_heads() {  // Command R+
    SyntheticShape s = parallel(false);
    s.layer_slots = join(kAttention, {Slot::attn_q_norm_all, Slot::attn_k_norm_all, Slot::ffn_gate,
                                      Slot::ffn_up, Slot::ffn_down});
    s.config.norm_by_head = true;
    return s;
}

inline SyntheticShape norms_after_rotation() {  // Hunyuan
    SyntheticShape s = decoder();
    s.layer_slots = join(s.layer_slots, {Slot::attn_q_norm, Slot::attn_k_norm});
    s.config.norm_after_rope = true;
    return s;
}

inline SyntheticShape long_rotation() {  // Phi-3 with LongRoPE
    SyntheticShape s = decoder();
    s.model_slots = join(s.model_slots, {Slot::rope_freqs, Slot::rope_freqs_long});
    s.config.rope.original_context = 5;
    s.config.rope.attention_factor = 1.2F;
    s.config.rope.long_factors = true;
    return s;
}

inline SyntheticShape mixture() {  // OLMoE
    SyntheticShape s = decoder();
    s.layer_slots = join(kAttention, {Slot::ffn_norm, Slot::ffn_router, Slot::ffn_gate_exps,
                                      Slot::ffn_up_exps, Slot::ffn_down_exps});
    s.config.n_expert = 5;
    s.config.n_expert_used = 2;
    s.config.n_ff_expert = 6;
    s.config.norm_expert_weights = false;
    return s;
}

inline SyntheticShape mixture_with_sinks() {  // gpt-oss
    SyntheticShape s = mixture();
    s.layer_slots = with_biases(join(s.layer_slots, {Slot::attn_sinks}));
    s.config.activation = Activation::swiglu_clamped;
    s.config.norm_expert_weights = true;
    s.config.windows = {3, 0};
    return s;
}

inline SyntheticShape narrow_embeddings() {  // ALBERT
    SyntheticShape s = encoder();
    s.config.n_embedding = 7;
    s.model_slots = join(s.model_slots, {Slot::embd_map, Slot::embd_map_bias});
    return s;
}

inline SyntheticShape streams() {  // Gemma 3n
    SyntheticShape s = decoder();
    s.layer_slots =
        join(s.layer_slots,
             {Slot::attn_q_norm, Slot::attn_k_norm, Slot::attn_post_norm, Slot::ffn_post_norm,
              Slot::stream_router_norm, Slot::stream_router, Slot::stream_predict, Slot::stream_correct,
              Slot::laurel_down, Slot::laurel_up, Slot::laurel_norm, Slot::layer_input_scale,
              Slot::layer_input_gate, Slot::layer_input_up, Slot::layer_input_post_norm});
    s.model_slots = join(s.model_slots, {Slot::streams_in, Slot::streams_out, Slot::layer_input_embd,
                                         Slot::layer_input_map, Slot::layer_input_norm});
    s.config.activation = Activation::gelu_tanh;
    s.config.norm_values = true;
    s.config.n_stream = 3;
    s.config.n_laurel = 5;
    s.config.n_layer_input = 6;
    s.config.n_input_layer = static_cast<int64_t>(s.layers);
    s.config.ffn_cuts = {0.5F, -INFINITY, -0.25F};
    return s;
}

inline SyntheticShape headless() {  // an encoder that is only asked for its states
    SyntheticShape s{config(), with_biases(join(kAttention, kGated)), {Slot::token_embd, Slot::output_norm}};
    s.config.causal = false;
    s.config.rope = rope(RopeKind::halves);
    return s;
}

}  // namespace synthetic

inline std::vector<SyntheticModel> synthetic_models() {
    const reference::Input text{{3, 16, 0, 7, 7, 12, 1, 9, 5}, {}, {}};
    // Two padding tokens at the end, as encoders are given them.
    const reference::Input padded{
        {3, 16, 0, 7, 7, 12, 5, 1, 1}, {0, 0, 0, 1, 1, 1, 1, 0, 0}, {1, 1, 1, 1, 1, 1, 1, 0, 0}};
    // The window ends before the first token that is seen.
    const reference::Input padded_left{text.tokens, {}, {0, 0, 0, 1, 1, 1, 1, 1, 1}};
    std::vector<SyntheticModel> models;
    const auto add = [&](const char* name, const SyntheticShape& shape, const reference::Input& input) {
        models.push_back({name, synthetic_model(shape, static_cast<uint32_t>(models.size() + 1)), input});
    };
    add("decoder", synthetic::decoder(), text);
    add("learned positions", synthetic::learned_positions(), text);
    add("encoder", synthetic::encoder(), padded);
    SyntheticShape roberta = synthetic::encoder();
    roberta.config.padding_token = 1;
    add("encoder with positions after the padding token", roberta, padded);
    add("encoder without mask and types", synthetic::encoder(), text);
    add("parallel residual, one norm", synthetic::parallel(false), text);
    add("parallel residual, two norms", synthetic::parallel(true), text);
    add("alibi", synthetic::alibi(), text);
    add("capped windows", synthetic::capped_windows(), text);
    add("local attention, relu", synthetic::local_attention(Activation::relu), text);
    add("local attention, tanh", synthetic::local_attention(Activation::tanh), text);
    add("dynamic rotation", synthetic::dynamic_rotation(), text);
    add("yarn", synthetic::yarn(), text);
    add("multipliers", synthetic::multipliers(), text);
    add("norms of all heads", synthetic::norms_of_all_heads(), text);
    add("gains of heads", synthetic::gains_of_heads(), text);
    add("norms after the rotation", synthetic::norms_after_rotation(), text);
    add("long rotation", synthetic::long_rotation(), text);
    SyntheticShape within = synthetic::long_rotation();
    within.config.rope.original_context = static_cast<int>(text.tokens.size());
    add("long rotation within the original context", within, text);
    add("mixture of experts", synthetic::mixture(), text);
    add("mixture of experts with sinks", synthetic::mixture_with_sinks(), text);
    add("narrow embeddings", synthetic::narrow_embeddings(), padded);
    add("several residual streams", synthetic::streams(), text);
    add("headless encoder", synthetic::headless(), {padded.tokens, {}, padded.mask});
    SyntheticShape blind = synthetic::headless();
    blind.config.windows = {3};
    add("queries that see nothing", blind, padded_left);
    for (const auto& [name, shape] :
         {std::pair("shared decoder", synthetic::decoder()),
          std::pair("shared, q and k norms, windows", synthetic::capped_windows()),
          std::pair("shared, norms of all heads", synthetic::norms_of_all_heads()),
          std::pair("shared, learned positions", synthetic::learned_positions())}) {
        add(name, shape, text);
        models.back().model = share(models.back().model);
    }
    return models;
}

}  // namespace refold
