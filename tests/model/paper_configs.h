// config.json of the papers' models: the public hyper-parameters that shapes depend on.
#pragma once

namespace refold::paper {

inline constexpr const char* kLlama2_7B = R"({"model_type": "llama", "torch_dtype": "float16",
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "tie_word_embeddings": false})";

inline constexpr const char* kLlama2_13B = R"({"model_type": "llama", "torch_dtype": "float16",
    "architectures": ["LlamaForCausalLM"], "hidden_size": 5120, "intermediate_size": 13824,
    "num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "tie_word_embeddings": false})";

inline constexpr const char* kLlama31_8B = R"({"model_type": "llama", "torch_dtype": "bfloat16",
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "tie_word_embeddings": false})";

// Version 0.1, the one with a window.
inline constexpr const char* kMistral7B = R"({"model_type": "mistral", "torch_dtype": "bfloat16",
    "architectures": ["MistralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "sliding_window": 4096,
    "tie_word_embeddings": false})";

inline constexpr const char* kGemma2_9B = R"({"model_type": "gemma2", "torch_dtype": "bfloat16",
    "architectures": ["Gemma2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 14336,
    "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
    "vocab_size": 256000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "sliding_window": 4096,
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh"})";

inline constexpr const char* kTinyLlama = R"({"model_type": "llama", "torch_dtype": "bfloat16",
    "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "tie_word_embeddings": false})";

inline constexpr const char* kGemma2B = R"({"model_type": "gemma", "torch_dtype": "bfloat16",
    "architectures": ["GemmaForCausalLM"], "hidden_size": 2048, "intermediate_size": 16384,
    "num_hidden_layers": 18, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
    "vocab_size": 256000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-06})";

inline constexpr const char* kPythia1B = R"({"model_type": "gpt_neox", "torch_dtype": "float16",
    "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 8, "vocab_size": 50304, "rotary_pct": 0.25,
    "max_position_embeddings": 2048, "layer_norm_eps": 1e-05, "use_parallel_residual": true,
    "tie_word_embeddings": false})";

inline constexpr const char* kGptJ6B = R"({"model_type": "gptj", "architectures": ["GPTJForCausalLM"],
    "n_embd": 4096, "n_head": 16, "n_inner": null, "n_layer": 28, "n_positions": 2048, "rotary_dim": 64,
    "vocab_size": 50400, "layer_norm_epsilon": 1e-05, "tie_word_embeddings": false})";

inline constexpr const char* kRobertaBase = R"({"model_type": "roberta",
    "architectures": ["RobertaForMaskedLM"], "hidden_size": 768, "intermediate_size": 3072,
    "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 50265, "max_position_embeddings": 514,
    "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-05})";

inline constexpr const char* kRobertaLarge = R"({"model_type": "roberta",
    "architectures": ["RobertaForMaskedLM"], "hidden_size": 1024, "intermediate_size": 4096,
    "num_hidden_layers": 24, "num_attention_heads": 16, "vocab_size": 50265, "max_position_embeddings": 514,
    "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-05})";

}  // namespace refold::paper
