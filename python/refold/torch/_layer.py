"""A layer of a decoder. Shapes: B sequences, T tokens of this call, S tokens with those before, P rows of a prefix, C
the width (n_embd), H query heads, G key/value heads, D head_dim."""

from __future__ import annotations

import math
from typing import Any, Dict, Optional, Protocol, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._topology import Layer, Topology
from ._covered import EXPERTS, LAYER_VECTORS, LINEAR
from ._experts import SlotExperts, route
from ._ops import ACTIVATIONS, Norm, gated, softcap, widened
from ._rotation import Rope
from ._weights import SlotLinear, StoredTensors, Weight


class Cache(Protocol):
    """What earlier tokens leave for later ones. transformers' DynamicCache is one."""

    def get_seq_length(self) -> int: ...

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> Tuple[Tensor, Tensor]:
        """Appends [B, G, T, D] of a layer, counted from 0 over those that store some. Returns all, [B, G, S, D].

        A layer that stores values only has keys of width 0.
        """
        ...


class Step:
    """What the layers of one call have in common."""

    def __init__(self, tokens: Tensor, mask: Optional[Tensor], cache: Optional[Cache]) -> None:
        """tokens [B, T]; mask [B, S], 0 for padding."""
        past = 0 if cache is None else cache.get_seq_length()
        count = past + tokens.shape[1]
        if mask is None:
            mask = torch.ones(len(tokens), count, dtype=torch.bool, device=tokens.device)
        mask = mask.bool()
        keys = (mask.cumsum(1) - 1).clamp(min=0)  # positions [B, S]
        index = torch.arange(count, device=tokens.device)
        apart = index[past:, None] - index  # [T, S]
        self.cache = cache
        self.positions = keys[:, past:]  # [B, T]
        # Causal, without padding [B, T, S]. Padding sees itself, so that there is something to see.
        self.visible = ((apart >= 0) & mask[:, None, :]) | (apart == 0)
        self.distances = self.positions[:, :, None] - keys[:, None, :]  # of a token from a key [B, T, S]
        self.length = int(self.positions.max()) + 1  # of the longest sequence
        self.angles: Dict[int, Tuple[Tensor, Tensor]] = {}  # by rotation
        self._biases: Dict[int, Tensor] = {}  # by window
        self.probabilities: Dict[int, Tensor] = {}  # [B, H, T, P + S] by layer that lends them
        self.keys_and_values: Dict[int, Tuple[Tensor, Tensor]] = {}  # [B, G, P + S, D] likewise

    def bias(self, window: int, prefix: int, dtype: torch.dtype) -> Tensor:
        """What is added to scores [B, 1, T, P + S]: 0, or the smallest number where a key is not seen."""
        if window not in self._biases:
            visible = self.visible & (self.distances < window) if window > 0 else self.visible
            visible = functional.pad(visible, (prefix, 0), value=True)[:, None]
            zero = torch.zeros((), dtype=dtype, device=visible.device)
            self._biases[window] = zero.masked_fill(~visible, torch.finfo(dtype).min)
        return self._biases[window]


class Shared:
    """What the layers of a model have in common."""

    def __init__(self, config: Dict[str, Any], topology: Topology, stored: StoredTensors, rope: Rope) -> None:
        self.config = config
        self.stored = stored
        # Factors of frequencies are for the main rotation only.
        self.ropes = [rope] if config["local_rope"] is None else [rope, Rope(config["local_rope"], {})]
        sources = [layer.attention for layer in topology.layers if layer.attention is not None]
        self.lends_probabilities = {source.layer for source in sources if source.kind == "probabilities"}
        self.lends_kv = {source.layer for source in sources if source.kind == "kv"}
        # The layers that store keys and values are numbered for the cache.
        storing = [
            number
            for number, layer in enumerate(topology.layers)
            if "attn.o" in layer and not (layer.attention and layer.attention.kind == "kv")
        ]
        self.cache_index = {number: index for index, number in enumerate(storing)}

    def window(self, layer: int) -> int:
        windows = self.config["windows"]
        return int(windows[layer % len(windows)]) if windows else 0

    def rotation(self, layer: int) -> Optional[int]:
        """Which of `ropes` turns the queries and keys of a layer."""
        rotated = self.config["rotated"]
        number = 1 if self.window(layer) > 0 and len(self.ropes) > 1 else 0
        turns = self.ropes[number].dims > 0 and (not rotated or rotated[layer % len(rotated)])
        return number if turns else None


class DecoderLayer(nn.Module):
    """[B, T, C] -> [B, T, C]. Its matrices are modules, attn.q, ffn.down, ...; its norms are read where they are stored."""

    def __init__(self, shared: Shared, number: int, slots: Layer) -> None:
        super().__init__()
        config = shared.config
        self.shared, self.number, self.slots = shared, number, slots
        self.n_head_kv: int = config["heads_kv"][number] if config["heads_kv"] else config["n_head_kv"]
        self.n_head: int = self.n_head_kv * (config["n_head"] // config["n_head_kv"])
        self.scale: float = config["attention_scale"] / (number + 1 if config["scale_by_layer"] else 1)
        self.residual_scale: float = config["residual_scale"]

        def weight(slot: str, heads: Optional[int] = None) -> Weight:
            block = config[EXPERTS.get(slot, "head_dim")]
            return Weight(shared.stored, slot, slots[slot], block, heads)

        def bias(slot: str) -> Optional[Weight]:
            return weight(slot + ".bias") if slot + ".bias" in slots else None

        self.vectors = {slot: weight(slot) for slot in slots if slot.removesuffix(".bias") in LAYER_VECTORS}
        self.norm = Norm(config, self.vectors)
        sizes = {
            "q": self.n_head * config["head_dim"],
            "kv": self.n_head_kv * config["head_dim"],
            "n_embd": config["n_embd"],
            "n_ff": config["ffs"][number] if config["ffs"] else config["n_ff"],
            "experts": config["experts"][number] if config["experts"] else config["n_expert"],
        }
        heads = {"q": self.n_head, "kv": self.n_head_kv}
        self.attn, self.ffn = nn.Module(), nn.Module()
        for slot, (inner, outer) in LINEAR.items():
            if slot in slots:
                made_of = weight(slot, heads.get(inner, heads.get(outer)))
                linear = SlotLinear(made_of, bias(slot), sizes[inner], sizes[outer])
                module, name = slot.split(".")
                getattr(self, module).add_module(name, linear)
        for slot in EXPERTS:
            if slot in slots:
                experts = SlotExperts(weight(slot), bias(slot), sizes["experts"])
                self.ffn.add_module(slot.split(".")[1], experts)

    def linear(self, slot: str, x: Tensor) -> Tensor:
        y: Tensor = self.get_submodule(slot)(x)
        return y

    def plus(self, slot: str, total: Optional[Tensor], x: Tensor) -> Optional[Tensor]:
        """total + W x, as far as there are a total and a W."""
        if slot not in self.slots:
            return total
        return self.linear(slot, x) if total is None else total + self.linear(slot, x)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        normed = self.norm("attn.norm", x)
        attended = self._attention(normed, step) if "attn.o" in self.slots else None
        attended = self.plus("attn.comp", attended, normed)
        if self.shared.config["parallel_residual"]:
            given = self.norm("ffn.norm", x) if "ffn.norm" in self.slots else normed
            for added in (self._fed(given, normed), attended):
                x = x if added is None else x + added
            return x
        x = self.norm("attn.output_norm", x if attended is None else x + attended)
        fed = self._fed(self.norm("ffn.norm", x), normed)
        return self.norm("ffn.output_norm", x if fed is None else x + fed)

    def _fed(self, x: Tensor, normed: Tensor) -> Optional[Tensor]:
        fed: Optional[Tensor] = None
        if "ffn.router" in self.slots or "ffn.down" in self.slots:
            fed = self._mixture(x) if "ffn.router" in self.slots else self._feed_forward(x)
            fed = self.norm("ffn.post_norm", fed) * self.residual_scale
        return self.plus("attn.comp_ffn", fed, normed)

    def _feed_forward(self, x: Tensor) -> Tensor:
        activation, inner = self.shared.config["activation"], self.linear("ffn.up", x)
        if "ffn.gate" in self.slots:
            inner = gated(activation, self.linear("ffn.gate", x), inner)
        else:
            inner = ACTIVATIONS[activation](inner)
        return self.linear("ffn.down", inner)

    def _mixture(self, x: Tensor) -> Tensor:
        config, tokens = self.shared.config, x.flatten(0, -2)
        scores = self.linear("ffn.router", tokens)
        routes = route(scores, config["n_expert_used"], config["norm_expert_weights"])
        given = tokens[routes.tokens]
        gate, up = (self.ffn.get_submodule(name)(given, routes) for name in ("gate_exps", "up_exps"))
        down: Tensor = self.ffn.get_submodule("down_exps")(gated(config["activation"], gate, up), routes)
        weighted = down * routes.weights[:, None]
        total = torch.zeros(tokens.shape, dtype=weighted.dtype, device=x.device)
        return total.index_add(0, routes.tokens, weighted).to(x.dtype).view_as(x)

    # ---- attention ----

    def _attention(self, x: Tensor, step: Step) -> Tensor:
        inner = self.plus("attn.comp_o", self._attended_values(x, step), x)
        out = self.plus("attn.comp_norm", self.linear("attn.o", inner), x)  # type: ignore[arg-type]
        return self.norm("attn.post_norm", out) * self.residual_scale  # type: ignore[arg-type]

    def _attended_values(self, x: Tensor, step: Step) -> Tensor:
        """The input of attn.o [B, T, H * D], without attn.comp_o."""
        shared, source = self.shared, self.slots.attention
        if source is not None and source.kind == "probabilities":
            values = self.linear("attn.v", x)
            own = self._heads(values)
            if step.cache is not None:
                own = step.cache.update(own[..., :0], own, shared.cache_index[self.number])[1]
            out = self._weighted(step.probabilities[source.layer], own)
            return self.plus("attn.comp_v", out, values)  # type: ignore[return-value]
        if source is not None:
            q = self._turned("q", x, source.layer, step)
            return self._attend(q, *step.keys_and_values[source.layer], step)
        q, k = (self._turned(of, x, self.number, step) for of in "qk")
        v = self._heads(self.linear("attn.v", x))
        if step.cache is not None:
            k, v = step.cache.update(k, v, shared.cache_index[self.number])
        if shared.config["n_prefix"] > 0:
            k, v = self._behind_prefix(k, v)
        if self.number in shared.lends_kv:
            step.keys_and_values[self.number] = (k, v)
        return self._attend(q, k, v, step)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, heads * D] as [B, heads, T, D]."""
        return torch.unflatten(x, -1, (-1, self.shared.config["head_dim"])).transpose(1, 2)

    def _normed(self, of: str, x: Tensor) -> Tensor:
        return self.norm(f"attn.{of}_norm_all", self.norm(f"attn.{of}_norm", x))

    def _turned(self, of: str, x: Tensor, by: int, step: Step) -> Tensor:
        """Queries or keys (`of`: "q", "k") [B, heads, T, D] after norm and rotation, which is that of layer `by`."""
        y = self.linear("attn." + of, x)
        late = self.shared.config["norm_after_rope"]
        y = self._heads(y if late else self._normed(of, y))
        rotation = self.shared.rotation(by)
        if rotation is not None:
            rope = self.shared.ropes[rotation]
            if rotation not in step.angles:
                step.angles[rotation] = rope.angles(step.positions, step.length, y.dtype)
            y = rope.turn(y, *step.angles[rotation])
        return self._heads(self._normed(of, y.transpose(1, 2).flatten(2))) if late else y

    def _behind_prefix(self, k: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
        """[B, G, P + S, D]: trained keys and values before those of the tokens. They are not rotated."""
        if "attn.prefix" in self.slots:
            rows = self.vectors["attn.prefix"].matrix()
            keys, values = self._normed("k", self.linear("attn.k", rows)), self.linear("attn.v", rows)
        else:
            keys, values = (self.vectors[slot].matrix() for slot in ("attn.prefix_k", "attn.prefix_v"))
        keys, values = (self._heads(rows[None]).expand(len(k), -1, -1, -1) for rows in (keys, values))
        return torch.cat((keys, k), 2), torch.cat((values, v), 2)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
        """q [B, H, T, D] over k, v [B, G, P + S, D]: [B, T, H * D]."""
        shared = self.shared
        bias = step.bias(shared.window(self.number), shared.config["n_prefix"], q.dtype)
        slopes = self._slopes()
        if slopes is not None:
            bias = bias - slopes.to(q)[:, None, None] * step.distances.abs()[:, None]
        cap = shared.config["attention_softcap"]
        sinks = self.vectors.get("attn.sinks")
        if cap == 0 and sinks is None and self.number not in shared.lends_probabilities:
            groups = self.n_head // self.n_head_kv
            k, v = (y.repeat_interleave(groups, 1) if groups > 1 else y for y in (k, v))
            out = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)
            return out.transpose(1, 2).flatten(2)
        scores = torch.unflatten(q, 1, (self.n_head_kv, -1)) @ k[:, :, None].transpose(-1, -2) * self.scale
        scores = softcap(scores, cap).flatten(1, 2) + bias
        if sinks is None:
            probabilities = torch.softmax(widened(scores), -1).to(q.dtype)
        else:  # one more score of each head, which weights no value
            more = sinks.matrix().reshape(-1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat((scores, more), -1)
            probabilities = torch.softmax(widened(scores), -1)[..., :-1].to(q.dtype)
        if self.number in shared.lends_probabilities:
            step.probabilities[self.number] = probabilities
        return self._weighted(probabilities, v)

    def _weighted(self, probabilities: Tensor, v: Tensor) -> Tensor:
        """[B, T, H * D] of probabilities [B, H, T, P + S] and v [B, G, P + S, D]."""
        out = torch.unflatten(probabilities, 1, (self.n_head_kv, -1)) @ v[:, :, None]
        return out.flatten(1, 2).transpose(1, 2).flatten(2)

    def _slopes(self) -> Optional[Tensor]:
        """ALiBi's [H] of the layer (Press et al., 2022); None without ALiBi."""
        config = self.shared.config
        most, n_head, kept = config["max_alibi_bias"], config["n_head"], config["alibi_heads"]
        if most <= 0:
            return None
        power = 2 ** int(math.log2(n_head))  # numbers of heads that are no power of two: as in ggml
        exponents = [
            -most / power * (h + 1) if h < power else -most / 2 / power * (2 * (h - power) + 1)
            for h in range(n_head)
        ]
        slopes = torch.tensor([2**exponent for exponent in exponents])
        if kept and kept[self.number]:
            slopes = torch.unflatten(slopes, 0, (config["n_head_kv"], -1))[kept[self.number]].flatten()
        return slopes
