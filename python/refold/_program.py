"""Verbs of the program that the package brings along, with their results as dicts: fitting, tasks, comparisons."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Union

from ._errors import CancelledError, Error, InternalError, UsageError
from ._progress import ProgressOption, reporting

if TYPE_CHECKING:
    from ._model import PathLike

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "refold")

# "measuring matrices:  45 %  13/29 matrices  ETA 3 s", or at the end "measuring matrices: 29 matrices in 1.2 s"
_PROGRESS = re.compile(r"(?P<part>.+?): +(?:(?P<percent>\d+) %  |.* in [\d.]+ (?:ms|s|min|h))")
_ERROR = re.compile(r"refold: error: (.*)")
_EXIT_USAGE, _EXIT_INTERRUPTED = 2, 130


def _flags(options: Mapping[str, Any]) -> List[str]:
    """Options under the names of the program's, with _ for -; a list repeats one."""
    out: List[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            out.append(flag)
            continue
        values = value if isinstance(value, (list, tuple)) else [value]
        for one in values:
            out += [flag, os.fspath(one) if isinstance(one, os.PathLike) else str(one)]
    return out


def run(
    words: Sequence[str], options: Mapping[str, Any] = {}, progress: ProgressOption = None
) -> Dict[str, Any]:
    """What `refold WORDS OPTIONS --json` prints. Ctrl-C ends the program, then raises KeyboardInterrupt."""
    said: List[str] = []
    with reporting(progress) as report, tempfile.TemporaryFile() as out:
        command = [PROGRAM, *words, *_flags(options), "--json", *([] if report else ["--quiet"])]
        # Of a session of its own, so that the terminal's Ctrl-C comes from here alone.
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        ) as process:
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    found = _PROGRESS.match(line)
                    if report and found:
                        report(found["part"], int(found["percent"] or 100), 100, "%")
                    else:
                        said.append(line)
                code = process.wait()
            except BaseException:
                process.terminate()
                process.wait()  # `with` does not after Ctrl-C
                raise
        out.seek(0)
        printed = out.read()
    if code != 0:
        text = "".join(said)
        errors = _ERROR.findall(text)
        message = errors[-1] if errors else text.strip() or f"'{' '.join(command)}' ended with {code}"
        if code == _EXIT_INTERRUPTED or -code in (signal.SIGTERM, signal.SIGINT):
            raise CancelledError(message)
        raise (UsageError if code == _EXIT_USAGE else Error)(message)
    try:
        return dict(json.loads(printed))
    except ValueError:
        raise InternalError(f"[python] '{' '.join(command)}' printed no JSON") from None


def fit(
    source: PathLike,
    output: Optional[PathLike] = None,
    *,
    calibration: Union[PathLike, Sequence[PathLike]],
    size: Union[None, str, int] = None,
    ratio: Optional[float] = None,
    bpw: Optional[float] = None,
    overwrite: bool = False,
    threads: int = 0,
    progress: ProgressOption = None,
    **options: Any,
) -> Dict[str, Any]:
    """Finds the best model of a size and writes it: `refold fit`.

    Args:
        source: a model, as for refold.Model.
        output: the GGUF file to write, with the recipe beside it. None: only measures (then `work` is needed).
        calibration: files of UTF-8 text.
        size: of the file: bytes, or "70MiB". One of size, ratio and bpw.
        ratio: part of the source's size.
        bpw: bits per weight.
        progress: a function of a refold.Progress in percent, or True for bars of tqdm.
        options: all others of `refold fit --help`, with _ for -: moves="types,narrow", kv_per_token="16KiB".

    Returns:
        The choice: predicted_bytes, predicted_divergence, types, recipe, ... as `refold fit --json`.
    """
    given = {
        "calib": list(calibration) if isinstance(calibration, (list, tuple)) else [calibration],
        "size": size,
        "ratio": ratio,
        "bpw": bpw,
        "output": output,
        "dry_run": output is None,
        "overwrite": overwrite,
        "threads": threads or None,
    }
    return run(["fit", os.fspath(source)], {**given, **options}, progress)


def evaluate(
    source: PathLike,
    tasks: Union[str, Sequence[str]],
    *,
    data: Optional[PathLike] = None,
    limit: Union[None, int, float] = None,
    shots: Optional[int] = None,
    threads: int = 0,
    progress: ProgressOption = None,
    **options: Any,
) -> Dict[str, Any]:
    """Accuracies of tasks by the definitions of lm-evaluation-harness: `refold eval tasks`.

    Args:
        source: a model, as for refold.Model.
        tasks: names of built-in tasks or groups (docs/tasks.md), or YAML files.
        data: folder with the tasks' data; None: from the hub.
        limit: only the first items of a task; below 1: this part of them.
        shots: examples before every item; None: the task's.
        progress: as for fit().
        options: all others of `refold eval tasks --help`, with _ for -: f32=True, samples="samples.jsonl".

    Returns:
        {"results": {task: {"acc,none": ..., "acc_stderr,none": ...}}, ...}, in the form of the harness.
    """
    names = tasks if isinstance(tasks, str) else ",".join(tasks)
    given = {"tasks": names, "data": data, "limit": limit, "shots": shots, "threads": threads or None}
    return run(["eval", "tasks", os.fspath(source)], {**given, **options}, progress)


def compare(
    a: PathLike,
    b: PathLike,
    *,
    text: Optional[PathLike] = None,
    threads: int = 0,
    progress: ProgressOption = None,
    **options: Any,
) -> Dict[str, Any]:
    """Whether two models, or two results, differ by more than chance: `refold compare`.

    Args:
        a, b: two models, which are compared on `text`: perplexities, KL divergence, equal predictions. Or two
            files of results of evaluations.
        text: a file of UTF-8 text.
        progress: as for fit().
        options: all others of `refold compare --help`, with _ for -: max_windows=40, f32=True.
    """
    given = {"text": text, "threads": threads or None}
    return run(["compare", os.fspath(a), os.fspath(b)], {**given, **options}, progress)
