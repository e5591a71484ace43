"""Progress bars, on standard error, so that standard output contains only the result."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn

from sluice.cli.console.tables import shown
from sluice.core.errors import SluiceError


class Bars:
    """One bar for each name that `show` is called with. If standard error is not a terminal there are no bars, and `say` prints lines
    instead. With `quiet` neither is shown.

    `unit`: "bytes", or the name of the counted items, to show numbers; "" to show only the note.
    """

    def __init__(self, title: str, *, unit: str = "", quiet: bool = False) -> None:
        self._title = title
        self._quiet = quiet
        self._drawn = sys.stderr.isatty() and not quiet
        self._console = Console(stderr=True, highlight=False)
        counted: list[ProgressColumn] = [DownloadColumn()] if unit == "bytes" else [MofNCompleteColumn(), TextColumn(unit)] if unit else []
        columns = [TextColumn("{task.description}", markup=False), BarColumn(), *counted]
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._drawn,
        )
        self._bars: dict[str, TaskID] = {}
        self._last_key = ""
        self.show(title, 0, None)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    @property
    def height(self) -> int:
        """Lines of the terminal."""
        return self._console.height

    def show(self, name: str, done: float, total: float | None, note: str = "") -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total, note=note)
        self._progress.update(self._bars[name], total=total, completed=done, note=note)

    def say(self, line: str, key: str | None = None) -> None:
        """Print the line, unless bars are drawn or the previous line had the same `key` (default: the line)."""
        if not self._drawn and not self._quiet and (key or line) != self._last_key:
            print(f"{self._title}: {line}", file=sys.stderr, flush=True)
        self._last_key = key or line

    def unreachable(self, error: SluiceError) -> None:
        """Show that the coordinator does not answer, or answers with an error, and that the command retries."""
        note = f"retrying: {error.title()} {shown(str(error))}"
        self._progress.update(self._bars[self._title], note=note)
        self.say(note, "unreachable")
