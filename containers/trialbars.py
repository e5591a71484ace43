"""How the first batches of a new version go: on a terminal a bar, elsewhere a line when something changes. On standard error."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from containers.tables import shown
from containers.trial import How, Look


class TrialBar:
    """`quiet`: show nothing."""

    def __init__(self, run_id: str, *, quiet: bool) -> None:
        self._run_id = run_id
        self._quiet = quiet
        self._alone = sys.stderr.isatty() and not quiet
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[told]}", markup=False),
            TimeElapsedColumn(),
        ]
        self._progress = Progress(*columns, console=Console(stderr=True, highlight=False), disable=not self._alone)
        self._bar = self._progress.add_task(run_id, total=None, told="")
        self._last = ""

    def __enter__(self) -> TrialBar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, look: Look) -> None:
        told = "does well so far" if look.how is How.SETTLING else shown(look.told)
        self._progress.update(self._bar, total=look.total, completed=look.done, told=told)
        self._say(f"{look.done} of {look.total} stages{f': {told}' if told else ''}")

    def away(self, why: str) -> None:
        told = f"the coordinator does not answer, trying again: {shown(why)}"
        self._progress.update(self._bar, told=told)
        self._say(told)

    def _say(self, line: str) -> None:
        if not self._alone and not self._quiet and line != self._last:
            print(f"{self._run_id}: {line}", file=sys.stderr, flush=True)
        self._last = line
