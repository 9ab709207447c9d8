"""Models as data: configuration, topology, stored tensors, and edits of them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np

from . import _native
from ._errors import InputError
from ._progress import ProgressOption, reporting
from ._topology import Layer, Slots, Topology

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ._model import PathLike

# Types that numpy has.
_NUMPY: Dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


class StoredTensor:
    """A stored tensor. Shapes are rows first: [out, in] of a matrix."""

    def __init__(self, native: _native.StoredModel, name: str) -> None:
        self._native = native
        self.name = name
        self.type: str
        """"F32", "BF16", "Q4_K", ..."""
        self.type, shape, self.nbytes = native.tensor(name)
        self.shape: Tuple[int, ...] = tuple(shape)

    def __repr__(self) -> str:
        return f"StoredTensor({self.name!r}, {self.type}, {list(self.shape)})"

    def bytes(self) -> NDArray[np.uint8]:
        """The bytes in the file's own type, uint8 [nbytes], read-only. A view of the mapped file, no copy."""
        return self._native.view(self.name)

    def numpy(self) -> NDArray[Any]:
        """The numbers, read-only where that saves a copy.

        F32 and F16 are views of the mapped file in their own type; all others become float32.
        """
        if self.type in _NUMPY:
            return self.bytes().view(_NUMPY[self.type]).reshape(self.shape)
        return self.float32()

    def float32(self) -> NDArray[np.float32]:
        """A copy of the numbers as float32, dequantized."""
        return self._native.values(self.name).reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> NDArray[Any]:
        array = self.numpy()
        if copy or (dtype is not None and array.dtype != dtype):
            return array.astype(dtype or array.dtype)
        return array


class StoredTensors(Mapping[str, StoredTensor]):
    """The stored tensors of a model by name. Assigning an array adds or replaces one: see set_tensor()."""

    def __init__(self, native: _native.StoredModel) -> None:
        self._native = native
        self._names: Dict[str, None] = dict.fromkeys(native.tensor_names())

    def __getitem__(self, name: str) -> StoredTensor:
        if name not in self._names:
            raise KeyError(name)
        return StoredTensor(self._native, name)

    def __setitem__(self, name: str, values: ArrayLike) -> None:
        self.set(name, values)

    def set(self, name: str, values: ArrayLike, type: Optional[str] = None) -> None:
        array = np.asarray(values)
        if array.ndim == 0 or array.dtype.kind not in "fiub":
            raise InputError(
                f"[model] tensor '{name}': got {array.dtype} of {array.ndim} dimensions, expected numbers"
            )
        if type is None:
            type = "F16" if array.dtype == np.float16 else "F32"
        if type.upper() in _NUMPY:
            data = array.astype(_NUMPY[type.upper()], copy=False).tobytes()  # in the order of rows
            self._native.set_tensor(name, type, list(array.shape), data)
        else:
            numbers = np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
            self._native.set_values(name, type, list(array.shape), numbers)
        self._names[name] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class StoredModel:
    """A model as it is stored: nothing is computed, tensors are mapped, and everything can be changed.

    >>> model = refold.open("small.gguf")
    >>> model.layers[3]["attn.q"]
    Dense(tensor='blk.3.attn_q.weight')
    >>> model.layers[3]["attn.q"] = model.layers[2]["attn.q"]     # layer 3 shares layer 2's queries
    >>> model.tensors["blk.0.ffn_norm.weight"] = numpy.ones(576)
    >>> model.save("edited.gguf")
    """

    def __init__(self, name_or_path: PathLike) -> None:
        """
        Args:
            name_or_path: a GGUF file, a Hugging Face directory, or a name that `refold pull` has fetched.
        """
        self._take(_native.StoredModel(os.fspath(name_or_path)))

    def _take(self, native: _native.StoredModel) -> None:
        self._native = native
        self.config: Dict[str, Any] = json.loads(self._native.config())
        """The hyper-parameters (src/model/config.h): family, n_embd, n_head, rope, ... To look at: what
        tensors and topology decide cannot be changed here."""
        self.topology = Topology.from_json(self._native.topology())
        self.tensors = StoredTensors(self._native)

    def __repr__(self) -> str:
        return f"refold.StoredModel({self.path!r})"

    def copy(self) -> StoredModel:
        """The same with all edits so far, for further ones. Tensors are shared, not copied."""
        self._native.set_topology(self.topology.to_json())
        out = StoredModel.__new__(StoredModel)
        out._take(self._native.copy())
        return out

    def __deepcopy__(self, _: Any) -> StoredModel:
        return self.copy()

    @property
    def path(self) -> str:
        """The file or directory that was opened."""
        return self._native.path

    @property
    def layers(self) -> List[Layer]:
        """The layers of the forward pass with their slots: topology.layers."""
        return self.topology.layers

    @property
    def slots(self) -> Slots:
        """The slots of the whole model: topology.slots."""
        return self.topology.slots

    @property
    def provenance(self) -> Optional[Dict[str, Any]]:
        """What made the file: version, source, recipe. None where nothing is recorded."""
        text = self._native.provenance()
        return json.loads(text) if text else None

    def inspect(self) -> Dict[str, Any]:
        """Architecture and costs, with all edits, as refold.inspect()."""
        self.check()
        return self._native.info()

    def matrix(self, layer: Optional[int], slot: str) -> NDArray[np.float32]:
        """The weight of a slot written out, whatever its expression: [out, in] (of a norm or bias [1, length]).

        Args:
            layer: None for slots of the whole model, such as "output".
        """
        self._native.set_topology(self.topology.to_json())
        return self._native.matrix(layer, slot)

    def set_tensor(self, name: str, values: ArrayLike, type: Optional[str] = None) -> None:
        """Adds or replaces a stored tensor.

        Args:
            values: numbers, rows first: [out, in].
            type: the element type to store, such as "q8_0" or "bf16", to which they are rounded. None: F16
                for float16, else F32.
        """
        self.tensors.set(name, values, type)

    def check(self) -> None:
        """Raises InputError naming layer and slot where topology, tensors and configuration do not fit."""
        self._native.set_topology(self.topology.to_json())
        self._native.check()

    def save(
        self,
        output: PathLike,
        *,
        recipe: str = "edited",
        provenance: Optional[Mapping[str, Any]] = None,
        overwrite: bool = False,
        progress: ProgressOption = None,
    ) -> str:
        """Writes refold's GGUF, checked first; complete or not at all. Tensors that no slot reads are left out.

        Args:
            recipe: what was done, for the file's provenance, which names version, source and recipe.
            provenance: the whole provenance instead.
            overwrite: replaces an existing output.

        Returns:
            The path.
        """
        self._native.set_topology(self.topology.to_json())
        with reporting(progress) as report:
            return self._native.save(
                os.fspath(output),
                recipe=recipe,
                provenance="" if provenance is None else _compact(provenance),
                overwrite=overwrite,
                progress=report,
            )

    def save_tokenizer(self, directory: PathLike) -> None:
        """Writes the tokenizer's files as Hugging Face's libraries read them, into an existing directory."""
        self._native.save_tokenizer(os.fspath(directory))


def _compact(value: Mapping[str, Any]) -> str:
    """As refold itself writes JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def open(name_or_path: PathLike) -> StoredModel:
    """Opens a model as data: StoredModel with the same argument. To run one, see load()."""
    return StoredModel(name_or_path)
