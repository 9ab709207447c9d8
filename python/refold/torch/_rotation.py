"""Rotary position embedding as all engines of refold compute it (src/engine/torch/rotation.cpp)."""

from __future__ import annotations

import math
from typing import Any, Dict, Mapping, Tuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Rope:
    """A rotation of queries and keys: linear, dynamic and YaRN scaling, factors of each frequency."""

    def __init__(self, fields: Mapping[str, Any], factors: Dict[str, NDArray[np.float64]]) -> None:
        self._fields = fields
        self._factors = factors
        self.dims = int(fields["dims"])

    def _stretches(self, length: int) -> bool:
        f = self._fields
        return bool((f["dynamic_factor"] > 0 or f["long_factors"]) and length > f["original_context"])

    def _frequencies(self, length: int) -> NDArray[np.float64]:
        """Angle per position of each pair [dims / 2], in a sequence of `length` tokens."""
        f, dims = self._fields, self.dims
        base = f["base"]
        if f["dynamic_factor"] > 0 and self._stretches(length):
            stretch = f["dynamic_factor"] * length / f["original_context"] - (f["dynamic_factor"] - 1)
            base = base * stretch ** (dims / (dims - 2))
        pairs = np.arange(dims // 2, dtype=np.float64)
        plain: NDArray[np.float64] = base ** (-2 * pairs / dims)
        name = "rope_freqs_long" if f["long_factors"] and self._stretches(length) else "rope_freqs"
        if name in self._factors:
            plain = plain / self._factors[name]
        if f["ext_factor"] == 0:
            scaled: NDArray[np.float64] = plain * f["frequency_scale"]
            return scaled
        # YaRN, its bounds in whole pairs as in ggml.
        turns = [
            dims * math.log(f["original_context"] / (beta * 2 * math.pi)) / (2 * math.log(base))
            for beta in (f["beta_fast"], f["beta_slow"])
        ]
        first, last = max(0.0, math.floor(turns[0])), min(dims - 1.0, math.ceil(turns[1]))
        kept = f["ext_factor"] * (1 - np.clip((pairs - first) / max(0.001, last - first), 0, 1))
        mixed: NDArray[np.float64] = plain * f["frequency_scale"] * (1 - kept) + plain * kept
        return mixed

    def angles(self, positions: Tensor, length: int, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        """Cosines and sines [B, 1, T, dims / 2] of positions [B, T]."""
        f = self._fields
        magnitude = f["attention_factor"]
        if f["ext_factor"] != 0:
            magnitude *= 1 - 0.1 * math.log(f["frequency_scale"])
        frequencies = torch.from_numpy(self._frequencies(length)).to(positions.device)
        angles = positions.double()[:, None, :, None] * frequencies
        return (magnitude * angles.cos()).to(dtype), (magnitude * angles.sin()).to(dtype)

    def turn(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """x [B, heads, T, D], rotated."""
        turned, rest = x[..., : self.dims], x[..., self.dims :]
        if self._fields["kind"] == "interleaved":
            a, b = turned[..., 0::2], turned[..., 1::2]
            pairs = torch.stack((a * cosines - b * sines, a * sines + b * cosines), -1)
            return torch.cat((pairs.flatten(-2), rest), -1)
        a, b = turned.chunk(2, -1)
        return torch.cat((a * cosines - b * sines, a * sines + b * cosines, rest), -1)
