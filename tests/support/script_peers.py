"""The other end of a script's connection, played by a test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from containers.attached.port import Beginning, DrainOfScript, Flushed, Grant, Made, NotGranted, agent_methods, driver_methods
from containers.engine import Position
from containers.rpc.connection import Connection, Interface
from containers.rpc.socket_link import SocketLink
from sluice.core.ids import Generation, JobName, RunId, StageName

LONG = 600
"""Seconds. A message that does not come is missing, and not late."""


class Peer:
    """Keeps what the other end tells and asks, by method. `answers`: those to questions."""

    def __init__(self, connected: socket.socket, calls: Interface, serves: Interface, answers: Mapping[str, Callable[..., Any]]) -> None:
        self._heard: dict[str, SimpleQueue[Any]] = {name: SimpleQueue() for name in serves}
        self.ended = threading.Event()
        methods = {name: self._method(name, answers.get(name, lambda *values: None)) for name in serves}
        self.connection = Connection(SocketLink(connected), calls, serves, methods, self.ended.set)
        self.connection.start()

    def _method(self, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def take(*values: Any) -> Any:
            self._heard[name].put(values[0] if len(values) == 1 else values)
            return answer(*values)

        return take

    def next(self, method: str) -> Any:
        """The argument of the next call of this method; a tuple if it has several or none."""
        return self._heard[method].get(timeout=LONG)

    def tell(self, method: str, *values: object) -> None:
        self.connection.tell(method, *values)


class AgentPeer(Peer):
    """Plays the agent."""

    def __init__(self, connected: socket.socket, **answers: Callable[..., Any]) -> None:
        self._granted = threading.Event()
        self._grant = Grant(RunId("run-1"), Generation(3))
        known: dict[str, Callable[..., Any]] = {
            "attach": self._attach,
            "beginning": lambda stage: Beginning(0, "", {}, ""),
            "prepare": lambda wanted: Made(),
            "keep_plan": lambda stage, batch: "",
        }
        super().__init__(connected, driver_methods(), agent_methods(), {**known, **answers})

    def _attach(self, job: JobName) -> Grant:
        self._granted.wait()
        if job != "orders":
            raise NotGranted(f"the command is another job than {job}")
        return self._grant

    def may_run(self, generation: int = 3) -> None:
        """Let the script run."""
        self._grant = Grant(RunId("run-1"), Generation(generation))
        self._granted.set()

    def drain(self, uuid: str, *, flushing: bool = False) -> None:
        self.tell("drain", DrainOfScript(uuid, flushing))

    def pause(self, uuid: str, *needed: str) -> Mapping[StageName, Position]:
        """Begin a drain, and return where the queries are when they are paused."""
        self.drain(uuid)
        found: Mapping[StageName, Position] = self.connection.call("pause_queries", uuid, [StageName(each) for each in needed])
        return found

    def flush(self, uuid: str, stage: str, *feeders: str) -> Flushed:
        found: Flushed = self.connection.call("flush", uuid, StageName(stage), [StageName(each) for each in feeders])
        return found

    def leave(self, uuid: str, *, end: bool) -> None:
        self.connection.call("leave", uuid, end)

    def close(self) -> None:
        self._granted.set()
        self.connection.close()


class DriverPeer(Peer):
    """Plays the driver."""

    def __init__(self, connected: socket.socket, **answers: Callable[..., Any]) -> None:
        super().__init__(connected, agent_methods(), driver_methods(), answers)

    def attach(self, job: str) -> Grant:
        grant: Grant = self.connection.call("attach", JobName(job))
        return grant

    def queries(self, *queries: Mapping[str, object]) -> None:
        found: Sequence[Mapping[str, object]] = queries
        self.tell("queries", found)
