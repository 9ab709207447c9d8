"""Weights made of stored tensors, which are the only Parameters."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from .._errors import UnsupportedError
from .._topology import Dense, Expression, Heads, LowRank, Plus, RowParts, tensors_of


class StoredTensors(nn.Module):
    """The stored tensors as Parameters, under their names."""

    def add(self, name: str, values: Tensor, trainable: bool) -> None:
        *path, last = name.split(".")
        branch: nn.Module = self
        try:
            for part in path:
                if part not in branch._modules:
                    branch.add_module(part, nn.Module())
                branch = branch.get_submodule(part)
            branch.register_parameter(last, nn.Parameter(values, requires_grad=trainable))
        except KeyError:
            raise UnsupportedError(f"[torch] a Parameter cannot be called '{name}'") from None

    def __getitem__(self, name: str) -> Tensor:
        return self.get_parameter(name)


class Weight:
    """A weight expression over stored tensors. Not a module: the Parameters are those of `stored` alone."""

    def __init__(
        self,
        stored: StoredTensors,
        slot: str,
        expression: Expression,
        block: int,
        heads: Optional[int] = None,
    ) -> None:
        """
        Args:
            block: rows or columns of a head, rows of an expert.
            heads: of the slot, where it consists of heads.
        """
        self.stored = stored
        self.expression = expression
        self._block, self._heads = block, heads
        self._dimension = 1 if slot == "attn.o" else 0

    def matrix(self) -> Tensor:
        """[out, in]; of vectors [length]."""
        return self._matrix(self.expression)

    def _matrix(self, e: Expression) -> Tensor:
        if isinstance(e, Dense):
            return self._rows(e.tensor)
        if isinstance(e, Heads):
            parts = self._runs(e)
            return parts[0] if len(parts) == 1 else torch.cat(parts, self._dimension)
        if isinstance(e, LowRank):
            u, v, scale = self._factors(e)
            product = (u if scale is None else u * scale) @ v
            return product.T if e.transposed else product
        if isinstance(e, Plus):
            return self._matrix(e.base) + self._matrix(e.term)
        if isinstance(e, RowParts):
            raise AssertionError("rows in parts belong to Table")
        core, roles, head = self.stored[e.core], self.stored[e.roles], self.stored[e.head]
        model = self.stored[e.model]
        width = head.shape[1]
        if e.halves:
            rows = torch.arange(width, device=head.device)
            head = head[:, rows % 2 * (width // 2) + rows // 2]
        core = core.reshape(-1, *core.shape[-3:])  # [heads, R3, R2, R1]
        slices = torch.einsum("hcba,c->hba", core, roles[:, e.role])
        if self._heads is not None and len(slices) != self._heads:
            slices = slices.reshape(self._heads, -1, *slices.shape[1:]).mean(1)
        stacked = torch.einsum("bi,hba,aj->hij", head, slices, model).flatten(0, 1)
        return stacked.T if e.transposed else stacked

    def _runs(self, e: Heads) -> List[Tensor]:
        size = self._block
        return [
            self._rows(run.tensor).narrow(self._dimension, run.first * size, run.count * size)
            for run in e.runs
        ]

    def _rows(self, name: str) -> Tensor:
        """A stored tensor, whose experts may be a third dimension: [rows, in]."""
        tensor = self.stored[name]
        return tensor.flatten(0, 1) if tensor.dim() > 2 else tensor

    def _factors(self, e: LowRank) -> Tuple[Tensor, Tensor, Optional[Tensor]]:
        scale = (
            None if e.scale is None else self.stored[e.scale].reshape(-1, self.stored[e.u].shape[1])[e.row]
        )
        return self.stored[e.u], self.stored[e.v], scale

    def product(self, x: Tensor) -> Tensor:
        """W x for x [..., in]: [..., out]."""
        return self._product(self.expression, x)

    def _product(self, e: Expression, x: Tensor) -> Tensor:
        if isinstance(e, Plus):
            return self._product(e.base, x) + self._product(e.term, x)
        if isinstance(e, LowRank):
            u, v, scale = self._factors(e)
            inner = x @ (u if e.transposed else v.T)
            if scale is not None:
                inner = inner * scale
            return inner @ (v if e.transposed else u.T)
        if isinstance(e, Heads):
            return self._heads_product(e, x)
        return functional.linear(x, self._matrix(e))

    def expert_products(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """Of a slot of experts: x [uses, in] through the expert that each use is of, [uses, rows of an expert].

        Args:
            x: sorted by expert.
            counts: of the uses of each expert.
        """
        return self._expert_products(self.expression, x, counts)

    def _expert_products(self, e: Expression, x: Tensor, counts: Sequence[int]) -> Tensor:
        if isinstance(e, Plus):
            return self._expert_products(e.base, x, counts) + self._expert_products(e.term, x, counts)
        if isinstance(e, LowRank):  # all experts have V in common
            u, v, scale = self._factors(e)
            x = x @ (u if e.transposed else v.T)
            if scale is not None:
                x = x * scale
            matrices = self._split(v.T if e.transposed else u)
        elif isinstance(e, Heads):
            experts = {name: self._split(self.stored[name]) for name in tensors_of(e)}
            matrices = [experts[run.tensor][run.first + i] for run in e.runs for i in range(run.count)]
        else:
            matrices = self._split(self._matrix(e))
        parts = zip(torch.split(x, list(counts)), matrices)
        return torch.cat([functional.linear(part, matrix) for part, matrix in parts if len(part)])

    def _split(self, experts: Tensor) -> Sequence[Tensor]:
        """The matrix of each expert. All at once, so that their gradients become one only once."""
        return experts.reshape(-1, self._block, experts.shape[-1]).unbind()

    def _heads_product(self, e: Heads, x: Tensor) -> Tensor:
        """Run by run, where the heads lie."""
        weights = self._runs(e)
        if self._dimension == 0:
            return torch.cat([functional.linear(x, weight) for weight in weights], -1)
        parts = torch.split(x, [weight.shape[1] for weight in weights], -1)
        total = functional.linear(parts[0], weights[0])
        for part, weight in zip(parts[1:], weights[1:]):
            total = total + functional.linear(part, weight)
        return total


class SlotLinear(nn.Linear):
    """The linear map of a slot, x [..., in] -> [..., out]. It has no Parameters of its own.

    It is an nn.Linear to those that look for such (PEFT); `weight` is the matrix, written out.
    """

    def __init__(self, weight: Weight, bias: Optional[Weight], in_features: int, out_features: int) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = in_features, out_features
        self._weight, self._bias = weight, bias

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """[out, in]"""
        return self._weight.matrix()

    @property
    def bias(self) -> Optional[Tensor]:  # type: ignore[override]
        """[out]"""
        return None if self._bias is None else self._bias.matrix().reshape(-1)

    def forward(self, x: Tensor) -> Tensor:
        y = self._weight.product(x)
        bias = self.bias
        return y if bias is None else y + bias

    def reset_parameters(self) -> None:
        """There are none."""


class Table(nn.Embedding):
    """The rows of a table by their ids, [...] -> [..., C]. It has no Parameters of its own."""

    def __init__(self, weight: Weight, rows: int, width: int, places: Optional[Tensor]) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = rows, width
        self.padding_idx = self.max_norm = None
        self.norm_type, self.scale_grad_by_freq, self.sparse = 2.0, False, False
        self._weight = weight
        # Where each row is in the parts, one after the other.
        self.register_buffer("places", places, persistent=False)

    places: Optional[Tensor]

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """[rows, C]"""
        e = self._weight.expression
        if not isinstance(e, RowParts):
            return self._weight.matrix()
        return torch.cat([self._weight.stored[part] for part in e.parts])[self.places]

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)

    def reset_parameters(self) -> None:
        """There are none."""


class TableLinear(SlotLinear):
    """The output layer of a table whose rows lie in parts."""

    def __init__(self, table: Table, bias: Optional[Weight]) -> None:
        super().__init__(table._weight, bias, table.embedding_dim, table.num_embeddings)
        self.table = table

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)
