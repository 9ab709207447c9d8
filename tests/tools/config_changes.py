"""What users' checkpoints differ in: changes of a config.json, and of the tensors beside it, one at a time.

A change is a dict: "what" says it in words; "set" has values by JSON pointer ("": the whole), "drop" JSON pointers of fields that go;
"wrap": the config becomes the text_config of this one; "add": tensors to make ([name, shape]) or to copy ([name, other name]); "lose":
tensors that go; "copy" and "rename": tensors whose names begin with the first text, once more or instead with the second; "leftover": an
index of other weights. In names "#" is every layer's (or expert's) number. "newer": transformers 4 does not know the form. "known":
the answer, where transformers is not asked.
"""
import re

ACTIVATIONS = ["silu", "swish", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "gelu_accurate", "gelu_10", "gelu_python_tanh",
               "quick_gelu", "relu", "relu2", "relu6", "leaky_relu", "mish", "tanh", "sigmoid", "linear", "laplace", "xielu", "unknown"]
KINDS_OF_ACTIVATION = ("hidden_act", "hidden_activation", "activation_function")
TYPES = ["float16", "bfloat16", "float32", "auto", "torch.float32", "float8"]
CHOICES = {
    **dict.fromkeys(KINDS_OF_ACTIVATION, ACTIVATIONS), "dtype": TYPES, "torch_dtype": TYPES,
    "position_embedding_type": ["absolute", "relative_key", "relative_key_query", "rope", "nope", "alibi"],
    "model_type": ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "mixtral", "cohere", "olmo2", "smollm3", "bert", "roberta",
                   "gpt2", "unknown"],
    "architectures": [[], ["LlamaForCausalLM"], ["BertModel"], ["AutoModel"], ["LlamaForSequenceClassification"], "LlamaForCausalLM"],
    "attn_implementation": ["eager", "sdpa", "flash_attention_2"], "_attn_implementation": ["eager", "sdpa"],
    "cache_implementation": ["static", "hybrid"], "eos_token_id": [[1, 2], 5, [5]], "pad_token_id": [2, -1, 100000], "bos_token_id": [3, [1]],
    "id2label": [{"0": "A", "1": "B"}], "label2id": [{"A": 0, "B": 1}], "num_labels": [1, 3],
    "problem_type": ["regression", "single_label_classification"],
    "quantization_config": [{"quant_method": "gptq", "bits": 4}, {"quant_method": "fp8"}, {}],
    "pruned_heads": [{"0": [1]}, {}], "summary_activation": ["tanh"], "mlp_only_layers": [[], [0], [0, 1, 2]],
    "rope_scaling": [], "rope_parameters": [],  # see rope_changes()
}

# Fields that another family has or had, which users copy, and which merged or converted models carry along.
FOREIGN = {
    "sliding_window": [6, None], "use_sliding_window": [True, False], "max_window_layers": [1], "sliding_window_pattern": [2],
    "attention_bias": [True, False], "mlp_bias": [True, False], "use_bias": [True, False], "use_qkv_bias": [True, False], "bias": [True, False],
    "qkv_bias": [True], "lm_head_bias": [True], "add_bias_linear": [True], "no_bias": [True], "tie_word_embeddings": [True, False],
    "num_key_value_heads": [1], "num_local_experts": [4, 1, 0], "num_experts": [4, 0], "num_experts_per_tok": [2, 1],
    "moe_intermediate_size": [10], "norm_topk_prob": [True, False], "shared_expert_intermediate_size": [8], "decoder_sparse_step": [2],
    "partial_rotary_factor": [0.5, 1.0], "rotary_pct": [0.5], "rotary_dim": [4], "rotary_emb_base": [5000], "rope_theta": [5000.0],
    "rope_local_base_freq": [5000.0], "rope_interleave": [True], "rope_interleaved": [True, False], "rope_ratio": [2.0],
    "original_max_position_embeddings": [16], "no_rope_layers": [[1, 0, 1, 0]], "no_rope_layer_interval": [2], "position_embedding_type": ["alibi"],
    "alibi": [True, False], "clip_qkv": [0.5, 8.0], "qk_layernorm": [True, False], "use_qk_norm": [True, False],
    "use_parallel_residual": [True, False], "parallel_attn": [True], "attn_logit_softcapping": [2.0], "final_logit_softcapping": [2.0],
    "query_pre_attn_scalar": [7], "logit_scale": [0.5], "logits_scaling": [2.0], "logits_soft_cap": [2.0], "embedding_multiplier": [2.0],
    "residual_multiplier": [0.5], "attention_multiplier": [0.5], "scale_emb": [2], "scale_depth": [1.4], "attention_scale": [0.5],
    "scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True], "rms_norm_eps": [0.01], "layer_norm_eps": [0.01],
    "layer_norm_epsilon": [0.01], "norm_eps": [0.01], "norm_epsilon": [0.01], "attention_chunk_size": [8], "attn_temperature_tuning": [True],
    "use_bidirectional_attention": [True, False], "is_causal": [False], "is_decoder": [True, False], "add_cross_attention": [True, False],
    "is_encoder_decoder": [True, False], "cross_attention_hidden_size": [32], "chunk_size_feed_forward": [8], "pretraining_tp": [1, 2],
    "swiglu_limit": [1.0], "swiglu_alpha": [1.0], "num_nextn_predict_layers": [1], "use_mup": [True], "torch_dtype": ["bfloat16"],
    "dtype": ["bfloat16"], "quantization_config": [{"quant_method": "gptq", "bits": 4}, {}, None], "use_flash_attn": [True],
    "vision_config": [{}], "max_sequence_length": [64], "seq_length": [64], "n_ctx": [64], "model_max_length": [64],
    "tie_encoder_decoder": [True], "output_hidden_states": [True], "return_dict": [False], "use_return_dict": [False], "output_attentions": [True],
    "torchscript": [True], "text_config": [{}], "num_layers": [2], "n_layers": [2], "n_head": [2], "n_embd": [32], "ffn_dim": [32],
    "intermediate_size_mlp": [32], "embed_dim": [32], "head_dim": [8], "hidden_act": ["relu"], "hidden_activation": ["relu"],
    "activation_function": ["relu"], "hidden_size": [32], "max_position_embeddings": [20], "num_hidden_layers": [2], "num_attention_heads": [2],
    "intermediate_size": [32], "early_exit_threshold": [0.5], "total_ut_steps": [2], "unknown_field": [1], "unsloth_version": ["2025.1"],
}

# A tensor of a layer, without its layer's number, that other versions of a model have.
EXTRA_OF_LAYER = ["self_attn.rotary_emb.inv_freq", "self_attn.q_norm.weight", "self_attn.k_norm.weight", "self_attn.sinks",
                  "input_layernorm.bias", "post_attention_layernorm.bias", "post_feedforward_layernorm.weight",
                  "pre_feedforward_layernorm.weight", "mlp.router.weight", "mlp.experts.gate_up_proj", "self_attn.unknown.weight"]


def others(field, value, whole):
    """Other valid values of a field."""
    if field in CHOICES:
        return [v for v in CHOICES[field] if v != value]
    if field == "layer_types":
        layers = max(1, len(value or []) or whole.get("num_hidden_layers", 1))
        mixed = ["sliding_attention" if i % 2 else "full_attention" for i in range(layers)]
        return [v for v in (["full_attention"] * layers, ["sliding_attention"] * layers, mixed, mixed[:-1], mixed + mixed[:1],
                            ["linear_attention"] * layers, ["chunked_attention"] * layers) if v != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [v for v in dict.fromkeys([value * 2, value // 2, value + 1, 0]) if v != value]
    if isinstance(value, float):
        return [v for v in dict.fromkeys([value * 2, value / 2 + 0.01, 0.0, 1.0]) if v != value]
    if isinstance(value, list) and value:
        return [v for v in (value[::-1], value[:-1], value + value[:1], [value[0]] * len(value)) if v != value]
    if value is None and field == "sliding_window":
        return [6, 0]
    if value is None and field == "head_dim":
        return [8, 12, 16]
    if value is None and field == "n_inner":
        return [128, 256]
    if value is None and field in ("attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"):
        return [0.7, 0]
    return ["other"] if isinstance(value, str) else []


def other_types(value):
    if isinstance(value, bool):
        return [int(value), str(value).lower()]
    if isinstance(value, (int, float)):
        return [float(value) if isinstance(value, int) else int(value), str(value), [value]]
    if isinstance(value, str):
        return [[value], 1]
    if isinstance(value, list) and value:
        return [value[0], {"0": value[0]}]
    return []


def short(value):
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def field_changes(config):
    for field, value in config.items():
        if field in ("rope_scaling", "rope_parameters") and value:
            for inner, v in value.items():
                at = f"/{field}/{inner}"
                yield {"what": f"{field}.{inner} removed", "drop": [at]}
                yield {"what": f"{field}.{inner} null", "set": {at: None}}
                for other in others(inner, v, config):
                    yield {"what": f"{field}.{inner} = {short(other)}", "set": {at: other}}
                for other in other_types(v):
                    yield {"what": f"{field}.{inner} = {other!r}", "set": {at: other}}
        yield {"what": f"{field} removed", "drop": [f"/{field}"]}
        if value is not None:
            yield {"what": f"{field} null", "set": {f"/{field}": None}}
        for other in others(field, value, config):
            yield {"what": f"{field} = {short(other)}", "set": {f"/{field}": other}}
        for other in other_types(value):
            yield {"what": f"{field} = {short(repr(other))}", "set": {f"/{field}": other}}


def added_fields(config, defaults):
    """`defaults`: of the family's class, by version of transformers."""
    seen = {}
    for version, fields in defaults.items():
        for field, value in fields.items():
            if field in config or field in ("rope_parameters", "rope_scaling"):
                continue
            wanted = [value] + others(field, value, config)[:3]
            for v in wanted:
                if v not in seen.setdefault(field, []):
                    seen[field].append(v)
                    yield {"what": f"{field} = {short(v)} added ({version})", "set": {f"/{field}": v}}
    for field, values in FOREIGN.items():
        if field in config or field in seen:
            continue
        for v in values:
            yield {"what": f"{field} = {short(v)} added", "set": {f"/{field}": v}}
    if "layer_types" not in config and "layer_types" not in seen:
        for v in others("layer_types", None, config)[:5]:
            yield {"what": f"layer_types = {short(v)} added", "set": {"/layer_types": v}}
    window = {"/use_sliding_window": True, "/sliding_window": 6}
    for layers in (0, 1, 2):
        yield {"what": f"a window of 6, max_window_layers {layers}", "set": {**window, "/max_window_layers": layers}}
    yield {"what": "a window of 6, use_sliding_window true", "set": window}
    yield {"what": "a window of 6, use_sliding_window false", "set": {**window, "/use_sliding_window": False}}
    yield {"what": "a window of 6, alternating layer_types",
           "set": {"/sliding_window": 6, "/layer_types": others("layer_types", None, config)[2]}}


# Names of the same thing in different classes and versions.
ALIASES = [("num_experts", "num_local_experts"), ("hidden_act", "hidden_activation", "activation_function"), ("torch_dtype", "dtype"),
           ("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads"), ("n_inner", "intermediate_size"),
           ("n_positions", "max_position_embeddings", "n_ctx"), ("layer_norm_epsilon", "layer_norm_eps", "norm_eps", "rms_norm_eps", "norm_epsilon"),
           ("sliding_window_pattern", "_sliding_window_pattern"), ("rotary_pct", "partial_rotary_factor"), ("rotary_emb_base", "rope_theta"),
           ("num_experts_per_tok", "num_experts_per_token", "moe_topk"), ("moe_intermediate_size", "intermediate_size"), ("vocab_size", "n_vocab")]


def alias_changes(config):
    for names in ALIASES:
        for old in names:
            for new in names:
                if old == new or config.get(old) is None or new in config:
                    continue
                value = config[old]
                yield {"what": f"{old} renamed to {new}", "drop": [f"/{old}"], "set": {f"/{new}": value}}
                yield {"what": f"{new} = {short(value)} beside {old}", "set": {f"/{new}": value}}
                other = next((v for v in others(new, value, config) if v), None)
                if other is not None:
                    yield {"what": f"{new} = {short(other)} beside {old} = {short(value)}", "set": {f"/{new}": other}}


def whole_changes(config, whole, defaults):
    """`whole`: forms in which transformers 5 writes the config, by name."""
    for what, fields in whole.items():
        yield {"what": what, "newer": True, "set": {"": fields}}
    for version, fields in defaults.items():
        equal = [f for f, v in fields.items() if f in config and config[f] == v and type(config[f]) is type(v)]
        if equal:
            yield {"what": f"without the fields that equal the defaults of {version}", "drop": [f"/{f}" for f in equal]}


# Models that also see: the text part's model_type, the whole's, its class, the text's prefix in older files and in newer ones.
WRAPPED = {"mistral": ("mistral3", "Mistral3ForConditionalGeneration"), "gemma3_text": ("gemma3", "Gemma3ForConditionalGeneration")}


def wrapped_changes(config):
    if config["model_type"] not in WRAPPED:
        return
    kind, name = WRAPPED[config["model_type"]]
    outer = {"model_type": kind, "architectures": [name], "vision_config": {"model_type": "pixtral" if kind == "mistral3" else "siglip_vision_model"},
             "image_token_index": 10}
    for prefix in ("language_model.model.", "model.language_model."):
        for tied in (None, config.get("tie_word_embeddings", True)):
            flag = {} if tied is None else {"tie_word_embeddings": tied}
            yield {"what": f"wrapped in a {kind}, names with {prefix}, {flag}", "wrap": {**outer, **flag}, "rename": ["model.", prefix], "known": "same"}


def rope_forms(config, dims):
    n = dims // 2
    factors = {"short_factor": [1 + i / 4 for i in range(n)], "long_factor": [2 + i / 2 for i in range(n)]}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    llama3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    longrope = {"rope_type": "longrope", **factors, "original_max_position_embeddings": 16, "factor": 4.0}

    def without(base, *fields):
        return {k: v for k, v in base.items() if k not in fields}

    yield "default", {"rope_type": "default"}, {}
    yield "default with a factor", {"rope_type": "default", "factor": 2.0}, {}
    yield "empty", {}, {}
    yield "linear", {"rope_type": "linear", "factor": 2.0}, {}
    yield "linear, a whole factor", {"rope_type": "linear", "factor": 2}, {}
    yield "linear, factor 1", {"rope_type": "linear", "factor": 1.0}, {}
    yield "linear, factor 0.5", {"rope_type": "linear", "factor": 0.5}, {}
    yield "linear without factor", {"rope_type": "linear"}, {}
    yield "linear, 'type'", {"type": "linear", "factor": 2.0}, {}
    yield "linear, both names of the type", {"type": "linear", "rope_type": "linear", "factor": 2.0}, {}
    yield "'type' dynamic, 'rope_type' linear", {"type": "dynamic", "rope_type": "linear", "factor": 2.0}, {}
    yield "linear with an unknown field", {"rope_type": "linear", "factor": 2.0, "unknown": 1}, {}
    yield "dynamic", {"rope_type": "dynamic", "factor": 2.0}, {"max_position_embeddings": 20}
    yield "dynamic, not reached", {"rope_type": "dynamic", "factor": 2.0}, {}
    yield "dynamic, original", {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 20}, {}
    yield "dynamic with alpha", {"rope_type": "dynamic", "factor": 1.0, "alpha": 10.0}, {}
    yield "yarn", yarn, {}
    yield "yarn, max = factor x original", yarn, {"max_position_embeddings": 64}
    yield "yarn, 'type'", {**without(yarn, "rope_type"), "type": "yarn"}, {}
    yield "yarn without original", without(yarn, "original_max_position_embeddings"), {"max_position_embeddings": 32}
    yield "yarn without original, long", without(yarn, "original_max_position_embeddings"), {}
    yield "yarn without factor", without(yarn, "factor"), {}
    yield "yarn, factor 1", {**yarn, "factor": 1.0}, {}
    yield "yarn, attention_factor", {**yarn, "attention_factor": 1.3}, {}
    yield "yarn, betas", {**yarn, "beta_fast": 16, "beta_slow": 2}, {}
    yield "yarn, betas null", {**yarn, "beta_fast": None, "beta_slow": None}, {}
    yield "yarn, both mscales", {**yarn, "mscale": 0.7, "mscale_all_dim": 1.2}, {}
    yield "yarn, mscale alone", {**yarn, "mscale": 0.7}, {}
    yield "yarn, mscale_all_dim alone", {**yarn, "mscale_all_dim": 0.7}, {}
    yield "yarn, mscale_all_dim 0", {**yarn, "mscale": 0.7, "mscale_all_dim": 0.0}, {}
    yield "yarn, not truncated", {**yarn, "truncate": False}, {}
    yield "yarn, original at the top", without(yarn, "original_max_position_embeddings"), {"original_max_position_embeddings": 16}
    yield "yarn, another original at the top", yarn, {"original_max_position_embeddings": 32}
    yield "llama3", llama3, {}
    for field in without(llama3, "rope_type"):
        yield f"llama3 without {field}", without(llama3, field), {"max_position_embeddings": 64}
    yield "longrope", longrope, {}
    yield "longrope, short", longrope, {"max_position_embeddings": 16}
    yield "longrope, original not reached", {**longrope, "original_max_position_embeddings": 128}, {}
    yield "longrope, original at the top", without(longrope, "original_max_position_embeddings", "factor"), {"original_max_position_embeddings": 16}
    yield "longrope, another original at the top", longrope, {"original_max_position_embeddings": 128}
    yield "longrope without original", without(longrope, "original_max_position_embeddings"), {"max_position_embeddings": 32}
    yield "longrope without factor", without(longrope, "factor"), {}
    yield "longrope, attention_factor", {**longrope, "attention_factor": 1.4}, {}
    yield "longrope, factors too short", {**longrope, "long_factor": factors["long_factor"][:-1]}, {}
    yield "su", {**longrope, "rope_type": "su"}, {}
    yield "'type' yarn with factors", {"type": "yarn", **factors}, {"original_max_position_embeddings": 16}
    yield "mrope", {"rope_type": "default", "mrope_section": [1, 1, 1]}, {}
    yield "ntk", {"rope_type": "ntk", "factor": 2.0}, {}
    yield "proportional", {"rope_type": "proportional", "partial_rotary_factor": 0.5}, {}


# Forms that are not worth their bytes twice.
OLD_FORMS_ONLY = {"linear, a whole factor", "linear, factor 1", "linear, factor 0.5", "linear, 'type'", "linear, both names of the type",
                  "linear with an unknown field", "dynamic, not reached", "yarn, 'type'", "yarn, betas null", "yarn, factor 1", "yarn without factor",
                  "yarn, mscale_all_dim alone", "yarn, mscale_all_dim 0", "llama3 without factor", "llama3 without low_freq_factor",
                  "longrope, factors too short", "'type' yarn with factors", "ntk", "default with a factor"}


def rope_changes(config, newer, dims):
    """`newer`: rope_parameters that transformers 5 makes of the config."""
    if not newer:
        return
    by_layer = any(isinstance(v, dict) for v in newer.values())
    own = newer.get("full_attention", newer) if by_layer else newer
    base = {k: own[k] for k in ("rope_theta", "partial_rotary_factor") if own.get(k) is not None}
    old_fields = [f"/{f}" for f in ("rope_scaling", "rope_theta", "partial_rotary_factor", "rotary_pct", "rotary_emb_base", "rope_local_base_freq")
                  if f in config]

    def nested(parameters):
        return {**newer, "full_attention": parameters} if by_layer else parameters

    yield {"what": "rope_parameters as transformers 5 writes them", "newer": True, "drop": old_fields, "set": {"/rope_parameters": newer}}
    yield {"what": "rope_parameters beside the older fields", "newer": True, "set": {"/rope_parameters": newer}}
    yield {"what": "rope_parameters null beside the older fields", "set": {"/rope_parameters": None}}
    yield {"what": "rope_parameters {} beside the older fields", "set": {"/rope_parameters": {}}}
    if by_layer:
        for name in newer:
            yield {"what": f"rope_parameters without {name}", "newer": True, "drop": old_fields,
                   "set": {"/rope_parameters": {k: v for k, v in newer.items() if k != name}}}
            yield {"what": f"rope_parameters, {name} linear", "newer": True, "drop": old_fields,
                   "set": {"/rope_parameters": {**newer, name: {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}}}}
        yield {"what": "rope_parameters for all layers", "newer": True, "drop": old_fields, "set": {"/rope_parameters": own}}
    for form, scaling, top in rope_forms(config, dims):
        at_top = {f"/{k}": v for k, v in top.items()}
        yield {"what": f"rope_scaling: {form}", "set": {"/rope_scaling": scaling, **at_top}}
        if form not in OLD_FORMS_ONLY:
            yield {"what": f"rope_parameters: {form}", "newer": True, "drop": old_fields,
                   "set": {"/rope_parameters": nested({**base, **scaling}), **at_top}}
    for name in base:
        given = {**own, name: base[name] / 2}
        yield {"what": f"another {name} in rope_parameters beside the older fields", "newer": True,
               "set": {"/rope_parameters": nested(given), f"/{name}": base[name]}}
        yield {"what": f"{name} only at the top, rope_parameters without", "newer": True,
               "drop": [f for f in old_fields if f != f"/{name}"],
               "set": {"/rope_parameters": nested({k: v for k, v in own.items() if k != name}), f"/{name}": base[name] / 2}}
        yield {"what": f"neither {name} at the top nor in rope_parameters", "newer": True, "drop": old_fields,
               "set": {"/rope_parameters": nested({k: v for k, v in own.items() if k != name})}}
    linear = {"rope_type": "linear", "factor": 2.0}
    yield {"what": "rope_scaling linear beside rope_parameters", "newer": True, "set": {"/rope_parameters": newer, "/rope_scaling": linear}}
    yield {"what": "rope_scaling linear beside rope_parameters, no older fields", "newer": True, "drop": old_fields,
           "set": {"/rope_parameters": newer, "/rope_scaling": linear}}
    yield {"what": "rope_scaling null beside rope_parameters", "newer": True, "drop": [f for f in old_fields if f != "/rope_scaling"],
           "set": {"/rope_parameters": newer, "/rope_scaling": None}}
    yield {"what": "rope_scaling with its own rope_theta", "set": {"/rope_scaling": {**linear, "rope_theta": 5000.0}}}
    yield {"what": "rope_scaling a text", "set": {"/rope_scaling": "linear"}}
    yield {"what": "rope_theta a whole number", "set": {"/rope_theta": 5000}}
    yield {"what": "rope_theta a text", "set": {"/rope_theta": "5000"}}


LAYER = re.compile(r"(.*?(?:layers|layer|h)\.)(\d+)\.(.*)")


def tensor_changes(config, shapes):
    """`shapes`: of the tensors, by name."""
    layers, patterns = {}, {}
    for name in shapes:
        if found := LAYER.fullmatch(name):
            layers.setdefault(found[1], set()).add(int(found[2]))
            patterns.setdefault((found[1], re.sub(r"experts\.\d+\.", "experts.0.", found[3])), []).append(name)
    stem = max(layers, key=lambda k: len(layers[k]), default=None)
    last = max(layers.get(stem, {0}))

    def add(what, tensors, **more):
        return {"what": what, "add": tensors, **more}

    weights = {(s, p): v for (s, p), v in patterns.items() if p.endswith(".weight") and len(shapes[v[0]]) == 2 and "experts" not in p}
    biases = {}
    for (s, part), names in weights.items():
        bias = part[: -len("weight")] + "bias"
        if (s, bias) in patterns:
            continue
        biases[part] = new = [[n[: -len("weight")] + "bias", shapes[n][:1]] for n in names]
        yield add(f"{bias} in every layer", new)
        yield add(f"{bias} in the last layer", new[-1:])
    if biases:
        every = [t for new in biases.values() for t in new]
        yield add("biases of all matrices", every)
        for field in ("attention_bias", "mlp_bias", "use_bias", "use_qkv_bias"):
            yield add(f"biases of all matrices, {field} true", every, set={f"/{field}": True})
            yield add(f"biases of all matrices, {field} false", every, set={f"/{field}": False})
        both = {"/attention_bias": True, "/mlp_bias": True}
        yield add("biases of all matrices, attention_bias and mlp_bias true", every, set=both)
    embedding = next((n for n in shapes if re.search(r"(embed_tokens|wte|embed_in|word_embeddings)\.weight$", n)), None)
    head = next((n for n in shapes if re.search(r"^(lm_head|embed_out)\.weight$", n)), None)
    decoder = config["architectures"][0].endswith(("CausalLM", "LMHeadModel"))
    if decoder and embedding:
        name = head or ("embed_out.weight" if config["model_type"] == "gpt_neox" else "lm_head.weight")
        for tied in (True, False):
            flag = {"set": {"/tie_word_embeddings": tied}}
            yield add(f"another {name}, tie_word_embeddings {tied}", [[name, shapes[embedding]]], **flag)
            yield add(f"{name} equal to the embedding, tie_word_embeddings {tied}", [[name, embedding]], **flag)
            yield {"what": f"no {name}, tie_word_embeddings {tied}", "lose": [name] if head else [], **flag}
            yield add(f"only {name}, tie_word_embeddings {tied}", [[name, embedding]], lose=[embedding], **flag)
        yield add(f"another {name}", [[name, shapes[embedding]]])
        bias = name[: -len("weight")] + "bias"
        if bias not in shapes:
            yield add("a bias of the head", [[bias, shapes[embedding][:1]]])
            yield add("a bias of the head, lm_head_bias true", [[bias, shapes[embedding][:1]]], set={"/lm_head_bias": True})
    if stem:
        width = shapes[embedding][-1:] if embedding else [8]
        for part in EXTRA_OF_LAYER:
            shape = [4] if part.endswith(("inv_freq", "sinks")) else [*width, *width] if part.endswith(("_proj", "router.weight", "unknown.weight")) else width
            new = [[f"{stem}{layer}.{part}", shape] for layer in range(last + 1) if f"{stem}{layer}.{part}" not in shapes]
            if new:
                yield add(f"{part} in every layer", new)
                yield add(f"{part} in the last layer", new[-1:])
        yield {"what": "a layer more than num_hidden_layers", "copy": [f"{stem}{last}.", f"{stem}{last + 1}."]}
    yield add("an unknown tensor", [["unknown.weight", [8, 8]]])
    for stem_of_head in ("cls.predictions.", "lm_head.", "predictions."):
        own = f"{stem_of_head}bias"
        if decoder or own not in shapes or not embedding:
            continue
        weight, bias = [f"{stem_of_head}decoder.weight", embedding], [f"{stem_of_head}decoder.bias", own]
        other_weight, other_bias = [weight[0], shapes[embedding]], [bias[0], shapes[own]]
        for tied in (None, True, False):
            flag = {} if tied is None else {"set": {"/tie_word_embeddings": tied}}
            for words, tensors in {"the embedding again": [weight], "both again": [weight, bias], "another weight": [other_weight],
                                   "another bias": [other_bias], "another weight and bias": [other_weight, other_bias]}.items():
                yield add(f"decoder: {words}, tie_word_embeddings {tied}", tensors, **flag)
            yield add(f"decoder: bias alone, tie_word_embeddings {tied}", [bias], lose=[own], **flag)
    norm = next((n for n in shapes if re.search(r"(^|\.)(norm|ln_f|final_layer_norm)\.weight$", n)), None)
    if norm and norm[: -len("weight")] + "bias" not in shapes:
        yield add("a bias of the last norm", [[norm[: -len("weight")] + "bias", shapes[norm]]])
    for (s, part), names in patterns.items():
        yield {"what": f"no {part} in the last layer", "lose": names[-1:]}
        yield {"what": f"no {part} in any layer", "lose": names}
    for name in shapes:
        if not LAYER.fullmatch(name):
            yield {"what": f"no {name}", "lose": [name]}
    prefix = (embedding or "").split(".")[0] + "."
    if embedding and prefix in ("model.", "transformer.", "gpt_neox.", "bert.", "roberta.", "albert."):
        yield {"what": f"names without {prefix}", "rename": [prefix, ""]}
    if prefix == "model.":
        yield {"what": "names with language_model.", "rename": ["model.", "language_model.model."]}
        yield {"what": "names with model.language_model.", "rename": ["model.", "model.language_model."]}
    yield {"what": "an index of other shards beside the file", "leftover": True}


def all_changes(config, newer, dims, defaults, whole, shapes):
    """Without those of which kind the output is."""
    scores = config["architectures"][0].endswith("ForSequenceClassification")
    seen = set()
    for change in [*field_changes(config), *added_fields(config, defaults), *alias_changes(config), *whole_changes(config, whole, defaults),
                   *wrapped_changes(config), *rope_changes(config, newer, dims), *tensor_changes(config, shapes)]:
        key = repr({k: v for k, v in change.items() if k not in ("what", "newer")})
        if key not in seen and not (scores and any(f"/{field}" in (*change.get("set", {}), *change.get("drop", [])) for field in ("architectures", "id2label"))):
            seen.add(key)
            yield change
