"""Methods of compression written in Python, as steps of recipes."""

from __future__ import annotations

import inspect as signatures
import json
import os
import shutil
import tempfile
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, TypeVar

from . import _native
from ._errors import UsageError
from ._progress import ProgressOption
from ._stored_model import StoredModel
from ._stored_model import open as open_model

if TYPE_CHECKING:
    from ._model import PathLike

MethodFunction = Callable[..., Optional[StoredModel]]
F = TypeVar("F", bound=MethodFunction)
Steps = List[Mapping[str, Any]]

_methods: Dict[str, MethodFunction] = {}


def method(name: str) -> Callable[[F], F]:
    """Registers a function as the method `name`, which steps of refold.compress() may then use.

    >>> @refold.method("scale_output")
    ... def scale_output(model: refold.StoredModel, *, factor: float = 1.0):
    ...     name = model.slots["output_norm"].tensor
    ...     model.tensors[name] = factor * model.tensors[name].float32()
    >>> refold.compress(source, [{"method": "scale_output", "factor": 0.5}, {"method": "direct_share"}], output)

    It gets the model as the steps before have made it, to change or to replace: what it returns is the model after
    the step; None: the given one. The other keys of the step are its keyword arguments. They are numbers, texts,
    bool, None, or lists and dicts of such, and stand in the file's provenance with those that have defaults.
    """
    if name in _native.method_names():
        raise UsageError(f"[python] method '{name}': refold has one of this name")

    def register(function: F) -> F:
        _methods[name] = function
        return function

    return register


def is_python_step(step: Any) -> bool:
    return isinstance(step, Mapping) and step.get("method") in _methods


class PythonStep:
    """A step whose method is written in Python, with every option."""

    def __init__(self, step: Mapping[str, Any]) -> None:
        self.name: str = step["method"]
        self.function = _methods[self.name]
        given = {key: value for key, value in step.items() if key != "method"}
        signature = signatures.signature(self.function)
        try:
            bound = signature.bind(None, **given)
        except TypeError as error:
            raise UsageError(f"[python] method '{self.name}': {error}") from None
        bound.apply_defaults()
        kinds = (signatures.Parameter.VAR_POSITIONAL, signatures.Parameter.VAR_KEYWORD)
        self.options: Dict[str, Any] = {}
        for key, parameter in list(signature.parameters.items())[1:]:
            if parameter.kind in kinds:
                self.options.update(bound.arguments.get(key) or {})
            else:
                self.options[key] = bound.arguments[key]
        try:
            lines = [f"    {key}: {json.dumps(value)}\n" for key, value in self.options.items()]
        except TypeError as error:
            raise UsageError(f"[python] method '{self.name}': {error}") from None
        made_by = f"{self.function.__module__}.{self.function.__qualname__}"
        self.yaml = f"  - method: {json.dumps(self.name)}  # in Python: {made_by}\n" + "".join(lines)

    def apply(self, model: StoredModel) -> StoredModel:
        made = self.function(model, **self.options)
        if made is not None and not isinstance(made, StoredModel):
            raise UsageError(
                f"[python] method '{self.name}': got {type(made).__name__}, expected a StoredModel or None"
            )
        return model if made is None else made


BuiltIn = Callable[[str, Mapping[str, Any], str, str], Dict[str, Any]]
"""Compresses: source, recipe, output, original (may be empty). Returns what _native.compress() does."""


def compress_in_parts(
    source: str,
    recipe: Mapping[str, Any],
    output: str,
    *,
    original: str,
    overwrite: bool,
    built_in: BuiltIn,
    progress: ProgressOption,
) -> Dict[str, Any]:
    """Carries out a recipe of which some methods are written in Python: the steps between these together.

    Returns what _native.compress() does. The output is complete or absent.
    """
    if os.path.lexists(output) and not overwrite:
        raise UsageError(f"[compress] '{output}' exists - give overwrite=True to replace it")
    parts: List[Any] = []  # of PythonStep, and of Steps
    for step in recipe["steps"]:
        if is_python_step(step):
            parts.append(PythonStep(step))
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(step)
        else:
            parts.append([step])
    first_original = original or recipe.get("original", "")
    folder = tempfile.mkdtemp(
        prefix=os.path.basename(output) + ".", dir=os.path.dirname(os.path.abspath(output))
    )
    try:
        done: List[Dict[str, Any]] = []
        path = source
        for number, part in enumerate(parts):
            made = os.path.join(folder, f"{number}.gguf")
            if isinstance(part, PythonStep):
                done.append(_apply(part, path, made))
            else:
                # Later steps compare with the model before the first one, as in one recipe.
                compared = first_original if number == 0 else first_original or source
                done.append(built_in(path, {**recipe, "steps": part}, made, compared))
            done[-1]["provenance"] = open_model(made).provenance
            if number > 0:
                os.unlink(path)
            path = made
        recipe_text = _joined([result["recipe"] for result in done])
        provenance = {**done[0]["provenance"], "recipe": recipe_text}
        for result in done[1:]:
            if "calibration" in result["provenance"]:
                provenance.setdefault("calibration", result["provenance"]["calibration"])
        open_model(path).save(output, provenance=provenance, overwrite=overwrite, progress=progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "before": done[0]["before"],
        "after": done[-1]["after"],
        "steps": [step for result in done for step in result["steps"]],
        "recipe": recipe_text,
    }


def _apply(step: PythonStep, source: str, output: str) -> Dict[str, Any]:
    start = time.monotonic()
    model = open_model(source)
    before = model.inspect()["stored"]
    made = step.apply(model)
    after = made.inspect()["stored"]
    text = "steps:\n" + step.yaml
    made.save(output, recipe=text)
    seconds = time.monotonic() - start
    steps = [{"method": step.name, "cost": after, "seconds": seconds}]
    return {"before": before, "after": after, "steps": steps, "recipe": text}


def _joined(recipes: List[str]) -> str:
    """One recipe of several, as refold writes them: "steps" comes last. What stands before is that of the first."""
    heads: List[str] = []
    steps: List[str] = []
    for recipe in recipes:
        head, _, rest = ("\n" + recipe).partition("\nsteps:\n")
        heads.append(head.lstrip("\n"))
        steps.append(rest if rest.endswith("\n") else rest + "\n")
    head = next((h for h in heads if h), "")
    return (head + "\n" if head else "") + "steps:\n" + "".join(steps)
