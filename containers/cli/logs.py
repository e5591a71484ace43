"""`sluice logs`: the logs of the processes that `sluice run` starts on this machine."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from containers.local.logs import runs_by_age
from sluice.core.errors import BadOption
from sluice.streams.settings import read_stream_settings

POLL = timedelta(seconds=0.3)


def logs(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="A run, or a job: its newest run. Default: the newest run.")] = None,
    slot: Annotated[str | None, typer.Option("--slot", metavar="N", help="Only the container of this slot.")] = None,
    coordinator: Annotated[bool, typer.Option("--coordinator", help="The log of the coordinator instead of those of containers.")] = False,
    jvm: Annotated[bool, typer.Option("--jvm", help="The logs of Spark's JVMs instead of those of containers.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="Number of last lines of each file.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue to print new lines until Ctrl-C.")] = False,
    home: Annotated[Path | None, typer.Option(envvar="SLUICE_HOME", help="The directory given to `sluice run`. Default: .sluice.")] = None,
) -> None:
    """Print the logs of the processes that `sluice run` starts on this machine.

    Containers that a platform starts log to standard error: see the platform's own command.
    """
    directory = read_stream_settings(home=home).home / "logs"
    place = directory if coordinator else run_directory(directory, run)
    if coordinator and jvm:
        raise BadOption("--coordinator and --jvm are different logs: leave out one")
    pattern = "coordinator.log" if coordinator else f"{'jvm' if jvm else 'container'}-{slot or '*'}.log"
    followed = {file: Followed(file) for file in files(place, pattern)}
    if not followed:
        raise BadOption(f"{place} has no {pattern}")
    for file, each in followed.items():
        _print(file, each.last(lines), headed=len(followed) > 1)
    while follow:
        time.sleep(POLL.total_seconds())
        for file in files(place, pattern):
            each = followed.setdefault(file, Followed(file))
            _print(file, each.new(), headed=len(followed) > 1)


def run_directory(directory: Path, run: str | None) -> Path:
    """The directory of the logs of a run, of a job's newest run, or of the newest run. Raises BadOption."""
    newest_last = runs_by_age(directory)
    if run is None:
        found = newest_last
    else:
        found = [each for each in newest_last if each.name == run] or [each for each in newest_last if _job(each.name) == run]
    if not found:
        known = ", ".join(each.name for each in newest_last) or "none"
        what = "of a run" if run is None else f"of {run}"
        raise BadOption(f"{directory} has no logs {what}; runs that have logs: {known}. Give --home as to `sluice run`")
    return found[-1]


def _job(run: str) -> str:
    """The job in the id of a run: ids are JOB-TIME-RANDOM."""
    return run.rsplit("-", 2)[0]


def files(directory: Path, pattern: str) -> Sequence[Path]:
    return sorted(directory.glob(pattern))


class Followed:
    """A log file that other processes append to. Its rotation truncates it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._at = 0

    def last(self, lines: int) -> Sequence[str]:
        """The last lines. An incomplete line is printed when it is complete."""
        found: deque[bytes] = deque(maxlen=lines)
        with self._file.open("rb") as log:
            for line in log:
                if line.endswith(b"\n"):
                    found.append(line)
                    self._at += len(line)
        return [each.decode(errors="replace") for each in found]

    def new(self) -> Sequence[str]:
        """The lines that were completed since the last call."""
        try:
            with self._file.open("rb") as log:
                size = os.fstat(log.fileno()).st_size
                if size < self._at:  # rotated
                    self._at = 0
                log.seek(self._at)
                found = log.read(size - self._at)
        except FileNotFoundError:
            return []
        finished, line_break, _ = found.rpartition(b"\n")
        self._at += len(finished) + len(line_break)
        return (finished + line_break).decode(errors="replace").splitlines(keepends=True)


def _print(file: Path, lines: Sequence[str], *, headed: bool) -> None:
    for line in lines:
        typer.echo(f"{file.stem}: {line}" if headed else line, nl=False)
