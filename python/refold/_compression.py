"""Models as files: inspecting, compressing, exporting."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import _native
from ._errors import UsageError
from ._method import compress_in_parts, is_python_step
from ._progress import ProgressOption, reporting

if TYPE_CHECKING:
    from ._model import PathLike

Recipe = Union[str, "os.PathLike[str]", Mapping[str, Any], Sequence[Mapping[str, Any]]]


class Cost(NamedTuple):
    """What a model costs."""

    parameters: int
    """Numbers stored."""
    bytes: int
    """Of the tensors, each stored tensor once."""
    kv_bytes_per_token: int
    """Of a float16 KV cache, all layers together."""
    flops_per_token: int
    """2 per multiply-add of all linear maps."""


class Step(NamedTuple):
    """A step of a recipe that was carried out."""

    method: str
    cost: Cost
    """Of the model after it."""
    seconds: float


class Compression(NamedTuple):
    """What compress() did, or plan() expects."""

    before: Cost
    after: Cost
    steps: List[Step]
    recipe: str
    """YAML with every option written out."""


def _recipe_text(recipe: Recipe) -> str:
    """YAML; JSON is a part of it."""
    if isinstance(recipe, Mapping):
        return json.dumps(recipe)
    if isinstance(recipe, str):
        if "\n" in recipe or ":" in recipe:
            return recipe
    elif not isinstance(recipe, os.PathLike):
        return json.dumps({"steps": list(recipe)})
    installed = os.path.join(os.path.dirname(__file__), "share", "refold", recipe)
    if not os.path.exists(recipe) and os.path.exists(installed):
        recipe = installed
    with open(recipe, encoding="utf-8") as file:
        return file.read()


def _python_steps(recipe: Recipe) -> Optional[List[Mapping[str, Any]]]:
    """The steps of a recipe of which some are methods written in Python, else None."""
    if isinstance(recipe, (str, os.PathLike)):
        return None
    steps = list(recipe.get("steps", [])) if isinstance(recipe, Mapping) else list(recipe)
    return steps if any(is_python_step(step) for step in steps) else None


def _paths(paths: Union[None, PathLike, Sequence[PathLike]]) -> List[str]:
    if paths is None:
        return []
    if isinstance(paths, (str, os.PathLike)):
        return [os.fspath(paths)]
    return [os.fspath(path) for path in paths]


def _compression(found: Dict[str, Any]) -> Compression:
    steps = [Step(step["method"], Cost(**step["cost"]), step["seconds"]) for step in found["steps"]]
    return Compression(Cost(**found["before"]), Cost(**found["after"]), steps, found["recipe"])


def compress(
    source: PathLike,
    recipe: Recipe,
    output: PathLike,
    *,
    calibration: Union[None, PathLike, Sequence[PathLike]] = None,
    calibration_tokens: int = 0,
    original: Union[None, PathLike] = None,
    overwrite: bool = False,
    threads: int = 0,
    progress: ProgressOption = None,
) -> Compression:
    """Applies a recipe to a model and writes the result, a GGUF file.

    The output is complete or absent. What long steps have finished is found again when the call is repeated.

    Args:
        source: a model, as for refold.Model.
        recipe: the path of a YAML file, YAML text, a dict of the same form ({"steps": [...]}), or the list of
            its steps: [{"method": "direct_share", "ratio": 0.3}]. `refold methods` documents the methods. Dicts
            and lists may name those of refold.method(); then a repeated call begins with the first step.
        output: the file to write.
        calibration: files of UTF-8 text, for steps that look at activations or train on them; by default
            those that the recipe names.
        calibration_tokens: of all texts together; 0: as the recipe says, by default 32768.
        original: the model that `source` was made of earlier, which calibrated steps compare with.
        overwrite: replaces an existing output.
        threads: 0: all cores.
        progress: a function of a refold.Progress, or True for bars of tqdm. What it raises cancels.
    """
    with reporting(progress) as report:

        def run(path: str, part: Recipe, made: str, compared: str, replace: bool = False) -> Dict[str, Any]:
            return _native.compress(
                path,
                _recipe_text(part),
                made,
                calibration=_paths(calibration),
                calibration_tokens=calibration_tokens,
                original=compared,
                overwrite=replace,
                threads=threads,
                progress=report,
            )

        names = os.fspath(source), os.fspath(output), os.fspath(original or "")
        steps = _python_steps(recipe)
        if steps is None:
            return _compression(run(names[0], recipe, names[1], names[2], overwrite))
        whole = {**recipe, "steps": steps} if isinstance(recipe, Mapping) else {"steps": steps}
        return _compression(
            compress_in_parts(
                names[0],
                whole,
                names[1],
                original=names[2],
                overwrite=overwrite,
                built_in=run,
                progress=progress,
            )
        )


def plan(source: PathLike, recipe: Recipe, *, original: Union[None, PathLike] = None) -> Compression:
    """The exact cost of what compress() would write, without writing anything.

    Not of methods written in Python, which have no dry run.
    """
    if _python_steps(recipe) is not None:
        raise UsageError("[python] plan: methods written in Python have no dry run")
    return _compression(
        _native.plan(os.fspath(source), _recipe_text(recipe), original=os.fspath(original or ""))
    )


def quantize(
    source: PathLike, type: str, output: PathLike, *, rounding: str = "nearest", **options: Any
) -> Compression:
    """Writes a model in another element type, sharing kept.

    Args:
        type: "f16", "q8_0", "q4_k", ...
        rounding: "nearest"; "imatrix" and "gptq" look at a text, which `calibration` names.
        options: those of compress(), and of the method (`refold methods quantize`), such as `types`.
    """
    own = {key: options.pop(key) for key in list(options) if key in _COMPRESS_OPTIONS}
    return compress(
        source, [{"method": "quantize", "type": type, "rounding": rounding, **options}], output, **own
    )


_COMPRESS_OPTIONS = ("calibration", "calibration_tokens", "original", "overwrite", "threads", "progress")


def inspect(name_or_path: PathLike) -> Dict[str, Any]:
    """Architecture and costs of a model, which is not loaded: a dict.

    Keys: architecture, causal, layers, stored_layers, loops, n_embd, n_head, n_head_kv, n_vocab,
    context_length, tensors, shares; `stored` and `without_sharing` are dicts with the keys of Cost.
    """
    return _native.inspect(os.fspath(name_or_path))


def export(
    source: PathLike,
    output: PathLike,
    *,
    format: str,
    overwrite: bool = False,
    progress: ProgressOption = None,
) -> str:
    """Writes a model for other programs. Returns the path.

    Args:
        format: "hf", a directory that transformers loads; "gguf", a file for stock llama.cpp; "native",
            refold's own GGUF. The first two have sharing written out.
    """
    with reporting(progress) as report:
        return _native.write(os.fspath(source), os.fspath(output), format, overwrite, report)
