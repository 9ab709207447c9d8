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
from ._model import GenerationOptions, Message, Model, Perplexity, TextStream, load
from ._native import Generation, TokenLogprob, version
from ._progress import Progress

__version__ = version()

__all__ = [
    "CancelledError",
    "Compression",
    "Cost",
    "Encoder",
    "Error",
    "FileError",
    "Generation",
    "GenerationOptions",
    "InputError",
    "InternalError",
    "Message",
    "Model",
    "Perplexity",
    "Progress",
    "Step",
    "TextStream",
    "TokenLogprob",
    "UnsupportedError",
    "UsageError",
    "compress",
    "embed",
    "export",
    "inspect",
    "load",
    "plan",
    "quantize",
    "version",
]
