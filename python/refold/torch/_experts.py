"""Mixtures of experts: which experts a token uses (src/model/routing.h), and their linear maps.

Shapes: N tokens, E experts of the layer, K of them that a token uses, U = N K uses.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional

import torch
from torch import Tensor, nn

from ._ops import widened
from ._weights import Weight


class Routes(NamedTuple):
    """The uses of all tokens, sorted by expert."""

    tokens: Tensor
    """[U]"""
    experts: Tensor
    """[U]"""
    counts: List[int]
    """The uses of each expert [E]."""
    weights: Tensor
    """[U], at least float32."""


def route(scores: Tensor, used: int, normalized: bool) -> Routes:
    """Of a router's scores [N, E] the `used` largest, of equal ones the first.

    Their weights are the softmax over all experts or, with `normalized`, over those that are used.
    """
    wide = widened(scores)
    ordered, order = wide.sort(dim=1, descending=True, stable=True)
    best, experts = ordered[:, :used], order[:, :used]
    weights = torch.softmax(best, 1) if normalized else torch.softmax(wide, 1).gather(1, experts)
    experts = experts.flatten()
    by_expert = experts.argsort(stable=True)
    counts: List[int] = experts.bincount(minlength=scores.shape[1]).tolist()
    return Routes(by_expert // used, experts[by_expert], counts, weights.flatten()[by_expert])


class SlotExperts(nn.Module):
    """The linear maps of a slot's experts, each [in] -> [out]. It has no Parameters of its own."""

    def __init__(self, weight: Weight, bias: Optional[Weight], experts: int) -> None:
        super().__init__()
        self.experts = experts
        self._weight, self._bias = weight, bias

    @property
    def weight(self) -> Tensor:
        """[E, out, in], written out."""
        matrix = self._weight.matrix()
        return matrix.reshape(self.experts, -1, matrix.shape[-1])

    @property
    def bias(self) -> Optional[Tensor]:
        """[E, out]"""
        return None if self._bias is None else self._bias.matrix().reshape(self.experts, -1)

    def forward(self, x: Tensor, routes: Routes) -> Tensor:
        """[U, out] of x [U, in], each row through the expert of its use."""
        y = self._weight.expert_products(x, routes.counts)
        bias = self.bias
        return y if bias is None else y + bias[routes.experts]

    def extra_repr(self) -> str:
        return f"experts={self.experts}"
