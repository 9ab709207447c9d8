"""The forward pass of src/model/forward.h for decoders, with gradients.

Shapes: B sequences, T tokens of this call, S tokens with those before, P rows of a prefix, C the width (n_embd),
V the vocabulary, H query heads, G key/value heads, D head_dim.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Protocol, Tuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from .._errors import UnsupportedError
from .._stored_model import StoredModel
from .._stored_model import open as open_model
from .._topology import Dense, Expression, Layer, RowParts, Slots
from ._rotation import Rope
from ._weights import SlotLinear, StoredTensors, Table, TableLinear, Weight

if TYPE_CHECKING:
    from .._model import PathLike

# Input and output of the linear maps.
_LINEAR = {
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
    "head.dense": ("n_embd", "n_embd"),
    "output": ("n_embd", "n_vocab"),
}
_LAYER_VECTORS = ("attn.norm", "attn.q_norm", "attn.k_norm", "attn.q_norm_all", "attn.k_norm_all", "attn.prefix",
                  "attn.prefix_k", "attn.prefix_v", "attn.post_norm", "attn.output_norm", "ffn.norm",
                  "ffn.post_norm", "ffn.output_norm")  # fmt: skip
_MODEL_VECTORS = ("embd_norm", "output_norm", "head.norm", "rope_freqs", "rope_freqs_long")
_TABLES = {"token_embd": "n_vocab", "position_embd": "n_learned_positions", "token_types": "n_token_types"}
# Of tokens that exit early, which none does here.
_EXITS = ("exit.map", "exit.output")
_FIELDS = {
    "family", "n_embd", "n_head", "n_head_kv", "head_dim", "n_ff", "n_vocab", "heads_kv", "ffs", "context_length",
    "norm", "norm_eps", "activation", "parallel_residual", "embedding_scale", "residual_scale", "causal",
    "attention_scale", "scale_by_layer", "attention_softcap", "max_alibi_bias", "alibi_heads", "windows", "rope",
    "local_rope", "rotated", "norm_after_rope", "norm_by_head", "n_prefix", "n_learned_positions", "n_token_types",
    "norm_head", "logit_scale", "logit_softcap",
}  # fmt: skip
_ACTIVATIONS: Dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu_squared": lambda x: functional.relu(x).square(),
    "tanh": torch.tanh,
}


class Cache(Protocol):
    """What earlier tokens leave for later ones. transformers' DynamicCache is one."""

    def get_seq_length(self) -> int: ...

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> Tuple[Tensor, Tensor]:
        """Appends [B, G, T, D] of a layer, counted from 0 over those that store some. Returns all, [B, G, S, D].

        A layer that stores values only has keys of width 0.
        """
        ...


def check(model: StoredModel) -> None:
    """Raises UnsupportedError naming what this module does not cover."""
    config = model.config
    if not config["causal"]:
        raise UnsupportedError(f"[torch] '{config['family']}' is an encoder, this is for decoders")
    for field, value in config.items():
        if field not in _FIELDS and value:
            raise UnsupportedError(f"[torch] the configuration's '{field}' is not covered: got {value!r}")
    if config["activation"] not in _ACTIVATIONS:
        raise UnsupportedError(f"[torch] the activation '{config['activation']}' is not covered")
    covered = {*_LINEAR, *_LAYER_VECTORS, *_MODEL_VECTORS, *_TABLES, *_EXITS}
    places: List[Tuple[str, Slots]] = [(f"layer {i}", slots) for i, slots in enumerate(model.layers)]
    for where, slots in [*places, ("the model", model.slots)]:
        for slot in slots:
            if slot not in covered and slot.removesuffix(".bias") not in covered:
                raise UnsupportedError(f"[torch] the slot '{slot}' of {where} is not covered")
    for slot in ("token_embd", "output"):
        if slot not in model.slots:
            raise UnsupportedError(f"[torch] a model without '{slot}' is not covered")


class _Step:
    """What the layers of one call have in common."""

    def __init__(self, positions: Tensor, visible: Tensor, distances: Tensor, cache: Optional[Cache]) -> None:
        self.positions = positions  # [B, T]
        self.visible = visible  # [B, T, S]: causal, no padding
        self.distances = distances  # [B, T, S]: position of the token minus that of the key
        self.cache = cache
        self.length = int(positions.max()) + 1  # of the longest sequence
        self.angles: Dict[int, Tuple[Tensor, Tensor]] = {}  # by rotation
        self.probabilities: Dict[int, Tensor] = {}  # [B, H, T, P + S] by layer that lends them
        self.keys_and_values: Dict[int, Tuple[Tensor, Tensor]] = {}  # [B, G, P + S, D] likewise


class DecoderLayer(nn.Module):
    """A layer's matrices as modules, attn.q, ffn.down, ...; its norms are read where they are stored."""

    def __init__(self, model: Model, number: int, slots: Layer) -> None:
        super().__init__()
        config = model.config
        self.number = number
        self.source = slots.attention
        by_layer, by_layer_ffs = config["heads_kv"], config["ffs"]
        self.n_head_kv: int = by_layer[number] if by_layer else config["n_head_kv"]
        self.n_head: int = self.n_head_kv * (config["n_head"] // config["n_head_kv"])
        self.scale: float = config["attention_scale"] / (number + 1 if config["scale_by_layer"] else 1)
        windows = config["windows"]
        self.window: int = windows[number % len(windows)] if windows else 0
        self.slots = slots
        self.vectors = {
            slot: model.weight(slot, e)
            for slot, e in slots.items()
            if slot in _LAYER_VECTORS or slot.removesuffix(".bias") in _LAYER_VECTORS
        }
        self.sizes = {
            "q": self.n_head * config["head_dim"],
            "kv": self.n_head_kv * config["head_dim"],
            "n_embd": config["n_embd"],
            "n_ff": by_layer_ffs[number] if by_layer_ffs else config["n_ff"],
        }
        self.attn, self.ffn = nn.Module(), nn.Module()
        heads = {"q": self.n_head, "kv": self.n_head_kv}
        for slot, (inner, outer) in _LINEAR.items():
            if slot in slots:
                bias = slots.get(slot + ".bias")
                linear = SlotLinear(
                    model.weight(slot, slots[slot]),
                    None if bias is None else model.weight(slot + ".bias", bias),
                    self.sizes[inner],
                    self.sizes[outer],
                    heads.get(inner, heads.get(outer)),
                )
                getattr(self, slot.split(".")[0]).add_module(slot.split(".")[1], linear)

    def has(self, slot: str) -> bool:
        return slot in self.slots

    def linear(self, slot: str, x: Tensor) -> Tensor:
        y: Tensor = self.get_submodule(slot)(x)
        return y


class Model(nn.Module):
    """A decoder as a module: token ids [B, T] to logits [B, T, V].

    `stored` has one Parameter for each stored tensor, under its name. `layers[i]` has the linear maps of a layer as
    modules (`attn.q`, ...), which read these.
    """

    head_dense: SlotLinear
    output: SlotLinear

    def __init__(self, source: StoredModel, dtype: torch.dtype = torch.float32) -> None:
        """
        Args:
            source: refold.open(...), perhaps edited.
            dtype: of the Parameters and the computation.
        """
        super().__init__()
        source.check()
        check(source)
        self._source = source = source.copy()
        self.config = config = source.config
        self.topology = topology = source.topology
        self.stored = StoredTensors()
        numbers = {e.ids for e in topology.slots.values() if isinstance(e, RowParts)}
        factors: Dict[str, NDArray[np.float64]] = {}
        for slot in ("rope_freqs", "rope_freqs_long"):
            e = topology.slots.get(slot)
            if isinstance(e, Dense):
                numbers.add(e.tensor)
                factors[slot] = source.tensors[e.tensor].float32().reshape(-1).astype(np.float64)
        for name in topology.tensors():
            values = torch.from_numpy(source.tensors[name].float32())
            # Numbers of rows, and factors of a rotation, are nothing to train or to round.
            self.stored.add(name, values if name in numbers else values.to(dtype), name not in numbers)
        self.tables = nn.ModuleDict()
        for slot, rows in _TABLES.items():
            if slot in topology.slots:
                self.tables[slot] = self._table(source, slot, config[rows])
        self.vectors = {
            slot: self.weight(slot, e)
            for slot, e in topology.slots.items()
            if slot in _MODEL_VECTORS or slot.removesuffix(".bias") in _MODEL_VECTORS
        }
        self.layers = nn.ModuleList(DecoderLayer(self, i, layer) for i, layer in enumerate(topology.layers))
        for slot in ("head.dense", "output"):
            if slot in topology.slots:
                self.add_module(slot.replace(".", "_"), self._linear(source, slot))
        self._ropes = [Rope(config["rope"], factors)]
        if config["local_rope"] is not None:
            self._ropes.append(Rope(config["local_rope"], {}))
        lends = [layer.attention for layer in topology.layers if layer.attention is not None]
        self._lends_probabilities = {s.layer for s in lends if s.kind == "probabilities"}
        self._lends_kv = {s.layer for s in lends if s.kind == "kv"}
        # The layers that store keys and values, in order.
        storing = [
            i
            for i, layer in enumerate(topology.layers)
            if "attn.o" in layer and not (layer.attention and layer.attention.kind == "kv")
        ]
        self._cache_index = {layer: index for index, layer in enumerate(storing)}

    # ---- weights ----

    def weight(self, slot: str, expression: Expression) -> Weight:
        return Weight(self.stored, slot, expression, self.config["head_dim"])

    def _table(self, source: StoredModel, slot: str, rows: int) -> Table:
        e = source.slots[slot]
        places = None
        if isinstance(e, RowParts):
            listed = source.tensors[e.ids].float32().reshape(-1).astype(np.int64)
            rest = np.setdiff1d(np.arange(rows), listed)
            places = torch.from_numpy(np.argsort(np.concatenate([listed, rest])))
        return Table(self.weight(slot, e), rows, self.config["n_embd"], places)

    def _linear(self, source: StoredModel, slot: str) -> SlotLinear:
        e, bias = source.slots[slot], source.slots.get(slot + ".bias")
        added = None if bias is None else self.weight(slot + ".bias", bias)
        inner, outer = (self.config[size] for size in _LINEAR[slot])
        if isinstance(e, RowParts):
            return TableLinear(self._table(source, slot, outer), added)
        return SlotLinear(self.weight(slot, e), added, inner, outer)

    def to_refold(self, type: Optional[str] = None) -> StoredModel:
        """The model with the Parameters' present values, its sharing unchanged.

        Args:
            type: the element type of tensors that have changed, such as "f32"; None: as they were stored, to
                which they are rounded.
        """
        out = self._source.copy()
        for name, parameter in self.stored.named_parameters():
            values = parameter.detach().to("cpu", torch.float32)
            before = torch.from_numpy(out.tensors[name].float32())
            if not torch.equal(values, before.to(parameter.dtype).float()):
                rounded_to = out.tensors[name].type if type is None or values.dim() < 2 else type
                out.set_tensor(name, values.numpy(), rounded_to)
        return out

    def save(self, output: PathLike, *, type: Optional[str] = None, recipe: str = "trained with PyTorch",
             overwrite: bool = False) -> str:  # fmt: skip
        """Writes refold's GGUF: to_refold(type).save(...). Returns the path."""
        return self.to_refold(type).save(output, recipe=recipe, overwrite=overwrite)

    # ---- the forward pass ----

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Optional[Tensor] = None,
        cache: Optional[Cache] = None,
        last: int = 0,
    ) -> Tensor:
        """Logits [B, T, V].

        Args:
            tokens: ids [B, T].
            attention_mask: [B, S], 0 for padding on either side; None: there is none.
            cache: the keys and values of the S - T tokens before, to which those of these are added.
            last: logits of the so many last tokens only; 0: of all.
        """
        x = self.hidden(tokens, attention_mask, cache)
        return self.logits(x[:, -last:] if last else x)

    def hidden(
        self, tokens: Tensor, attention_mask: Optional[Tensor] = None, cache: Optional[Cache] = None
    ) -> Tensor:
        """The residual stream [B, T, C] after the final norm. Arguments as of forward()."""
        step = self._step(tokens, attention_mask, cache)
        x = self.tables["token_embd"](tokens) * self.config["embedding_scale"]
        if "token_types" in self.tables:
            x = x + self.tables["token_types"](torch.zeros_like(tokens))
        if "position_embd" in self.tables:
            x = x + self.tables["position_embd"](step.positions)
        x = self._norm(self.vectors, "embd_norm", x)
        for layer in self.layers:
            x = self._layer(layer, x, step)  # type: ignore[arg-type]  # a ModuleList forgets the kind
        return self._norm(self.vectors, "output_norm", x)

    def logits(self, x: Tensor) -> Tensor:
        """[..., V] of hidden states [..., C]."""
        c = self.config
        if "head.dense" in self.topology.slots:
            x = self._norm(self.vectors, "head.norm", _ACTIVATIONS[c["activation"]](self.head_dense(x)))
        y: Tensor = self.output(x)
        if c["norm_head"]:
            y = y / self.output.weight.norm(dim=1)
        y = y * c["logit_scale"]
        cap = c["logit_softcap"]
        return torch.tanh(y / cap) * cap if cap > 0 else y

    def _step(self, tokens: Tensor, mask: Optional[Tensor], cache: Optional[Cache]) -> _Step:
        count = tokens.shape[1]
        past = 0 if cache is None else cache.get_seq_length()
        if mask is None:
            mask = torch.ones(len(tokens), past + count, dtype=torch.bool, device=tokens.device)
        mask = mask.bool()
        keys = (mask.cumsum(1) - 1).clamp(min=0)  # positions [B, S]
        index = torch.arange(past + count, device=tokens.device)
        own = index[past:, None] - index  # [T, S]
        # Padding sees itself, so that there is something to see.
        visible = ((own >= 0) & mask[:, None, :]) | (own == 0)
        positions = keys[:, past:]
        return _Step(positions, visible, positions[:, :, None] - keys[:, None, :], cache)

    def _norm(self, vectors: Dict[str, Weight], slot: str, x: Tensor) -> Tensor:
        """x [..., n] normalized over all n, or head by head; x where the slot is empty."""
        if slot not in vectors:
            return x
        gain = vectors[slot].matrix().reshape(-1)
        bias = vectors[slot + ".bias"].matrix().reshape(-1) if slot + ".bias" in vectors else None
        by_head = self.config["norm_by_head"] and slot.endswith("_norm_all")
        width = self.config["head_dim"] if by_head else len(gain)
        groups = torch.unflatten(x, -1, (-1, width))
        eps = self.config["norm_eps"]
        if self.config["norm"] == "layer":
            normed = functional.layer_norm(groups, (width,), eps=eps)
        else:
            wide = groups.float()
            normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
        normed = (
            normed * gain if len(gain) == width else torch.unflatten(normed.flatten(-2), -1, (1, -1)) * gain
        )
        if bias is not None:
            normed = normed + bias
        return normed.flatten(-2)

    def _plus(self, layer: DecoderLayer, slot: str, total: Optional[Tensor], x: Tensor) -> Optional[Tensor]:
        """total + W x, as far as there are a total and a W."""
        if not layer.has(slot):
            return total
        return layer.linear(slot, x) if total is None else total + layer.linear(slot, x)

    def _layer(self, layer: DecoderLayer, x: Tensor, step: _Step) -> Tensor:
        normed = self._norm(layer.vectors, "attn.norm", x)
        attended = self._attention(layer, normed, step) if layer.has("attn.o") else None
        attended = self._plus(layer, "attn.comp", attended, normed)
        if self.config["parallel_residual"]:
            given = self._norm(layer.vectors, "ffn.norm", x) if layer.has("ffn.norm") else normed
            for added in (self._fed(layer, given, normed), attended):
                x = x if added is None else x + added
            return x
        if attended is not None:
            x = x + attended
        x = self._norm(layer.vectors, "attn.output_norm", x)
        fed = self._fed(layer, self._norm(layer.vectors, "ffn.norm", x), normed)
        return self._norm(layer.vectors, "ffn.output_norm", x if fed is None else x + fed)

    def _fed(self, layer: DecoderLayer, x: Tensor, normed: Tensor) -> Optional[Tensor]:
        fed: Optional[Tensor] = None
        if layer.has("ffn.down"):
            activation = _ACTIVATIONS[self.config["activation"]]
            inner = layer.linear("ffn.up", x)
            inner = (
                activation(layer.linear("ffn.gate", x)) * inner
                if layer.has("ffn.gate")
                else activation(inner)
            )
            fed = self._norm(layer.vectors, "ffn.post_norm", layer.linear("ffn.down", inner))
            fed = fed * self.config["residual_scale"]
        return self._plus(layer, "attn.comp_ffn", fed, normed)

    def _attention(self, layer: DecoderLayer, x: Tensor, step: _Step) -> Tensor:
        inner = self._plus(layer, "attn.comp_o", self._attended_values(layer, x, step), x)
        out = self._plus(layer, "attn.comp_norm", layer.linear("attn.o", inner), x)  # type: ignore[arg-type]
        return self._norm(layer.vectors, "attn.post_norm", out) * self.config["residual_scale"]  # type: ignore

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, heads * D] as [B, heads, T, D]."""
        return torch.unflatten(x, -1, (-1, self.config["head_dim"])).transpose(1, 2)

    def _normed_and_rotated(self, layer: DecoderLayer, of: str, x: Tensor, by: int, step: _Step) -> Tensor:
        """Queries or keys (`of`: "q", "k") [B, T, heads * D] as layer `by` rotates: [B, heads, T, D]."""

        def norm(y: Tensor) -> Tensor:
            for slot in (f"attn.{of}_norm", f"attn.{of}_norm_all"):
                y = self._norm(layer.vectors, slot, y)
            return y

        if not self.config["norm_after_rope"]:
            x = norm(x)
        x = self._heads(x)
        rotated = self.config["rotated"]
        windows = self.config["windows"]
        rope = 1 if windows and windows[by % len(windows)] > 0 and len(self._ropes) > 1 else 0
        if self._ropes[rope].dims > 0 and (not rotated or rotated[by % len(rotated)]):
            if rope not in step.angles:
                step.angles[rope] = self._ropes[rope].angles(step.positions, step.length, x.dtype)
            x = self._ropes[rope].turn(x, *step.angles[rope])
        if self.config["norm_after_rope"]:
            x = self._heads(norm(x.transpose(1, 2).flatten(2)))
        return x

    def _attended_values(self, layer: DecoderLayer, x: Tensor, step: _Step) -> Tensor:
        """The input of attn.o [B, T, H * D], without attn.comp_o."""
        number, source = layer.number, layer.source
        if source is not None and source.kind == "probabilities":
            values = layer.linear("attn.v", x)
            own = self._heads(values)
            if step.cache is not None:
                own = step.cache.update(own[..., :0], own, self._cache_index[number])[1]
            out = self._weighted(layer, step.probabilities[source.layer], own)
            return self._plus(layer, "attn.comp_v", out, values)  # type: ignore[return-value]
        if source is not None:
            q = self._normed_and_rotated(layer, "q", layer.linear("attn.q", x), source.layer, step)
            return self._attend(layer, q, *step.keys_and_values[source.layer], step)
        q = self._normed_and_rotated(layer, "q", layer.linear("attn.q", x), number, step)
        k = self._normed_and_rotated(layer, "k", layer.linear("attn.k", x), number, step)
        v = self._heads(layer.linear("attn.v", x))
        if step.cache is not None:
            k, v = step.cache.update(k, v, self._cache_index[number])
        if self.config["n_prefix"] > 0:
            k, v = self._behind_prefix(layer, k, v)
        if number in self._lends_kv:
            step.keys_and_values[number] = (k, v)
        return self._attend(layer, q, k, v, step)

    def _behind_prefix(self, layer: DecoderLayer, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
        """[B, G, P + S, D]: trained keys and values before those of the tokens. They are not rotated."""
        if layer.has("attn.prefix"):
            rows = layer.vectors["attn.prefix"].matrix()
            keys, values = layer.linear("attn.k", rows), layer.linear("attn.v", rows)
            for slot in ("attn.k_norm", "attn.k_norm_all"):
                keys = self._norm(layer.vectors, slot, keys)
        else:
            keys, values = (layer.vectors[slot].matrix() for slot in ("attn.prefix_k", "attn.prefix_v"))
        both = (self._heads(rows[None]).expand(len(k), -1, -1, -1) for rows in (keys, values))
        return tuple(torch.cat(pair, 2) for pair in zip(both, (k, v)))  # type: ignore[return-value]

    def _attend(self, layer: DecoderLayer, q: Tensor, k: Tensor, v: Tensor, step: _Step) -> Tensor:
        """q [B, H, T, D] over k, v [B, G, P + S, D]: [B, T, H * D]."""
        visible = step.visible
        if layer.window > 0:
            visible = visible & (step.distances < layer.window)
        mask = functional.pad(visible, (self.config["n_prefix"], 0), value=True)[:, None]  # [B, 1, T, P + S]
        bias = torch.zeros((), dtype=q.dtype, device=q.device).masked_fill(~mask, torch.finfo(q.dtype).min)
        slopes = self._slopes(layer)
        if slopes is not None:
            bias = bias - slopes.to(q)[:, None, None] * step.distances.abs()[:, None]
        cap = self.config["attention_softcap"]
        if cap == 0 and layer.number not in self._lends_probabilities:
            groups = layer.n_head // layer.n_head_kv
            k, v = (y.repeat_interleave(groups, 1) if groups > 1 else y for y in (k, v))
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=layer.scale)
            return out.transpose(1, 2).flatten(2)
        scores = torch.unflatten(q, 1, (layer.n_head_kv, -1)) @ k[:, :, None].transpose(-1, -2) * layer.scale
        if cap > 0:
            scores = torch.tanh(scores / cap) * cap
        probabilities = torch.softmax((scores.flatten(1, 2) + bias).float(), -1).to(q.dtype)
        if layer.number in self._lends_probabilities:
            step.probabilities[layer.number] = probabilities
        return self._weighted(layer, probabilities, v)

    def _weighted(self, layer: DecoderLayer, probabilities: Tensor, v: Tensor) -> Tensor:
        """[B, T, H * D] of probabilities [B, H, T, S] and v [B, G, S, D]."""
        out = torch.unflatten(probabilities, 1, (layer.n_head_kv, -1)) @ v[:, :, None]
        return out.flatten(1, 2).transpose(1, 2).flatten(2)

    def _slopes(self, layer: DecoderLayer) -> Optional[Tensor]:
        """ALiBi's [H] of the layer (Press et al., 2022); None without ALiBi."""
        most, n_head = self.config["max_alibi_bias"], self.config["n_head"]
        if most <= 0:
            return None
        power = 2 ** int(math.log2(n_head))  # other numbers of heads as in ggml
        slopes = torch.tensor(
            [
                2 ** (-most / power * (h + 1) if h < power else -most / 2 / power * (2 * (h - power) + 1))
                for h in range(n_head)
            ]
        )
        kept = self.config["alibi_heads"]
        if kept and kept[layer.number]:
            slopes = torch.unflatten(slopes, 0, (self.config["n_head_kv"], -1))[kept[layer.number]].flatten()
        return slopes


def load(name_or_path: PathLike, *, dtype: torch.dtype = torch.float32) -> Model:
    """A model file as a module: Model(refold.open(name_or_path), dtype)."""
    return Model(open_model(os.fspath(name_or_path)), dtype)
