"""Bars for what takes long: on a terminal, on standard error, so that standard output is the answer alone; elsewhere nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn

from sluice.wire import snapshots as wire_snapshots


class Bar:
    """One line. It shows files and bytes of a transfer (`containers.transfer.Progress`), or how far an errand is."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._total = 0

    def show(self, errand: wire_snapshots.ErrandReply) -> None:
        self._progress.update(self._task, completed=errand.done, total=errand.total)

    def planned(self, files: int, size: int) -> None:
        self._total += size
        self._progress.update(self._task, total=self._total)

    def retained(self, files: int, size: int) -> None:
        """What is there already is not on the way."""

    def done(self, files: int, size: int) -> None:
        self._progress.advance(self._task, size)


@contextmanager
def bar(what: str, *, unit: str, quiet: bool) -> Iterator[Bar]:
    """`unit`: "bytes", or the name of what is counted."""
    console = Console(stderr=True, highlight=False)
    counted: list[ProgressColumn] = [DownloadColumn()] if unit == "bytes" else [MofNCompleteColumn(), TextColumn(unit)]
    columns = [TextColumn("{task.description}"), BarColumn(), *counted, TimeElapsedColumn()]
    with Progress(*columns, console=console, disable=quiet or not sys.stderr.isatty()) as progress:
        yield Bar(progress, progress.add_task(what, total=None))
