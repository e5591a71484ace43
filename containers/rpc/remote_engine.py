"""The engine of another process: the agent's end of the socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from containers.engine import Batch, Callbacks, Emptied, JvmUsage, Kept, RunOfJob, StageStart
from containers.rpc.connection import Connection, Link
from containers.rpc.interface import agent_methods, driver_methods
from sluice.core.ids import Ssp, StreamId
from sluice.core.watermarks import FeederProgress, WatermarkStep
from sluice.job import JobDescription


class RemoteEngine:
    """An `Engine`. Its methods also raise ConnectionLost when the driver has ended, and OtherVersion. `on_lost` is called once, when the
    driver has ended or the engine was closed, on a thread of the connection."""

    def __init__(self, link: Link, on_lost: Callable[[], None] = lambda: None) -> None:
        self._callbacks: Callbacks | None = None
        self._run = RunOfJob({}, {}, {})
        self._progress: dict[str, FeederProgress | None] = {}
        methods = {name: self._callback(name) for name in agent_methods()} | {"on_batch": self._on_batch}
        self._connection = Connection(link, driver_methods(), agent_methods(), methods, on_lost)
        self._connection.start()

    def _callback(self, name: str) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            return getattr(self._opened, name)(*values)

        return call

    @property
    def _opened(self) -> Callbacks:
        assert self._callbacks is not None, "not opened"
        return self._callbacks

    def _on_batch(self, batch: Batch) -> None:
        if batch.progress is not None:
            self._progress[batch.query] = batch.progress
        self._opened.on_batch(batch)

    def _call(self, method: str, *values: Any) -> Any:
        return self._connection.call(method, *values)

    def describe(self) -> JobDescription:
        """The job whose file the driver has loaded. Raises BadJobFile, PySparkMissing."""
        found: JobDescription = self._call("describe")
        return found

    def took_slot(self, slot: str) -> None:
        """Name the slot that a spare container has taken, for the log of the driver."""
        self._connection.tell("took_slot", slot)

    def end(self, exit_code: int) -> None:
        """Let the driver end with this exit code."""
        self._connection.tell("end", exit_code)

    def of_run(self, run: RunOfJob) -> RemoteEngine:
        """This engine, which `open` opens for the run."""
        self._run = run
        return self

    def open(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._call("open", self._run)

    def warm_up(self) -> None:
        self._call("warm_up")

    def start(self, start: StageStart) -> str:
        self._progress.pop(start.query, None)
        token, progress = self._call("start", start)
        self._progress.setdefault(start.query, progress)  # its first batch may have been reported before
        return str(token)

    def stop(self, token: str, deadline: timedelta) -> bool:
        return bool(self._call("stop", token, deadline))

    def interrupt_batches(self) -> None:
        self._connection.tell("interrupt_batches")

    def pause(self, token: str, deadline: timedelta) -> bool:
        return bool(self._call("pause", token, deadline))

    def resume(self, token: str) -> None:
        self._call("resume", token)

    def finish(self, start: StageStart) -> None:
        self._call("finish", start)

    def ends(self, start: StageStart) -> Mapping[Ssp, int]:
        found: Mapping[Ssp, int] = self._call("ends", start)
        return found

    def empty(self, start: StageStart, ends: Mapping[Ssp, int]) -> Emptied:
        found: Emptied = self._call("empty", start, ends)
        return found

    def limit_watermark(self, query: str, steps: Mapping[StreamId, Sequence[WatermarkStep]] | None) -> None:
        self._connection.tell("limit_watermark", query, steps)

    def keep(self, start: StageStart, ends: Mapping[Ssp, int]) -> Kept:
        found: Kept = self._call("keep", start, ends)
        return found

    def progress(self, query: str) -> FeederProgress | None:
        """That of its start or of its last batch, whichever came later."""
        return self._progress.get(query)

    def forget(self, query: str) -> None:
        self._progress.pop(query, None)
        self._call("forget", query)

    def check(self) -> JvmUsage | None:
        found: JvmUsage | None = self._call("check")
        return found

    def close(self) -> None:
        """Close the engine in the other process, and the connection to it."""
        self._call("close")
        self._connection.close()
