"""Something shown in place on a terminal, until the block ends; lines that are printed or logged meanwhile come above it."""

from __future__ import annotations

import asyncio
import sys
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live


class InPlace:
    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=sys.stderr.isatty())

    def __enter__(self) -> InPlace:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """The cursor and the standard streams are as they were; what was shown last stays."""
        self._live.stop()

    async def show(self, what: RenderableType) -> None:
        """On a thread: a terminal that is held (Ctrl-S) takes nothing, and holds nobody but its reader up."""
        await asyncio.to_thread(self._live.update, what, refresh=True)
