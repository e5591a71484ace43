"""An engine for another process: the driver's end of the socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from containers.engine import Callbacks, Engine, JvmUsage, RunOfJob, StageStart
from containers.rpc.connection import Connection, Link
from containers.rpc.interface import agent_methods, driver_methods
from sluice.core.watermarks import FeederProgress
from sluice.job import JobDescription
from sluice.logconfig import about


class EngineServer:
    """Serves an engine to one agent. When the agent has ended, each thread of Spark that waits for it gets ConnectionLost, and `on_lost` is
    called once, on a thread of the connection. `describe` and `make_engine` may raise; the agent gets the error. `on_slot`: the slot that a
    spare container has taken. `on_end`: the process is to end with this exit code."""

    def __init__(
        self,
        link: Link,
        describe: Callable[[], JobDescription],
        make_engine: Callable[[RunOfJob], Engine],
        on_lost: Callable[[], None] = lambda: None,
        on_slot: Callable[[str], None] = lambda slot: None,
        on_end: Callable[[int], None] = lambda exit_code: None,
    ) -> None:
        self._make_engine = make_engine
        self._engine: Engine | None = None
        self._starts: dict[str, StageStart] = {}
        """By the tokens of their queries, for the log."""
        own: Mapping[str, Callable[..., Any]] = {
            "describe": describe,
            "open": self._open,
            "start": self._start,
            "check": self._check,
            "took_slot": on_slot,
            "end": on_end,
        }
        methods = {name: own[name] if name in own else self._method(name) for name in driver_methods()}
        self._connection = Connection(link, agent_methods(), driver_methods(), methods, on_lost)

    def run(self) -> None:
        """Begin to serve, on threads."""
        self._connection.start()

    def close(self) -> None:
        """End the connection. The engine is not closed."""
        self._connection.close()

    @property
    def _opened(self) -> Engine:
        assert self._engine is not None, "not opened"
        return self._engine

    def _method(self, name: str) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            match values:
                case (StageStart() as start, *_):
                    with _about(start):
                        return getattr(self._opened, name)(*values)
                case (str(token), *_) if token in self._starts:
                    with _about(self._starts[token]):
                        return getattr(self._opened, name)(*values)
                case _:
                    return getattr(self._opened, name)(*values)

        return call

    def _open(self, run: RunOfJob) -> None:
        if self._engine is None:  # otherwise it could not be opened, because a disk was full
            self._engine = self._make_engine(run)
        self._engine.open(Callbacks(**{name: self._callback(name, told=found.told) for name, found in agent_methods().items()}))

    def _check(self) -> JvmUsage | None:
        return None if self._engine is None else self._engine.check()

    def _callback(self, name: str, *, told: bool) -> Callable[..., Any]:
        send = self._connection.tell if told else self._connection.call
        return lambda *values: send(name, *values)

    def _start(self, start: StageStart) -> tuple[str, FeederProgress | None]:
        with _about(start):
            token = self._opened.start(start)
            self._starts = {other: of for other, of in self._starts.items() if of.query != start.query} | {token: start}
            return token, self._opened.progress(start.query)


def _about(start: StageStart) -> AbstractContextManager[None]:
    return about(task=start.task, stage=start.stage.name, generation=start.generation)
