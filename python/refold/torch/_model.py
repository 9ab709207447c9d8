"""A decoder as a module: what src/model/forward.h says, with gradients.

Shapes: B sequences, T tokens of this call, S tokens with those before, C the width (n_embd), V the vocabulary.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, Optional

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .._stored_model import StoredModel
from .._stored_model import open as open_model
from .._topology import Dense, RowParts
from ._covered import LINEAR, MODEL_VECTORS, TABLES, check
from ._layer import Cache, DecoderLayer, Shared, Step
from ._ops import ACTIVATIONS, Norm, softcap
from ._rotation import Rope
from ._weights import SlotLinear, StoredTensors, Table, TableLinear, Weight

if TYPE_CHECKING:
    from .._model import PathLike


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
        self._source = source.copy()
        self.config = self._source.config
        self.topology = self._source.topology
        slots = self.topology.slots
        factors: Dict[str, NDArray[np.float64]] = {}
        # Numbers of rows, and factors of a rotation, are nothing to train or to round.
        constants = {e.ids for e in slots.values() if isinstance(e, RowParts)}
        for slot in ("rope_freqs", "rope_freqs_long"):
            e = slots.get(slot)
            if isinstance(e, Dense):
                constants.add(e.tensor)
                factors[slot] = source.tensors[e.tensor].float32().reshape(-1).astype(np.float64)
        self.stored = StoredTensors()
        for name in self.topology.tensors():
            values = torch.from_numpy(source.tensors[name].float32())
            trainable = name not in constants
            self.stored.add(name, values.to(dtype) if trainable else values, trainable)
        shared = Shared(self.config, self.topology, self.stored, Rope(self.config["rope"], factors))
        self.layers = nn.ModuleList(
            DecoderLayer(shared, number, layer) for number, layer in enumerate(self.topology.layers)
        )
        self.tables = nn.ModuleDict(
            {slot: self._table(slot, TABLES[slot]) for slot in TABLES if slot in slots}
        )
        for slot in ("head.dense", "output"):
            if slot in slots:
                self.add_module(slot.replace(".", "_"), self._linear(slot))
        of_norms = [slot for slot in slots if slot.removesuffix(".bias") in MODEL_VECTORS]
        self.norm = Norm(self.config, {slot: self._weight(slot) for slot in of_norms})

    def _weight(self, slot: str) -> Weight:
        return Weight(self.stored, slot, self.topology.slots[slot], self.config["head_dim"])

    def _table(self, slot: str, size: str) -> Table:
        e, rows = self.topology.slots[slot], self.config[size]
        places = None
        if isinstance(e, RowParts):
            listed = self._source.tensors[e.ids].float32().reshape(-1).astype(np.int64)
            rest = np.setdiff1d(np.arange(rows), listed)
            places = torch.from_numpy(np.argsort(np.concatenate([listed, rest])))
        return Table(self._weight(slot), rows, self.config["n_embd"], places)

    def _linear(self, slot: str) -> SlotLinear:
        inner, outer = LINEAR[slot]
        bias = self._weight(slot + ".bias") if slot + ".bias" in self.topology.slots else None
        if isinstance(self.topology.slots[slot], RowParts):
            return TableLinear(self._table(slot, outer), bias)
        return SlotLinear(self._weight(slot), bias, self.config[inner], self.config[outer])

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
        step = Step(tokens, attention_mask, cache)
        x = self.tables["token_embd"](tokens) * self.config["embedding_scale"]
        if "token_types" in self.tables:
            x = x + self.tables["token_types"](torch.zeros_like(tokens))
        if "position_embd" in self.tables:
            x = x + self.tables["position_embd"](step.positions)
        x = self.norm("embd_norm", x)
        for layer in self.layers:
            x = layer(x, step)
        return self.norm("output_norm", x)

    def logits(self, x: Tensor) -> Tensor:
        """[..., V] of hidden states [..., C]."""
        if "head.dense" in self.topology.slots:
            x = self.norm("head.norm", ACTIVATIONS[self.config["activation"]](self.head_dense(x)))
        y: Tensor = self.output(x)
        if self.config["norm_head"]:
            y = y / self.output.weight.norm(dim=1)
        return softcap(y * self.config["logit_scale"], self.config["logit_softcap"])

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


def load(name_or_path: PathLike, *, dtype: torch.dtype = torch.float32) -> Model:
    """A model file as a module: Model(refold.open(name_or_path), dtype)."""
    return Model(open_model(os.fspath(name_or_path)), dtype)
