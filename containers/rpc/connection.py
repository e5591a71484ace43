"""Requests and answers in both directions at once, over one socket, for threads that wait.

A message is one line of JSON. `{"call": METHOD, "id": N, "with": [...]}` is answered by `{"id": N, "result": …}` or
`{"id": N, "error": …}`, and `{"tell": METHOD, "with": [...]}` is not answered. What is told is processed in the order in which it was sent;
calls are served concurrently. The first message of each end is `{"version": …}`.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from typing import Any

from containers.rpc.codec import Codec, codec_of, dump_error, load_error
from sluice.core.errors import ClientError, Unavailable

log = logging.getLogger(__name__)

THREADS = 1000
"""How many calls of the other end may be served at a time. Nearly all of them wait."""


class ConnectionLost(Unavailable):
    """The other process of the container has ended."""


class OtherVersion(ClientError):
    """The two processes of the container have different versions of Sluice."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The types of a method: those of its parameters, and that of its result. `told`: a method that does not block and returns nothing; the
    caller does not wait for it."""

    parameters: tuple[Codec, ...]
    result: Codec
    told: bool = False

    @staticmethod
    def of(parameters: tuple[Any, ...], result: Any, *, told: bool = False) -> Signature:
        return Signature(tuple(map(codec_of, parameters)), codec_of(result), told)


Interface = Mapping[str, Signature]


class Connection:
    """One end. `calls`: the methods of the other end. `serves`: those of this end. `on_lost` is called once, when the other end has ended
    or this one was closed, on a thread of the connection."""

    def __init__(
        self,
        connected: socket.socket,
        calls: Interface,
        serves: Interface,
        methods: Mapping[str, Callable[..., Any]],
        on_lost: Callable[[], None] = lambda: None,
        own_version: str | None = None,
    ) -> None:
        """`methods` implement `serves`. `own_version`: of Sluice, for tests."""
        self._socket = connected
        self._calls = calls
        self._serves = serves
        self._methods = methods
        self._on_lost = on_lost
        self._version = own_version or version("sluice-spark")
        self._sending = threading.Lock()
        self._ids = count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lost: Exception | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sluice-port")
        self._reader = threading.Thread(target=self._read, name="sluice-port-reader", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        with suppress(OSError):  # the reader finds out
            self._send({"version": self._version})
        self._reader.start()

    def close(self) -> None:
        """End the connection. Calls that wait raise ConnectionLost, here and at the other end."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join()
        self._threads.shutdown(wait=False)

    # --- this end calls --------------------------------------------------------------------------------------------

    def call(self, method: str, *values: Any) -> Any:
        """Call a method of the other end, and wait for its result. Raises what it raises (see `load_error`), and ConnectionLost."""
        signature, number, answer = self._calls[method], next(self._ids), Future[Any]()
        self._waiting[number] = answer
        try:
            if self._lost is not None:  # looked at after the answer is expected, so that it is seen here or by `_read`
                raise self._lost
            self._send({"call": method, "id": number, "with": self._dumped(signature, values)})
            found = answer.result()
        except OSError as error:
            raise ConnectionLost(f"{method}: {error}") from error
        finally:
            self._waiting.pop(number, None)
        return signature.result.load(found)

    def tell(self, method: str, *values: Any) -> None:
        """Call a method of the other end without waiting for it. Does nothing if the other end has ended."""
        with suppress(OSError):
            self._send({"tell": method, "with": self._dumped(self._calls[method], values)})

    @staticmethod
    def _dumped(signature: Signature, values: tuple[Any, ...]) -> list[Any]:
        return [codec.dump(value) for codec, value in zip(signature.parameters, values, strict=True)]

    def _send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._sending:
            self._socket.sendall(line)

    # --- the other end calls ---------------------------------------------------------------------------------------

    def _read(self) -> None:
        lost: Exception = ConnectionLost("the other process has ended")
        try:
            with self._socket.makefile("rb") as lines:
                self._check_version(json.loads(next(lines, b"{}")))
                for line in lines:
                    self._receive(json.loads(line))
        except OtherVersion as error:
            lost = error
        except Exception as error:  # a message that cannot be read must not leave threads that wait
            lost = ConnectionLost(f"the connection to the other process is lost: {error}")
        self._lost = lost
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for answer in list(self._waiting.values()):
            with suppress(Exception):  # answered meanwhile
                answer.set_exception(lost)
        self._on_lost()

    def _check_version(self, first: Any) -> None:
        """Raises OtherVersion; OSError and ValueError if the first message of the other end is missing or another one."""
        if not first:
            raise OSError("it was closed")
        if not isinstance(first, dict) or "version" not in first:
            raise ValueError(f"no version: {json.dumps(first):.100}")
        if first.get("version") != self._version:
            raise OtherVersion(
                f"this process is of version {self._version}, and the other one of {first.get('version')}: install one version in both"
            )

    def _receive(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"id": int(number), "result": result}:
                if (answer := self._waiting.get(number)) is not None:
                    answer.set_result(result)
            case {"id": int(number), "error": error}:
                if (answer := self._waiting.get(number)) is not None:
                    answer.set_exception(load_error(error))
            case {"call": str(method), "id": int(number), "with": list(values)}:
                self._threads.submit(self._serve, method, number, values)
            case {"tell": str(method), "with": list(values)}:
                try:
                    self._call(method, values)
                except Exception:
                    log.exception("%s", method)
            case _:
                raise ValueError(f"no message: {json.dumps(message):.100}")

    def _call(self, method: str, values: list[Any]) -> Any:
        signature = self._serves[method]
        loaded = [codec.load(value) for codec, value in zip(signature.parameters, values, strict=True)]
        return signature.result.dump(self._methods[method](*loaded))

    def _serve(self, method: str, number: int, values: list[Any]) -> None:
        answer: Mapping[str, Any]
        try:
            answer = {"id": number, "result": self._call(method, values)}
        except BaseException as error:  # also SystemExit of user code
            answer = {"id": number, "error": dump_error(error)}
        with suppress(OSError):
            self._send(answer)
