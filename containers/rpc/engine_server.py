"""An engine for another process: the driver's end of the socket."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from containers.engine import Callbacks, Engine, StageStart
from containers.rpc.connection import Connection
from containers.rpc.interface import agent_methods, driver_methods
from sluice.core.watermarks import FeederProgress


class EngineServer:
    """Serves an engine to one agent. When the agent has ended, each thread of Spark that waits for it gets ConnectionLost, and `on_lost` is
    called once, on a thread of the connection."""

    def __init__(self, engine: Engine, connected: socket.socket, on_lost: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        own: Mapping[str, Callable[..., Any]] = {"open": self._open, "start": self._start}
        methods = {name: own[name] if name in own else getattr(engine, name) for name in driver_methods()}
        self._connection = Connection(connected, agent_methods(), driver_methods(), methods, on_lost)

    def run(self) -> None:
        """Begin to serve, on threads."""
        self._connection.start()

    def close(self) -> None:
        """End the connection. The engine is not closed."""
        self._connection.close()

    def _open(self) -> None:
        self._engine.open(Callbacks(**{name: self._callback(name, told=found.told) for name, found in agent_methods().items()}))

    def _callback(self, name: str, *, told: bool) -> Callable[..., Any]:
        send = self._connection.tell if told else self._connection.call
        return lambda *values: send(name, *values)

    def _start(self, start: StageStart) -> tuple[str, FeederProgress | None]:
        token = self._engine.start(start)
        return token, self._engine.progress(start.query)
