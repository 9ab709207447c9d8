"""Progress of what takes long: to a function of the caller's, or as bars of tqdm."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple, Optional, Union


class Progress(NamedTuple):
    """How far the part that runs now has come."""

    part: str
    done: int
    total: int
    """0 when unknown."""
    unit: str
    """What is counted, such as "tokens"."""


ProgressOption = Union[None, bool, Callable[[Progress], Any]]


class _Bars:
    """One bar of tqdm after the other."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None
        self._part: Optional[str] = None

    def __call__(self, progress: Progress) -> None:
        if progress.part != self._part:
            self.close()
            self._bar = self._tqdm(
                desc=progress.part, total=progress.total or None, unit=" " + progress.unit, unit_scale=True
            )
            self._part = progress.part
        self._bar.update(progress.done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


@contextmanager
def reporting(progress: ProgressOption) -> Iterator[Optional[Callable[[str, int, int, str], None]]]:
    """The function that the extension calls. True: bars of tqdm where it is installed, else nothing."""
    report: Optional[Callable[[Progress], Any]] = None
    if callable(progress):
        report = progress
    elif progress:
        try:
            tqdm = importlib.import_module("tqdm.auto").tqdm
        except ImportError:
            pass
        else:
            report = _Bars(tqdm)
    if report is None:
        yield None
        return
    call = report
    try:
        yield lambda part, done, total, unit: call(Progress(part, done, total, unit))
    finally:
        if isinstance(report, _Bars):
            report.close()
