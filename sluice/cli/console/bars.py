"""Progress bars, on standard error, so that standard output holds the answer alone. Where that is no terminal nothing is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn

from sluice.cli.console.tables import shown
from sluice.wire import drains as wire_drains
from sluice.wire import snapshots as wire_snapshots


class Bar:
    """One line. It shows files and bytes of a transfer (`containers.state.transfer.Progress`), or how far an errand is."""

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


STEPS: Mapping[str | None, int] = {None: 0, "stopped": 1, "flushing": 2, "flushed": 3, "committed": 4}
ROOM = 6
"""Lines of the terminal that are not for bars."""


class DrainBars:
    """`quiet`: show nothing."""

    def __init__(self, job: str, *, quiet: bool) -> None:
        self._job = job
        self._quiet = quiet
        self._console = Console(stderr=True, highlight=False)
        self._alone = sys.stderr.isatty() and not quiet
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[told]}", markup=False),
            TimeElapsedColumn(),
        ]
        self._progress = Progress(*columns, console=self._console, disable=not self._alone)
        self._whole = self._progress.add_task(job, total=None, told="")
        self._bars: dict[str, TaskID] = {}
        self._last = ""

    def __enter__(self) -> DrainBars:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, detail: wire_drains.DrainDetail) -> None:
        told = str(detail.phase) + (" LATE" if detail.late else "")
        waits = waiting_for(detail)
        done = sum(STEPS[stage.step] for slot in detail.containers for task in slot.tasks for stage in task.stages)
        late = f": waits for {waits}" if waits and detail.late else ""
        self._progress.update(self._whole, total=4 * detail.total, completed=done, told=told + late)
        for name, stages in self._bundles(detail).items():
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(name, total=4 * len(stages), told="")
            steps = [STEPS[each.step] for each in stages]
            slowest = min(stages, key=lambda each: STEPS[each.step])
            self._progress.update(self._bars[name], completed=sum(steps), told=_told(slowest))
        self._say(told + (f": waits for {waits}" if waits else ""), told)

    def away(self, why: str) -> None:
        self._progress.update(self._whole, told=f"the coordinator does not answer: {shown(why)}")
        self._say(f"the coordinator does not answer, trying again: {shown(why)}", "away")

    def _bundles(self, detail: wire_drains.DrainDetail) -> Mapping[str, Sequence[wire_drains.DrainStageReply]]:
        tasks = {shown(task.task): task.stages for slot in detail.containers for task in slot.tasks}
        if len(tasks) <= max(1, self._console.height - ROOM):
            return tasks
        return {f"slot {slot.processor_id}": [each for task in slot.tasks for each in task.stages] for slot in detail.containers}

    def _say(self, line: str, key: str) -> None:
        """Where there is no terminal, once."""
        if not self._alone and not self._quiet and key != self._last:
            print(f"{self._job}: {line}", file=sys.stderr, flush=True)
        self._last = key


def waiting_for(detail: wire_drains.DrainDetail, at_most: int = 5) -> str:
    """Who is to act next, in a line."""
    parts = [
        f"slot {each.processor_id} ({each.why})"
        if each.task is None
        else f"{shown(each.task)}{f' {each.stage}' if each.stage else ''} ({each.why})"
        for each in detail.blocked_by
    ]
    more = f" and {len(parts) - at_most} more" if len(parts) > at_most else ""
    return ", ".join(parts[:at_most]) + more


def _told(stage: wire_drains.DrainStageReply) -> str:
    waits = f", waits for {', '.join(stage.waits_for)}" if stage.waits_for else ""
    return f"{stage.stage}: {stage.step or 'at work'}{waits}{f', {shown(stage.note)}' if stage.note else ''}"
