// BERT and RoBERTa encoders: norms after each residual sum, learned positions, token types, exact GELU; an
// optional masked-language-model head and pooler.
#include "core/error.h"
#include "model/families/common.h"
#include "model/families/families.h"

namespace refold {
namespace {

constexpr const char* kBert = "bert";
constexpr const char* kRoberta =
    "roberta";  // ours: llama.cpp stores it as "bert", without its first positions
constexpr const char* kPaddingKey = "roberta.padding_token_id";
constexpr const char* kTypesKey = "tokenizer.ggml.token_type_count";

HfFields fields() {
    HfFields names;
    names.epsilon = "layer_norm_eps";
    return names;
}

ModelConfig read_config(const GgufMetadata& metadata, const char* family) {
    const FamilyKeys keys(metadata, family);
    ModelConfig c = read_common(keys, NormKind::layer, Activation::gelu);
    c.causal = false;
    c.n_token_types = static_cast<int64_t>(metadata.integer(kTypesKey, 1));
    if (c.n_token_types < 1 || c.n_token_types > kMaxSize)
        fail(ErrorCode::input, family, "key '{}' is out of range: {}", kTypesKey, c.n_token_types);
    c.n_learned_positions = c.context_length;
    return c;
}

ModelConfig read_bert(const GgufMetadata& metadata) { return read_config(metadata, kBert); }

ModelConfig read_roberta(const GgufMetadata& metadata) {
    ModelConfig c = read_config(metadata, kRoberta);
    c.padding_token = static_cast<int32_t>(metadata.integer(kPaddingKey));
    if (*c.padding_token < 0 || *c.padding_token + 1 >= c.n_learned_positions)
        fail(ErrorCode::input, kRoberta, "key '{}' is out of range: {}", kPaddingKey, *c.padding_token);
    return c;
}

void read_encoder(const nlohmann::json& json, const char* family, GgufMetadata& metadata) {
    const HfConfig config(json);
    if (const std::string kind = config.string("position_embedding_type", "absolute"); kind != "absolute")
        fail(ErrorCode::unsupported, "config.json",
             "position_embedding_type '{}' is not supported; known: absolute", kind);
    if (config.boolean("is_decoder", false))
        fail(ErrorCode::unsupported, "config.json", "field 'is_decoder' is not supported");
    FamilyWriter out(metadata, family);
    write_common(config, fields(), NormKind::layer, Activation::gelu, 1e-12, out);
    metadata.set(kTypesKey, GgufValue::u32(static_cast<uint32_t>(config.integer("type_vocab_size", 2))));
    out.boolean("attention.causal", false);
}

void bert_from_hf(const nlohmann::json& json, GgufMetadata& metadata) { read_encoder(json, kBert, metadata); }

void roberta_from_hf(const nlohmann::json& json, GgufMetadata& metadata) {
    read_encoder(json, kRoberta, metadata);
    metadata.set(kPaddingKey,
                 GgufValue::u32(static_cast<uint32_t>(HfConfig(json).integer("pad_token_id", 1))));
}

nlohmann::json hf_encoder(const Model& model, const char* model_type, const std::string& name) {
    const bool head = model.topology.globals.contains(Slot::output);
    nlohmann::json out =
        hf_common(model, fields(), (name + (head ? "ForMaskedLM" : "Model")).c_str(), model_type);
    out["type_vocab_size"] = model.config.n_token_types;
    return out;
}

nlohmann::json bert_to_hf(const Model& model) { return hf_encoder(model, "bert", "Bert"); }

nlohmann::json roberta_to_hf(const Model& model) {
    nlohmann::json out = hf_encoder(model, "roberta", "Roberta");
    out["pad_token_id"] = *model.config.padding_token;
    return out;
}

constexpr const char* kNote =
    "llama.cpp runs encoders for embeddings: the language-model head and the pooler are left out";

Model without_heads(const Model& model) {
    Model out = model;
    for (const Slot slot : {Slot::head_dense, Slot::head_dense_bias, Slot::head_norm, Slot::head_norm_bias,
                            Slot::output, Slot::output_bias, Slot::pooler, Slot::pooler_bias}) {
        out.topology.globals.erase(slot);
    }
    out.drop_unreferenced();
    out.metadata = renamed_metadata(model.metadata, kBert, kBert);
    return out;
}

StockModel bert_to_stock(const Model& model) { return {without_heads(model), kNote}; }

StockModel roberta_to_stock(const Model& model) {
    Model out = without_heads(model);
    out.family = &kBertFamily;
    out.config.family = kBert;
    const int64_t skipped = *model.config.padding_token + 1;
    out.config.padding_token.reset();
    out.config.n_learned_positions -= skipped;
    out.config.context_length = out.config.n_learned_positions;
    out.metadata = renamed_metadata(model.metadata, kRoberta, kBert);
    out.metadata.erase("bert.padding_token_id");
    FamilyWriter(out.metadata, kBert).integer("context_length", out.config.context_length);
    Tensor& positions = out.tensors.at(tensor_name(*model.family, Slot::position_embd, 0));
    const size_t bytes = row_bytes(positions.type, positions.row_elements()) * static_cast<size_t>(skipped);
    positions.shape[1] -= skipped;
    if (positions.produce) {
        positions.produce = [all = positions.produce, bytes] {
            auto data = all();
            return std::vector(data.begin() + static_cast<ptrdiff_t>(bytes), data.end());
        };
    } else {
        positions.mapped = positions.mapped.subspan(bytes);
    }
    return {out, kNote};
}

std::vector<SlotDescription> position_slots() {
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

std::vector<SlotDescription> model_slots(bool roberta) {
    const auto head = [&](const char* of_roberta, const char* of_bert) {
        return roberta ? of_roberta : of_bert;
    };
    return {
        {Slot::token_embd, "token_embd.weight", true, "@embeddings.word_embeddings.weight"},
        {Slot::position_embd, "position_embd.weight", true, "@embeddings.position_embeddings.weight"},
        {Slot::token_types, "token_types.weight", false, "@embeddings.token_type_embeddings.weight"},
        {Slot::embd_norm, "token_embd_norm.weight", true, "@embeddings.LayerNorm.weight"},
        {Slot::embd_norm_bias, "token_embd_norm.bias", true, "@embeddings.LayerNorm.bias"},
        {Slot::head_dense, "head.dense.weight", false,
         head("lm_head.dense.weight", "cls.predictions.transform.dense.weight")},
        {Slot::head_dense_bias, "head.dense.bias", false,
         head("lm_head.dense.bias", "cls.predictions.transform.dense.bias")},
        {Slot::head_norm, "head.norm.weight", false,
         head("lm_head.layer_norm.weight", "cls.predictions.transform.LayerNorm.weight")},
        {Slot::head_norm_bias, "head.norm.bias", false,
         head("lm_head.layer_norm.bias", "cls.predictions.transform.LayerNorm.bias")},
        {Slot::output, "output.weight", false,
         head("lm_head.decoder.weight", "cls.predictions.decoder.weight"), hf_plain, "token_embd.weight",
         Slot::head_dense},
        {Slot::output_bias, "output.bias", false,
         head("lm_head.bias|lm_head.decoder.bias", "cls.predictions.bias|cls.predictions.decoder.bias")},
        {Slot::pooler, "pooler.weight", false, "@pooler.dense.weight"},
        {Slot::pooler_bias, "pooler.bias", false, "@pooler.dense.bias"},
    };
}

}  // namespace

const Family kBertFamily = {
    .name = kBert,
    .position_slots = position_slots(),
    .model_slots = model_slots(false),
    .read_config = read_bert,
    .hf_model_types = {"bert"},
    .hf_prefix = "bert.",
    .hf_tied = true,
    .read_hf_config = bert_from_hf,
    .write_hf_config = bert_to_hf,
    .to_stock = bert_to_stock,
};

const Family kRobertaFamily = {
    .name = kRoberta,
    .position_slots = position_slots(),
    .model_slots = model_slots(true),
    .read_config = read_roberta,
    .hf_model_types = {"roberta"},
    .hf_prefix = "roberta.",
    .hf_tied = true,
    .read_hf_config = roberta_from_hf,
    .write_hf_config = roberta_to_hf,
    .to_stock = roberta_to_stock,
};

}  // namespace refold
