"""refold: smaller and faster transformers by sharing weights.

Examples:
    >>> import refold
    >>> model = refold.load("smollm2-135m-instruct")
    >>> print(model.generate("The capital of France is", max_tokens=8))

docs/python.md of the repository is the guide. Models are named by the path of a GGUF file or of a Hugging
Face directory, or by what `refold pull` has fetched.
"""

from ._compression import Compression, Cost, Step, compress, export, inspect, plan, quantize
from ._encoder import Encoder, embed
from ._errors import (
    CancelledError,
    Error,
    FileError,
    InputError,
    InternalError,
    UnsupportedError,
    UsageError,
)
from ._method import method
from ._model import GenerationOptions, Message, Model, Perplexity, TextStream, load
from ._native import Generation, TokenLogprob, version
from ._program import compare, evaluate, fit
from ._progress import Progress
from ._stored_model import StoredModel, StoredTensor, StoredTensors, open
from ._topology import (
    AttentionSource,
    Dense,
    Expression,
    HeadRun,
    Heads,
    Layer,
    LowRank,
    Plus,
    RowParts,
    Slots,
    Topology,
    Tucker,
    tensors_of,
)

__version__ = version()

__all__ = [
    "AttentionSource",
    "CancelledError",
    "Compression",
    "Cost",
    "Dense",
    "Encoder",
    "Error",
    "Expression",
    "FileError",
    "Generation",
    "GenerationOptions",
    "HeadRun",
    "Heads",
    "InputError",
    "InternalError",
    "Layer",
    "LowRank",
    "Message",
    "Model",
    "Perplexity",
    "Plus",
    "Progress",
    "RowParts",
    "Slots",
    "Step",
    "StoredModel",
    "StoredTensor",
    "StoredTensors",
    "TextStream",
    "TokenLogprob",
    "Topology",
    "Tucker",
    "UnsupportedError",
    "UsageError",
    "compare",
    "compress",
    "embed",
    "evaluate",
    "export",
    "fit",
    "inspect",
    "load",
    "method",
    "open",
    "plan",
    "quantize",
    "tensors_of",
    "version",
]
