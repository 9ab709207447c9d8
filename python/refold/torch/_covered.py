"""What the forward pass reads. What is not named here is refused."""

from __future__ import annotations

from typing import List, Tuple

from .._errors import UnsupportedError
from .._stored_model import StoredModel
from .._topology import Slots
from ._ops import ACTIVATIONS, SWIGLU_CLAMPED

# Input and output of the linear maps.
LINEAR = {
    "attn.q": ("n_embd", "q"),
    "attn.k": ("n_embd", "kv"),
    "attn.v": ("n_embd", "kv"),
    "attn.o": ("q", "n_embd"),
    "attn.comp": ("n_embd", "n_embd"),
    "attn.comp_ffn": ("n_embd", "n_embd"),
    "attn.comp_norm": ("n_embd", "n_embd"),
    "attn.comp_o": ("n_embd", "q"),
    "attn.comp_v": ("kv", "q"),
    "ffn.gate": ("n_embd", "n_ff"),
    "ffn.up": ("n_embd", "n_ff"),
    "ffn.down": ("n_ff", "n_embd"),
    "ffn.router": ("n_embd", "experts"),
    "head.dense": ("n_embd", "n_embd"),
    "output": ("n_embd", "n_vocab"),
}
# Of the experts of a layer, with the rows that each has.
EXPERTS = {"ffn.gate_exps": "n_ff_expert", "ffn.up_exps": "n_ff_expert", "ffn.down_exps": "n_embd"}
# Norms, sinks and prefixes of layers.
LAYER_VECTORS = ("attn.norm", "attn.q_norm", "attn.k_norm", "attn.q_norm_all", "attn.k_norm_all", "attn.prefix",
                  "attn.prefix_k", "attn.prefix_v", "attn.sinks", "attn.post_norm", "attn.output_norm",
                  "ffn.norm", "ffn.post_norm", "ffn.output_norm")  # fmt: skip
MODEL_VECTORS = ("embd_norm", "output_norm", "head.norm", "rope_freqs", "rope_freqs_long")
TABLES = {"token_embd": "n_vocab", "position_embd": "n_learned_positions", "token_types": "n_token_types"}
# Of tokens that exit early, which none does here.
_EXITS = ("exit.map", "exit.output", "exit.gate")
_FIELDS = {
    "family", "n_embd", "n_head", "n_head_kv", "head_dim", "n_ff", "n_vocab", "heads_kv", "ffs",
    "context_length", "n_expert", "n_expert_used", "n_ff_expert", "experts", "norm_expert_weights", "norm",
    "norm_eps", "activation", "parallel_residual", "embedding_scale", "residual_scale", "causal",
    "attention_scale", "scale_by_layer", "attention_softcap", "max_alibi_bias", "alibi_heads", "windows",
    "rope", "local_rope", "rotated", "norm_after_rope", "norm_by_head", "n_prefix", "n_learned_positions",
    "n_token_types", "norm_head", "logit_scale", "logit_softcap",
}  # fmt: skip


def check(model: StoredModel) -> None:
    """Raises UnsupportedError naming what this module does not cover."""
    config = model.config
    if not config["causal"]:
        raise UnsupportedError(f"[torch] '{config['family']}' is an encoder, this is for decoders")
    for field, value in config.items():
        if field not in _FIELDS and value:
            raise UnsupportedError(f"[torch] the configuration's '{field}' is not covered: got {value!r}")
    if config["activation"] not in {*ACTIVATIONS, SWIGLU_CLAMPED}:
        raise UnsupportedError(f"[torch] the activation '{config['activation']}' is not covered")
    covered = {*LINEAR, *EXPERTS, *LAYER_VECTORS, *MODEL_VECTORS, *TABLES, *_EXITS}
    places: List[Tuple[str, Slots]] = [(f"layer {i}", slots) for i, slots in enumerate(model.layers)]
    for where, slots in [*places, ("the model", model.slots)]:
        for slot in slots:
            if slot not in covered and slot.removesuffix(".bias") not in covered:
                raise UnsupportedError(f"[torch] the slot '{slot}' of {where} is not covered")
    for slot in ("token_embd", "output"):
        if slot not in model.slots:
            raise UnsupportedError(f"[torch] a model without '{slot}' is not covered")
