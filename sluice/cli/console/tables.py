"""Tables: coloured and fitted to the width on a terminal, otherwise plain and complete."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TextIO

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from sluice.status import StageOverview, batches_since_snapshot, lag_of, report_age, snapshot_age, watermark_lag
from sluice.wire import runs as wire_runs

NONE = "-"
GAP = 2
FOLDED = 24
"""Free text is not made narrower than this; other columns are dropped instead."""

STYLES = {
    **dict.fromkeys(("RUNNING", "LIVE", "up"), "green"),
    **dict.fromkeys(("CREATED", "DRAINING", "REPLACED", "stopping"), "yellow"),
    **dict.fromkeys(("FAILED", "LOST", "down"), "bold red"),
    **dict.fromkeys(("STOPPED", "DRAINED", "EXITED"), "dim"),
}


# --- output ----------------------------------------------------------------------------------------------------------


def is_interactive(console: Console) -> bool:
    """Whether the console can redraw a page in place."""
    return console.is_terminal and not console.is_dumb_terminal


class Screen:
    """The output of a command. If the reader closes the pipe, further output is discarded, and the command continues."""

    def __init__(self, out: TextIO) -> None:
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="backslashreplace")
        self._out = out
        self.abandoned = False
        self.console = Console(file=out, highlight=False, force_terminal=out.isatty())

    @property
    def width(self) -> int | None:
        """Columns of the terminal; None if the width is unlimited."""
        return self.console.width if self.console.is_terminal else None

    def show(self, what: RenderableType) -> None:
        self.say(rendered(what, self.console))

    def say(self, text: str) -> None:
        try:
            self._out.write(f"{text}\n" if text else "")
            self._out.flush()
        except BrokenPipeError:
            self.abandoned = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())  # discards the rest of the buffer


def rendered(what: RenderableType, console: Console) -> str:
    """The text for the console. If it is not a terminal: without colours, line breaks and trailing spaces."""
    if console.is_terminal:
        with console.capture() as captured:
            console.print(what)
        return captured.get().rstrip("\n")
    page = Console(file=io.StringIO(), width=100_000, color_system=None, force_terminal=False, highlight=False)
    with page.capture() as captured:
        page.print(what, no_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))


# --- cells -----------------------------------------------------------------------------------------------------------


def shown(text: str) -> str:
    """Untrusted text on one line, without control characters."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split()))


def duration(seconds: float | None) -> str:
    """ "12s", "3m05s", "2h10m", "4d03h". Negative if clocks differ."""
    if seconds is None:
        return NONE
    if seconds < 0:
        return f"-{duration(-seconds)}"
    whole = int(seconds)
    for unit, size, lesser, part in (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{lesser}"
    return f"{whole}s"


def millis(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.0f}ms" if value < 1000 else f"{value / 1000:.1f}s" if value < 60_000 else duration(value / 1000)


def count(value: int | None) -> str:
    return NONE if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    return NONE if value is None else f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def moment(at: datetime | None) -> str:
    return NONE if at is None else f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def state(word: str) -> Text:
    return Text(word, style=STYLES.get(word, ""))


def own_part(execution_id: str, run_id: str, *, whole: bool) -> str:
    """An execution container id, shortened unless `whole` by the run's id that it often begins with."""
    return execution_id if whole else execution_id.removeprefix(f"{run_id}-")


# --- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """`rank`: when the terminal is too narrow, columns with the highest rank are dropped first; those of rank 0 are kept. `folds`: free
    text, which gets the remaining width."""

    title: str
    right: bool = False
    rank: int = 0
    folds: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], width: int | None) -> Table:
    """Headings and rows, at most `width` columns wide."""
    cells = [[each if isinstance(each, Text) else Text(each) for each in row] for row in rows]
    widest = [max([cell_len(column.title), *(row[n].cell_len for row in cells)]) for n, column in enumerate(columns)]
    needed = [min(wide, FOLDED) if column.folds else wide for wide, column in zip(widest, columns, strict=True)]
    kept = list(range(len(columns)))

    def fits() -> bool:
        return width is None or sum(needed[n] + GAP for n in kept) <= width

    while not fits() and any(columns[n].rank for n in kept):
        kept.remove(max(kept, key=lambda n: columns[n].rank))
    if width is not None and fits():  # free text gets the remaining width
        room = width - sum(needed[n] + GAP for n in kept)
        widest = [min(wide, need + room) if columns[n].folds else wide for n, (wide, need) in enumerate(zip(widest, needed, strict=True))]
    made = Table(box=None, padding=(0, GAP, 0, 0), header_style="bold")
    for n in kept:
        justify: Literal["left", "right"] = "right" if columns[n].right else "left"
        made.add_column(columns[n].title, justify=justify, overflow="fold", width=widest[n] if fits() else None)
    for row in cells:
        made.add_row(*(row[n] for n in kept))
    return made


def jobs_table(reply: wire_runs.JobsReply, width: int | None) -> Table:
    columns = [Column("JOB"), Column("STATE"), Column("CURRENT RUN"), Column("RUNS", right=True, rank=1)]
    return table(columns, [(each.job, state(each.state), each.current_run, count(each.runs)) for each in reply.jobs], width)


def runs_table(reply: wire_runs.RunsReply, width: int | None) -> Table:
    columns = [
        *(Column("RUN"), Column("STATE"), Column("CREATED", rank=1), Column("ENDED", rank=2)),
        *(Column("CONTAINERS", right=True, rank=3), Column("MODEL", right=True, rank=4), Column("REASON", folds=True)),
    ]
    rows = [
        (r.run_id, state(r.state), moment(r.created_at), moment(r.ended_at), str(r.containers), str(r.job_model_version), shown(r.reason))
        for r in reply.runs
    ]
    return table(columns, rows, width)


def containers_table(run: wire_runs.RunDetail, width: int | None) -> Table:
    columns = [
        *(
            Column("SLOT"),
            Column("STATE"),
            Column("CONTAINER"),
            Column("LEASE LEFT", right=True, rank=1),
            Column("EPOCH", right=True, rank=3),
        ),
        *(Column("HOST", rank=4), Column("REGISTERED", rank=6), Column("LAST SEEN", rank=5), Column("EXIT", right=True, rank=2)),
        Column("REASON", folds=True),
    ]
    rows = [
        (
            *(each.processor_id, state(each.state), own_part(each.execution_container_id, run.run_id, whole=width is None)),
            *(duration(each.lease_seconds_left), str(each.epoch), shown(each.host) or NONE, moment(each.registered_at)),
            *(moment(each.last_seen_at), NONE if each.exit_code is None else str(each.exit_code), shown(each.reason)),
        )
        for each in run.incarnations
    ]
    return table(columns, rows, width)


def tasks_table(run: wire_runs.RunDetail, at: datetime, width: int | None) -> Table:
    """A row for each stage of each task."""
    columns = [
        *(
            Column("TASK"),
            Column("SLOT", rank=3),
            Column("OWNER"),
            Column("GEN", right=True),
            Column("STAGE"),
            Column("BATCH", right=True, rank=1),
        ),
        *(Column("ROWS/S", right=True, rank=2), Column("LAG", right=True), Column("TOOK", right=True, rank=4)),
        *(Column("WATERMARK LAG", right=True, rank=5), Column("BACKUP", right=True, rank=3), Column("REPORT", right=True)),
    ]
    rows: list[Sequence[str | Text]] = []
    for task in run.tasks:
        holder = own_part(task.holder, run.run_id, whole=width is None) if task.holder else Text("none", style="bold red")
        progress = {each.stage: each for each in task.stages}
        for stage in (each for each in run.stages if task.runs(each.name)):
            generation = NONE if task.generation is None else str(task.generation)
            rows.append((task.task, task.processor_id, holder, generation, stage.name, *_progress(progress.get(stage.name), at)))
    return table(columns, rows, width)


def _progress(progress: wire_runs.StageProgress | None, at: datetime) -> Sequence[str]:
    """Batch, rows/s, lag, duration, watermark lag, age of the snapshot, age of the report."""
    if progress is None:
        return (NONE,) * 7
    batch, age, of = NONE if progress.batch_id is None else str(progress.batch_id), duration(report_age(progress, at)), progress.metrics
    lag, backup = count(lag_of(progress)), _backup(snapshot_age(progress, at), batches_since_snapshot(progress))
    if of is None:
        return (batch, NONE, lag, NONE, NONE, backup, age)
    return (batch, rate(of.rows_per_second), lag, millis(of.batch_millis), duration(watermark_lag(of)), backup, age)


def _backup(age: float | None, batches: int | None) -> str:
    """The age of a snapshot, and of a script how many batches it lacks."""
    if not batches:
        return duration(age)
    return f"{duration(age)}, {batches} {'batch' if batches == 1 else 'batches'}"


def stages_table(stages: Sequence[StageOverview], width: int | None) -> Table:
    columns = [
        *(Column("STAGE"), Column("ROWS/S", right=True), Column("LAG", right=True), Column("BATCH TOOK", right=True, rank=1)),
        *(Column("WATERMARK LAG", right=True, rank=3), Column("LAST REPORT", right=True), Column("BACKUP", right=True, rank=2)),
        *(Column("BATCHES", right=True, rank=4), Column("DELIVERY", rank=5)),
    ]
    rows = [
        (
            *(each.stage, rate(each.rows_per_second), count(each.lag), millis(each.batch_millis)),
            *(duration(each.watermark_lag_seconds), duration(each.report_age_seconds)),
            _backup(each.snapshot_age_seconds, each.batches_since_snapshot),
            *(count(each.batches), ", ".join(each.delivery) or NONE),
        )
        for each in stages
    ]
    return table(columns, rows, width)
