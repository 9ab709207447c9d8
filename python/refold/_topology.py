"""Sharing as data: weight expressions, the slots of layers, the topology. docs/format.md describes them.

Shapes are rows first, as numpy's: a slot's matrix is [out, in], `out` rows of `in` numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import (
    Any,
    Dict,
    Iterator,
    List,
    Mapping,
    MutableMapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from ._errors import InputError


@dataclass(frozen=True)
class Dense:
    """The tensor itself, [out, in]; of a norm or bias [length]."""

    tensor: str


@dataclass(frozen=True)
class HeadRun:
    """`count` heads of a tensor from head `first`: head_dim rows each, in attn.o head_dim columns."""

    tensor: str
    first: int
    count: int


@dataclass(frozen=True)
class Heads:
    """The heads of a layer, in their order, each a part of some tensor."""

    runs: Tuple[HeadRun, ...]

    def __init__(self, runs: Sequence[Union[HeadRun, Sequence[Any]]]) -> None:
        object.__setattr__(
            self, "runs", tuple(run if isinstance(run, HeadRun) else HeadRun(*run) for run in runs)
        )


@dataclass(frozen=True)
class LowRank:
    """W = U diag(s) V, U [out, rank], V [rank, in]; transposed: W = (U diag(s) V)^T.

    s is row `row` of the tensor `scale` [n, rank]; without it, all ones.
    """

    u: str
    v: str
    scale: Optional[str] = None
    row: int = 0
    transposed: bool = False


@dataclass(frozen=True)
class Tucker:
    """One of the matrices of a Tucker decomposition: core [heads, R3, R2, R1], model U1 [R1, features],
    head U2 [R2, width], roles U3 [R3, n], of which `role` is this one's column."""

    core: str
    model: str
    head: str
    roles: str
    role: int
    transposed: bool = False
    halves: bool = False


@dataclass(frozen=True)
class Plus:
    """The sum of an expression and a low-rank term: LoRA of one layer on a weight that may be shared."""

    base: Base
    term: LowRank


@dataclass(frozen=True)
class RowParts:
    """The rows of a table in several tensors: `ids` lists those of all parts but the last one."""

    parts: Tuple[str, ...]
    ids: str

    def __init__(self, parts: Sequence[str], ids: str) -> None:
        object.__setattr__(self, "parts", tuple(parts))
        object.__setattr__(self, "ids", ids)


Base = Union[Dense, Heads, LowRank, Tucker]
Expression = Union[Dense, Heads, LowRank, Tucker, Plus, RowParts]


class AttentionSource(NamedTuple):
    """The earlier layer whose attention a layer uses in place of its own."""

    kind: str
    """"probabilities" (softmax sharing) or "kv" (cross-layer attention)."""
    layer: int


def tensors_of(expression: Expression) -> List[str]:
    """The names of the stored tensors that an expression reads, in order, each once."""
    if isinstance(expression, Dense):
        names = [expression.tensor]
    elif isinstance(expression, Heads):
        names = [run.tensor for run in expression.runs]
    elif isinstance(expression, LowRank):
        names = [expression.u, expression.v, *([expression.scale] if expression.scale else [])]
    elif isinstance(expression, Tucker):
        names = [expression.core, expression.model, expression.head, expression.roles]
    elif isinstance(expression, Plus):
        names = [*tensors_of(expression.base), *tensors_of(expression.term)]
    else:
        names = [*expression.parts, expression.ids]
    return list(dict.fromkeys(names))


class Slots(MutableMapping[str, Expression]):
    """Slots by their names ("attn.q") with the expressions that fill them; those that are not there are empty.

    A tensor's name may be given in place of Dense(name).
    """

    def __init__(self, slots: Mapping[str, Union[str, Expression]] = {}) -> None:
        self._slots: Dict[str, Expression] = {}
        for slot, expression in slots.items():
            self[slot] = expression

    def __getitem__(self, slot: str) -> Expression:
        return self._slots[slot]

    def __setitem__(self, slot: str, expression: Union[str, Expression]) -> None:
        if isinstance(expression, str):
            expression = Dense(expression)
        if not isinstance(expression, (Dense, Heads, LowRank, Tucker, Plus, RowParts)):
            raise TypeError(f"{slot}: got {expression!r}, expected an expression or a tensor's name")
        self._slots[slot] = expression

    def __delitem__(self, slot: str) -> None:
        del self._slots[slot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._slots!r})"


class Layer(Slots):
    """The slots of one layer of the forward pass."""

    attention: Optional[AttentionSource] = None
    """None: the layer's attention is all its own."""


class Topology:
    """Which stored tensors every weight comes from."""

    def __init__(self, layers: Sequence[Layer], slots: Slots, loops: int = 1) -> None:
        self.layers: List[Layer] = list(layers)
        """Of the forward pass, in order; a looped model has each of its layers once per loop."""
        self.slots = slots
        """Those of the whole model: token_embd, output_norm, output, ..."""
        self.loops = loops
        """How many times the layers go through one block; 1: no loop."""

    def users(self, tensor: str) -> List[Tuple[Optional[int], str]]:
        """The slots that read a stored tensor: (layer, slot) in order; the layer is None of the whole model."""
        places: List[Tuple[Optional[int], Slots]] = [*enumerate(self.layers), (None, self.slots)]
        return [
            (layer, slot)
            for layer, slots in places
            for slot, expression in slots.items()
            if tensor in tensors_of(expression)
        ]

    def tensors(self) -> List[str]:
        """The names of all stored tensors that slots read, each once."""
        names = [
            name
            for slots in [*self.layers, self.slots]
            for expression in slots.values()
            for name in tensors_of(expression)
        ]
        return list(dict.fromkeys(names))

    @classmethod
    def from_json(cls, text: str) -> Topology:
        """Reads JSON of docs/format.md in which the names of tensors imply nothing."""
        root = json.loads(text)
        layers: List[Layer] = []
        for entry in root["layers"]:
            source = entry.pop("attention", None)
            if "like" in entry:  # always an earlier one, and nothing else differs
                layer = Layer(layers[entry["like"]])
            else:
                layer = Layer({slot: _expression(value) for slot, value in entry.items()})
            if source is not None:
                layer.attention = AttentionSource(*next(iter(source.items())))
            layers.append(layer)
        slots = Slots({slot: _expression(value) for slot, value in root.get("model", {}).items()})
        return cls(layers, slots, root.get("loops", 1))

    def to_json(self) -> str:
        layers = []
        for layer in self.layers:
            entry: Dict[str, Any] = {slot: _to_json(expression) for slot, expression in layer.items()}
            if layer.attention is not None:
                entry["attention"] = {layer.attention.kind: layer.attention.layer}
            layers.append(entry)
        slots = {slot: _to_json(expression) for slot, expression in self.slots.items()}
        root: Dict[str, Any] = {"version": 2, "layers": layers, "model": slots}
        if self.loops != 1:
            root["loops"] = self.loops
        return json.dumps(root)


def _expression(value: Any) -> Expression:
    if isinstance(value, str):
        return Dense(value)
    ((kind, content),) = value.items()
    if kind == "heads":
        return Heads(content)
    if kind == "low_rank":
        return LowRank(**content)
    if kind == "tucker":
        return Tucker(**content)
    if kind == "rows":
        return RowParts(**content)
    if kind == "plus":
        base, term = (_expression(part) for part in content)
        return Plus(base, term)  # type: ignore[arg-type]  # the reader has checked the kinds
    raise InputError(f"[topology] unknown kind of weight expression: {kind}")


def _to_json(expression: Expression) -> Any:
    if isinstance(expression, Dense):
        return expression.tensor
    if isinstance(expression, Heads):
        return {"heads": [[run.tensor, run.first, run.count] for run in expression.runs]}
    if isinstance(expression, LowRank):
        scaled = {"scale": expression.scale, "row": expression.row} if expression.scale else {}
        flags = {"transposed": True} if expression.transposed else {}
        return {"low_rank": {"u": expression.u, "v": expression.v, **scaled, **flags}}
    if isinstance(expression, Plus):
        return {"plus": [_to_json(expression.base), _to_json(expression.term)]}
    if isinstance(expression, RowParts):
        return {"rows": {"parts": list(expression.parts), "ids": expression.ids}}
    return {"tucker": {name: value for name, value in vars(expression).items() if value is not False}}
