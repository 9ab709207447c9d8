"""Decoders: generating, scoring, writing."""

from __future__ import annotations

import json
import os
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypedDict,
    Union,
    overload,
)

from . import _native
from ._native import Generation, TokenLogprob
from ._progress import ProgressOption, reporting

if TYPE_CHECKING:
    from typing import Literal

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

PathLike = Union[str, "os.PathLike[str]"]
Message = Union[Mapping[str, str], Tuple[str, str]]
"""{"role": "user", "content": "Hello"}, or ("user", "Hello")."""
Tokens = Union[Sequence[int], "NDArray[np.integer[Any]]"]
Prompt = Union[str, Tokens]


class GenerationOptions(TypedDict, total=False):
    """The options of generate() and chat(). `refold run --help` has the same ones."""

    max_tokens: int
    """Most tokens to generate [128]."""
    stop: List[str]
    """Texts that end the generation and are left out of it."""
    stop_tokens: List[int]
    """Tokens that do so, beside the model's own."""
    ignore_eos: bool
    """Goes on after the model's end-of-generation tokens [False]."""
    logprobs: int
    """Log probabilities of the tokens, each with so many likeliest ones [-1: none]."""
    temperature: float
    """0, the default, is greedy."""
    top_k: int
    """[40]; 0 keeps all."""
    top_p: float
    """[0.95]"""
    min_p: float
    """[0]"""
    typical_p: float
    """Locally typical sampling [1]; 1 keeps all."""
    mirostat: int
    """[0: off]; version 1 or 2, in place of top_k, top_p, min_p and typical_p."""
    mirostat_tau: float
    """Bits that a chosen token should carry on average [5]."""
    mirostat_eta: float
    """How fast Mirostat gets there [0.1]."""
    penalty_last_n: int
    """Tokens that the penalties look at [64]; -1: all."""
    repetition_penalty: float
    """[1: off]"""
    presence_penalty: float
    """[0: off]"""
    frequency_penalty: float
    """[0: off]"""
    logit_bias: Dict[int, float]
    """Added to the logits of tokens; -inf bans one."""
    seed: int
    """Equal prompts, options and seeds give equal text [0]."""
    json_schema: Union[str, Dict[str, Any]]
    """The text is a JSON document that follows this schema, whose properties it has in this order."""
    grammar: str
    """The text follows this grammar (GBNF; its first rule is root)."""
    regex: str
    """The whole text matches this regular expression."""
    choices: List[str]
    """The text is one of these."""


class Perplexity(NamedTuple):
    """Perplexity of a text; float() of it is the number."""

    perplexity: float
    standard_error: float
    mean_nll: float
    """Nats per token."""
    tokens: int
    windows: int

    def __float__(self) -> float:
        return self.perplexity


def _ids(tokens: Tokens) -> List[int]:
    return tokens.tolist() if hasattr(tokens, "tolist") else list(tokens)


def _is_one(prompt: Any) -> bool:
    """A text or token ids, not a list of them."""
    if isinstance(prompt, str):
        return True
    if hasattr(prompt, "ndim"):
        return bool(prompt.ndim == 1)
    return len(prompt) > 0 and not isinstance(prompt[0], str) and not hasattr(prompt[0], "__len__")


class TextStream(Iterator[str]):
    """The continuation of a prompt while it grows: iterating gives text that is final.

    It is whole characters, and nothing that may still become a stop text. The model runs ahead of the reader.
    close(), or the end of a `with` block, cancels what is left.
    """

    def __init__(self, stream: _native.TextStream) -> None:
        self._stream = stream

    def __next__(self) -> str:
        return self._stream.next()[1]

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def result(self) -> Generation:
        """The whole continuation, once the stream has ended."""
        return self._stream.results[0]


class Model:
    """A decoder that is ready to run. Threads may share it: one at a time computes.

    Shapes: T is a number of tokens, V the size of the vocabulary. Token ids may be lists or numpy arrays.
    """

    def __init__(
        self,
        name_or_path: PathLike,
        *,
        context: int = 0,
        threads: int = 0,
        sequences: int = 1,
        f32: bool = False,
        draft_model: Optional[PathLike] = None,
        draft_tokens: int = 8,
    ) -> None:
        """
        Args:
            name_or_path: a GGUF file, a Hugging Face directory, or a name that `refold pull` has fetched.
            context: most tokens of one sequence; 0: the model's own, at most 4096.
            threads: 0: all cores.
            sequences: prompts of a list that run at a time; each takes a context of KV cache.
            f32: float32 weights, activations and KV cache.
            draft_model: a smaller model with the same vocabulary, whose drafts generate() verifies: faster, and
                the same text up to rounding.
            draft_tokens: most tokens that it drafts at a time; fewer, or none, where that is faster.
        """
        self._native = _native.Model(
            os.fspath(name_or_path),
            context=context,
            threads=threads,
            sequences=sequences,
            f32=f32,
            draft_model="" if draft_model is None else os.fspath(draft_model),
            draft_tokens=draft_tokens,
        )

    def __repr__(self) -> str:
        return f"refold.Model({self.path!r})"

    @property
    def path(self) -> str:
        """The file or directory."""
        return self._native.path

    @property
    def context(self) -> int:
        """Most tokens of one sequence."""
        return self._native.context

    @property
    def n_vocab(self) -> int:
        """V, the number of logits."""
        return self._native.n_vocab

    @property
    def bos(self) -> Optional[int]:
        """The token that begins sequences."""
        return self._native.bos

    @property
    def eos(self) -> Optional[int]:
        """The token that ends sequences."""
        return self._native.eos

    def inspect(self) -> Dict[str, Any]:
        """Architecture and costs, as refold.inspect()."""
        return self._native.info()

    # ---- text and tokens ----

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> List[int]:
        """Token ids of a text.

        Args:
            add_special: adds BOS and EOS where the model asks for them.
            parse_special: special tokens written in the text become their ids.
        """
        return self._native.encode(text, add_special, parse_special)

    def detokenize(self, tokens: Tokens, *, special: bool = False) -> str:
        """The text of token ids.

        Special tokens become text with `special`, else they are left out. Bytes that are no UTF-8
        become U+FFFD.
        """
        return self._native.decode(_ids(tokens), special).decode("utf-8", errors="replace")

    def apply_chat_template(self, messages: Iterable[Message]) -> str:
        """The prompt that the model's chat template makes of messages, up to the assistant's turn."""
        return self._native.apply_chat_template([_message(message) for message in messages])

    # ---- generating ----

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts, too
        self, prompt: Prompt, *, stream: Literal[False] = False, **options: Unpack[GenerationOptions]
    ) -> Generation: ...
    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerationOptions],
    ) -> List[Generation]: ...
    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[GenerationOptions]
    ) -> TextStream: ...
    def generate(self, prompt: Any, *, stream: bool = False, **options: Any) -> Any:
        """Continues one prompt or many.

        A prompt is a text - BOS is added where the model asks for it, special tokens written in it become
        their ids - or token ids, which are taken as they are. Of a list, as many run at a time as the model
        was loaded for (`sequences`), and what prompts begin with in common is computed once.

        Args:
            prompt: one prompt, or a list.
            stream: gives an iterator of text in place of a Generation; for one prompt.
            options: see GenerationOptions.

        Returns:
            A Generation, a list of them in the order of the prompts, or a TextStream.
        """
        one = _is_one(prompt)
        prompts = [prompt] if one else list(prompt)
        if stream and not one:
            raise TypeError("stream=True is for one prompt")
        tokens = [self.tokenize(p) if isinstance(p, str) else _ids(p) for p in prompts]
        if isinstance(options.get("json_schema"), dict):
            options["json_schema"] = json.dumps(options["json_schema"])
        native = self._native.generate(tokens, options)
        if stream:
            return TextStream(native)
        results = native.wait()
        return results[0] if one else results

    @overload
    def chat(
        self,
        messages: Iterable[Message],
        *,
        stream: Literal[False] = False,
        **options: Unpack[GenerationOptions],
    ) -> Generation: ...
    @overload
    def chat(
        self, messages: Iterable[Message], *, stream: Literal[True], **options: Unpack[GenerationOptions]
    ) -> TextStream: ...
    def chat(self, messages: Iterable[Message], *, stream: bool = False, **options: Any) -> Any:
        """The assistant's answer to messages, by the model's chat template. As generate()."""
        return self.generate(self.apply_chat_template(messages), stream=stream, **options)  # type: ignore

    # ---- scoring ----

    def logits(self, tokens: Tokens, *, last: bool = False) -> NDArray[np.float32]:
        """Logits [T, V] after every token; with `last` only those after the last one, [V]."""
        return self._native.logits(_ids(tokens), not last)

    def logprobs(self, tokens: Union[str, Tokens], *, top: int = 0) -> List[TokenLogprob]:
        """Log probabilities of the second token on, each given all tokens before it: T - 1 of them.

        Args:
            tokens: token ids, or a text, to which BOS is added where the model asks for it.
            top: each with so many likeliest tokens.
        """
        return self._native.logprobs(self.tokenize(tokens) if isinstance(tokens, str) else _ids(tokens), top)

    def score(self, context: str, continuation: str) -> float:
        """Log probability (natural logarithm) of a continuation after a context, summed over its tokens."""
        return self._native.score(context, continuation)

    def perplexity(
        self,
        text: str,
        *,
        context: int = 0,
        stride: int = 0,
        max_windows: int = 0,
        progress: ProgressOption = None,
    ) -> Perplexity:
        """Perplexity of a text, cut into windows that each start from an empty context.

        Args:
            context: tokens per window; 0: 1024, or the model's context where that is smaller.
            stride: tokens between the beginnings of windows; 0: no overlap.
            max_windows: 0: the whole text.
            progress: a function of a refold.Progress, or True for tqdm.
        """
        with reporting(progress) as report:
            found = self._native.perplexity(
                text,
                context=context or min(1024, self.context),
                stride=stride,
                max_windows=max_windows,
                progress=report,
            )
        return Perplexity(**found)

    # ---- writing ----

    def save(self, output: PathLike, *, overwrite: bool = False, progress: ProgressOption = None) -> str:
        """Writes the model as refold's GGUF: every stored tensor once, sharing as data. Returns the path."""
        return self.export(output, format="native", overwrite=overwrite, progress=progress)

    def export(
        self, output: PathLike, *, format: str, overwrite: bool = False, progress: ProgressOption = None
    ) -> str:
        """Writes the stored model for other programs, as refold.export()."""
        from ._compression import export

        return export(self.path, output, format=format, overwrite=overwrite, progress=progress)


def _message(message: Message) -> Tuple[str, str]:
    if isinstance(message, Mapping):
        return message["role"], message["content"]
    role, content = message
    return role, content


def load(
    name_or_path: PathLike,
    *,
    context: int = 0,
    threads: int = 0,
    sequences: int = 1,
    f32: bool = False,
    draft_model: Optional[PathLike] = None,
    draft_tokens: int = 8,
) -> Model:
    """Loads a decoder: Model with the same arguments."""
    return Model(
        name_or_path,
        context=context,
        threads=threads,
        sequences=sequences,
        f32=f32,
        draft_model=draft_model,
        draft_tokens=draft_tokens,
    )
