"""Operations of the forward pass that have no weights, and norms."""

from __future__ import annotations

from typing import Any, Callable, Dict

import torch
from torch import Tensor
from torch.nn import functional

from ._weights import Weight

ACTIVATIONS: Dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}
# Of a gate with the map beside it only (gpt-oss).
SWIGLU_CLAMPED = "swiglu_clamped"


def gated(activation: str, gate: Tensor, up: Tensor) -> Tensor:
    """activation(gate) * up."""
    if activation == SWIGLU_CLAMPED:
        gate, up = gate.clamp(max=7), up.clamp(-7, 7)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    return ACTIVATIONS[activation](gate) * up


class Norm:
    """The normalization of a model, and the vectors of a layer or of the model that it reads."""

    def __init__(self, config: Dict[str, Any], vectors: Dict[str, Weight]) -> None:
        self._rms: bool = config["norm"] == "rms"
        self._eps: float = config["norm_eps"]
        self._by_head: bool = config["norm_by_head"]
        self._head_dim: int = config["head_dim"]
        self.vectors = vectors

    def __call__(self, slot: str, x: Tensor) -> Tensor:
        """x [..., n] normalized over all n, or head by head; x where the slot is empty."""
        if slot not in self.vectors:
            return x
        gain = self.vectors[slot].matrix().reshape(-1)
        width = self._head_dim if self._by_head and slot.endswith("_norm_all") else len(gain)
        groups = torch.unflatten(x, -1, (-1, width))
        if self._rms:
            wide = widened(groups)
            normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._eps)).to(x.dtype)
        else:
            normed = functional.layer_norm(groups, (width,), eps=self._eps)
        normed = (
            normed * gain if len(gain) == width else torch.unflatten(normed.flatten(-2) * gain, -1, (1, -1))
        )
        if slot + ".bias" in self.vectors:
            normed = normed + self.vectors[slot + ".bias"].matrix().reshape(-1)
        return normed.flatten(-2)


def widened(x: Tensor) -> Tensor:
    """At least float32: sums over many numbers need it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap tanh(x / cap); x where cap is 0."""
    return torch.tanh(x / cap) * cap if cap > 0 else x
