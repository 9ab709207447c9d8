#include "model/hf/known_fields.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/json_text.h"

namespace refold {
namespace {

// About files, training, generation, other tasks, or how transformers computes: nothing of it changes logits.
const std::set<std::string> kIrrelevant = {
    // files and versions
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
    "_experts_implementation", "_flash_attn_2_enabled", "_from_model_config", "_name_or_path",
    "architectures", "attn_implementation", "auto_map", "dtype", "is_llama_config", "name_or_path",
    "torch_dtype", "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version",
    "use_bfloat16", "use_flash_attn", "use_flash_attention",
    // tokens
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "cls_token_id", "decoder_start_token_id",
    "eod_token_id", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id", "im_end_id", "im_start_id",
    "mask_token_id", "pad_id", "pad_token_id", "prefix", "sep_token_id", "suppress_tokens", "tokenizer_class",
    "unk_token_id",
    // training
    "attention_dropout", "attention_probs_dropout_prob", "attn_dropout", "attn_pdrop", "classifier_dropout",
    "classifier_dropout_prob", "embd_pdrop", "embedding_dropout", "ffn_dropout", "gradient_checkpointing",
    "hidden_dropout", "hidden_dropout_prob", "initializer_factor", "initializer_range", "resid_pdrop",
    "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "z_loss_weight",
    // generation
    "cache_implementation", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "length_penalty", "max_length",
    "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_scores", "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "temperature",
    "top_k", "top_p", "typical_p", "use_cache",
    // other tasks
    "finetuning_task", "id2label", "label2id", "num_labels", "problem_type", "task_specific_params",
    // how it is computed
    "chunk_size_feed_forward", "is_decoder", "model_max_length", "output_attentions", "output_hidden_states",
    "pretraining_tp", "return_dict", "tf_legacy_loss", "tie_encoder_decoder", "torchscript"};

// Change what is computed unless they have this value.
constexpr UnreadField kNeutral[] = {
    {"add_cross_attention", "false"}, {"attention_bias", "false"},   {"is_encoder_decoder", "false"},
    {"layer_sharing", "false"},       {"mlp_bias", "false"},         {"partial_rotary_factor", "1.0"},
    {"pruned_heads", "{}"},           {"rope_interleaved", "false"}, {"use_bidirectional_attention", "false"},
    {"use_sliding_window", "false"}};

bool may_stay(const UnreadField& rule, const ReadableConfig& config, const std::string& field) {
    return field == rule.name &&
           (rule.value == nullptr ||
            config.given.at(field) == parse_json(rule.value, "checkpoint", "a known value"));
}

bool sees_all(const nlohmann::json& layer_types) {
    return layer_types.is_array() && std::all_of(layer_types.begin(), layer_types.end(),
                                                 [](const auto& type) { return type == "full_attention"; });
}

// Of the parts that see and hear, and of how they are put beside the text.
constexpr std::string_view kOfOtherParts[] = {"audio_config",
                                              "audio_soft_tokens_per_image",
                                              "mm_tokens_per_image",
                                              "multimodal_projector_bias",
                                              "projector_hidden_act",
                                              "spatial_merge_size",
                                              "vision_config",
                                              "vision_feature_layer",
                                              "vision_soft_tokens_per_image"};

void refuse_quantized(const nlohmann::json& how) {
    const auto method = how.is_object() ? how.find("quant_method") : how.end();
    const bool named = how.is_object() && method != how.end() && method->is_string();
    fail(ErrorCode::unsupported, "config.json",
         "field 'quantization_config': weights quantized by '{}' are not supported (MXFP4 of gpt-oss is) - "
         "use the checkpoint that is not quantized, or a GGUF file",
         named ? method->get<std::string>() : how.dump());
}

}  // namespace

void check_fields(const HfConfig& config, const ReadableConfig& readable, const Family& family) {
    const auto& given = readable.given;
    const bool is_mixtral = given.at("model_type") == "mixtral";  // its windows are on every layer
    for (const auto& [field, value] : given.items()) {
        const bool asked = config.asked(field) && readable.known.contains(field);
        if (value.is_null()) {
            const bool unread =
                std::ranges::any_of(family.hf_unread, [&, name = field](const UnreadField& rule) {
                    return name == rule.name && rule.value == nullptr;
                });
            if ((asked || !unread) && readable.not_null.contains(field))
                fail(ErrorCode::input, "config.json", "field '{}' must not be null for model_type {}", field,
                     given.at("model_type").dump());
            continue;
        }
        const auto allows = [&, name = field](const UnreadField& rule) {
            return may_stay(rule, readable, name);
        };
        if (asked || field == "model_type" || kIrrelevant.contains(field) ||
            (field == "layer_types" && (sees_all(value) || is_mixtral)) ||
            std::any_of(std::begin(kNeutral), std::end(kNeutral), allows) ||
            std::any_of(family.hf_unread.begin(), family.hf_unread.end(), allows))
            continue;
        if (field == "quantization_config") refuse_quantized(value);
        fail(ErrorCode::unsupported, "config.json",
             "field '{}' ({}) is not known for family '{}': it may change what the model computes", field,
             value.dump(), family.name);
    }
}

void check_fields_of_whole(const nlohmann::json& whole) {
    for (const auto& [field, value] : whole.items()) {
        if (value.is_null() || field == "model_type" || field == "text_config" ||
            field == "tie_word_embeddings" || kIrrelevant.contains(field) || field.ends_with("_token_id") ||
            field.ends_with("_token_index") ||
            std::ranges::find(kOfOtherParts, field) != std::end(kOfOtherParts))
            continue;
        if (field == "quantization_config") refuse_quantized(value);
        fail(ErrorCode::unsupported, "config.json",
             "field '{}' ({}) is not known beside the text model's configuration ('text_config'): it may "
             "change what the model computes",
             field, value.dump());
    }
}

}  // namespace refold
