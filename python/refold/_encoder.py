"""Encoders: embeddings of texts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Union

from . import _native

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ._model import PathLike


class Encoder:
    """An encoder such as BERT that is ready to run. Threads may share it: one at a time computes.

    Shapes: T is a number of tokens, C the width of the model (`n_embd`).
    """

    def __init__(
        self, name_or_path: PathLike, *, context: int = 0, threads: int = 0, f32: bool = False
    ) -> None:
        """
        Args:
            name_or_path: as for refold.Model.
            context: most tokens of a text; 0: the model's own.
            threads: 0: all cores.
            f32: float32 weights and activations.
        """
        self._native = _native.Encoder(os.fspath(name_or_path), context=context, threads=threads, f32=f32)

    def inspect(self) -> Dict[str, Any]:
        """Architecture and costs, as refold.inspect()."""
        return self._native.info()

    def tokenize(self, text: str) -> List[int]:
        """Token ids of a text, the model's special tokens around them."""
        return self._native.tokenize(text)

    def embed(
        self,
        texts: Union[str, Sequence[str]],
        *,
        pooling: Optional[str] = None,
        normalize: Optional[bool] = None,
    ) -> NDArray[np.float32]:
        """One vector for each text: [C] for a text, [texts, C] for a list.

        By default the vectors are as the model's sentence-transformers folder configures them (pooling, dense
        modules, normalization, prompt, longest text); of a model without that configuration they are means of
        length 1.

        Args:
            pooling: "mean" of the last hidden states, "cls" (that of the first token, also "first"), "max" (by
                element), "last" (that of the last token), or "model" (its own pooler).
            normalize: whether vectors have length 1.
        """
        if isinstance(texts, str):
            return self._native.embed([texts], pooling, normalize).reshape(-1)
        return self._native.embed(list(texts), pooling, normalize)

    def hidden_states(self, text: Union[str, Sequence[int]]) -> NDArray[np.float32]:
        """The last hidden states [T, C] of a text, or of token ids, which are taken as they are."""
        return self._native.hidden_states(self.tokenize(text) if isinstance(text, str) else list(text))


def embed(
    name_or_path: PathLike,
    texts: Union[str, Sequence[str]],
    *,
    pooling: Optional[str] = None,
    normalize: Optional[bool] = None,
) -> NDArray[np.float32]:
    """Encoder(name_or_path).embed(texts): for a single use."""
    return Encoder(name_or_path).embed(texts, pooling=pooling, normalize=normalize)
