#include "model/families/common/bert.h"

#include "core/error.h"
#include "model/families/common/stock.h"

namespace refold {

static constexpr const char* kTypesKey = "tokenizer.ggml.token_type_count";

static HfFields fields() { return {.heads_kv = nullptr, .epsilon = "layer_norm_eps"}; }

ModelConfig read_encoder_config(const FamilyKeys& keys) {
    const GgufMetadata& metadata = keys.metadata();
    ModelConfig c = read_common(keys, NormKind::layer, Activation::gelu);
    c.causal = false;
    c.n_token_types = static_cast<int64_t>(metadata.integer(kTypesKey, 1));
    if (c.n_token_types < 1 || c.n_token_types > kMaxSize)
        fail(ErrorCode::input, keys.family(), "key '{}' is out of range: {}", kTypesKey, c.n_token_types);
    c.n_learned_positions = c.context_length;
    return c;
}

void encoder_from_hf(const HfConfig& config, const char* family, GgufMetadata& metadata) {
    if (const std::string kind = config.string("position_embedding_type", "absolute"); kind != "absolute")
        fail(ErrorCode::unsupported, "config.json",
             "position_embedding_type '{}' is not supported; known: absolute", kind);
    if (config.boolean("is_decoder", false))
        fail(ErrorCode::unsupported, "config.json", "field 'is_decoder' is not supported");
    FamilyWriter out(metadata, family);
    write_common(config, fields(), NormKind::layer, Activation::gelu, out);
    metadata.set(kTypesKey, GgufValue::u32(static_cast<uint32_t>(config.integer("type_vocab_size"))));
    out.boolean("attention.causal", false);
}

nlohmann::json encoder_to_hf(const Model& model, const char* model_type, const std::string& name) {
    const bool head = model.topology.globals.contains(Slot::output),
               scores = model.topology.globals.contains(Slot::score);
    const char* const kind = scores ? "ForSequenceClassification" : head ? "ForMaskedLM" : "Model";
    nlohmann::json out = hf_common(model, fields(), (name + kind).c_str(), model_type);
    out["type_vocab_size"] = model.config.n_token_types;
    if (scores) out["id2label"] = {{"0", "LABEL_0"}};
    return out;
}

Model without_heads(const Model& model) {
    Model out = model;
    std::erase_if(out.topology.globals, [](const auto& entry) {
        const SlotModule module = properties(entry.first).module;
        return module == SlotModule::head || module == SlotModule::pooler;
    });
    out.drop_unreferenced();
    out.metadata = renamed_metadata(model.metadata, kBert, kBert);
    return out;
}

std::vector<UnreadField> encoder_unread() {
    return {{"directionality"},
            {"pooler_fc_size"},
            {"pooler_num_attention_heads"},
            {"pooler_num_fc_layers"},
            {"pooler_size_per_head"},
            {"pooler_type"},
            {"position_embedding_type", "\"absolute\""},
            // What sentence-transformers make of a score.
            {"sbert_ce_default_activation_function"},
            {"sentence_transformers"}};
}

std::vector<SlotDescription> encoder_layer_slots() {
    return {
        {Slot::attn_q, "blk.{}.attn_q.weight", true, "@encoder.layer.{}.attention.self.query.weight"},
        {Slot::attn_k, "blk.{}.attn_k.weight", true, "@encoder.layer.{}.attention.self.key.weight"},
        {Slot::attn_v, "blk.{}.attn_v.weight", true, "@encoder.layer.{}.attention.self.value.weight"},
        {Slot::attn_o, "blk.{}.attn_output.weight", true, "@encoder.layer.{}.attention.output.dense.weight"},
        {Slot::attn_q_bias, "blk.{}.attn_q.bias", true, "@encoder.layer.{}.attention.self.query.bias"},
        {Slot::attn_k_bias, "blk.{}.attn_k.bias", true, "@encoder.layer.{}.attention.self.key.bias"},
        {Slot::attn_v_bias, "blk.{}.attn_v.bias", true, "@encoder.layer.{}.attention.self.value.bias"},
        {Slot::attn_o_bias, "blk.{}.attn_output.bias", true, "@encoder.layer.{}.attention.output.dense.bias"},
        {Slot::attn_output_norm, "blk.{}.attn_output_norm.weight", true,
         "@encoder.layer.{}.attention.output.LayerNorm.weight"},
        {Slot::attn_output_norm_bias, "blk.{}.attn_output_norm.bias", true,
         "@encoder.layer.{}.attention.output.LayerNorm.bias"},
        {Slot::ffn_up, "blk.{}.ffn_up.weight", true, "@encoder.layer.{}.intermediate.dense.weight"},
        {Slot::ffn_up_bias, "blk.{}.ffn_up.bias", true, "@encoder.layer.{}.intermediate.dense.bias"},
        {Slot::ffn_down, "blk.{}.ffn_down.weight", true, "@encoder.layer.{}.output.dense.weight"},
        {Slot::ffn_down_bias, "blk.{}.ffn_down.bias", true, "@encoder.layer.{}.output.dense.bias"},
        {Slot::ffn_output_norm, "blk.{}.layer_output_norm.weight", true,
         "@encoder.layer.{}.output.LayerNorm.weight"},
        {Slot::ffn_output_norm_bias, "blk.{}.layer_output_norm.bias", true,
         "@encoder.layer.{}.output.LayerNorm.bias"},
    };
}

std::vector<SlotDescription> encoder_model_slots(const EncoderHeadNames& head) {
    return {
        {Slot::token_embd, "token_embd.weight", true, "@embeddings.word_embeddings.weight"},
        {Slot::position_embd, "position_embd.weight", true, "@embeddings.position_embeddings.weight"},
        {Slot::token_types, "token_types.weight", false, "@embeddings.token_type_embeddings.weight"},
        {Slot::embd_norm, "token_embd_norm.weight", true, "@embeddings.LayerNorm.weight"},
        {Slot::embd_norm_bias, "token_embd_norm.bias", true, "@embeddings.LayerNorm.bias"},
        {Slot::head_dense, "head.dense.weight", false, head.dense},
        {Slot::head_dense_bias, "head.dense.bias", false, head.dense_bias},
        {Slot::head_norm, "head.norm.weight", false, head.norm},
        {Slot::head_norm_bias, "head.norm.bias", false, head.norm_bias},
        {Slot::output, "output.weight", false, head.output, hf_plain, "token_embd.weight", Slot::head_dense},
        {Slot::output_bias, "output.bias", false, head.output_bias},
        {Slot::pooler, "pooler.weight", false, "@pooler.dense.weight"},
        {Slot::pooler_bias, "pooler.bias", false, "@pooler.dense.bias"},
        {Slot::score, "score.weight", false, "classifier.weight"},
        {Slot::score_bias, "score.bias", false, "classifier.bias"},
    };
}

}  // namespace refold
