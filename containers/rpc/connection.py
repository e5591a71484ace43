"""Requests and answers in both directions at once, for threads that wait.

A message is one line of JSON. `{"call": METHOD, "id": N, "with": [...]}` is answered by `{"id": N, "result": …}` or
`{"id": N, "error": …}`, and `{"tell": METHOD, "with": [...]}` is not answered. What is told is processed in the order in which it was sent;
calls are served concurrently. The first message of each end is `{"version": …}`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count
from typing import Any, Protocol

from containers.rpc.codec import Codec, codec_of, dump_error, load_error
from sluice.core.errors import ClientError, Unavailable

log = logging.getLogger(__name__)


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


def _fail(answer: Future[Any], error: Exception) -> None:
    with suppress(InvalidStateError):  # it was answered meanwhile, or the wait for it was cancelled
        answer.set_exception(error)


class Link(Protocol):
    """What connects the two processes: a socket (`containers.rpc.socket_link`). In the simulation, messages are delayed."""

    def start(self, receive: Callable[[bytes], None], lost: Callable[[Exception | None], None]) -> None:
        """Begin to receive. `receive` is called with each line that the other end has sent, in order; what it raises closes the link.
        `lost` is called once, at the end, with the error if there was one."""
        ...

    def send(self, line: bytes) -> None:
        """Raises OSError when the link is closed."""
        ...

    def serve(self, work: Callable[[], None]) -> None:
        """Do work that may block, while other lines are received."""
        ...

    def close(self) -> None:
        """Returns when `lost` has been called."""
        ...


class Connection:
    """One end. `calls`: the methods of the other end. `serves`: those of this end. `on_lost` is called once, when the other end has ended
    or this one was closed, on a thread of the connection."""

    def __init__(
        self,
        link: Link,
        calls: Interface,
        serves: Interface,
        methods: Mapping[str, Callable[..., Any]],
        on_lost: Callable[[], None] = lambda: None,
        own_version: str | None = None,
    ) -> None:
        """`methods` implement `serves`. `own_version`: of Sluice, for tests."""
        self._link = link
        self._calls = calls
        self._serves = serves
        self._methods = methods
        self._on_lost = on_lost
        self._version = own_version or version("sluice-spark")
        self._greeted = False
        self._ids = count(1)
        self._waiting: dict[int, tuple[Future[Any], Codec]] = {}
        self._lost: Exception | None = None

    def start(self) -> None:
        """Begin to serve."""
        with suppress(OSError):  # the link reports it
            self._send({"version": self._version})
        self._link.start(self._receive, self._on_link_lost)

    def close(self) -> None:
        """End the connection. Calls that wait raise ConnectionLost, here and at the other end."""
        self._link.close()

    # --- this end calls --------------------------------------------------------------------------------------------

    def call(self, method: str, *values: Any) -> Any:
        """Call a method of the other end, and wait for its result. Raises what it raises (see `load_error`), and ConnectionLost."""
        return self.request(method, *values).result()

    def request(self, method: str, *values: Any) -> Future[Any]:
        """Call a method of the other end without waiting. The future has the result of `call`, or its error."""
        signature, number, answer = self._calls[method], next(self._ids), Future[Any]()
        self._waiting[number] = (answer, signature.result)
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        if self._lost is not None:  # looked at after the answer is expected, so that it is seen here or by `_on_link_lost`
            _fail(answer, self._lost)
        else:
            with suppress(OSError):  # the link reports why
                self._send({"call": method, "id": number, "with": self._dumped(signature, values)})
        return answer

    def tell(self, method: str, *values: Any) -> None:
        """Call a method of the other end without waiting for it. Does nothing if the other end has ended."""
        with suppress(OSError):
            self._send({"tell": method, "with": self._dumped(self._calls[method], values)})

    @staticmethod
    def _dumped(signature: Signature, values: tuple[Any, ...]) -> list[Any]:
        return [codec.dump(value) for codec, value in zip(signature.parameters, values, strict=True)]

    def _send(self, message: Mapping[str, Any]) -> None:
        self._link.send(json.dumps(message).encode() + b"\n")

    # --- the other end calls ---------------------------------------------------------------------------------------

    def _on_link_lost(self, error: Exception | None) -> None:
        match error:
            case OtherVersion():
                lost: Exception = error
            case None if self._greeted:
                lost = ConnectionLost("the other process has ended")
            case _:
                lost = ConnectionLost(f"the connection to the other process is lost: {error or 'it was closed'}")
        self._lost = lost
        for answer, _ in list(self._waiting.values()):
            _fail(answer, lost)
        self._on_lost()

    def _receive(self, line: bytes) -> None:
        """Raises OtherVersion, ValueError."""
        message = json.loads(line)
        if self._greeted:
            self._on_message(message)
        else:
            self._check_version(message)
            self._greeted = True

    def _check_version(self, first: Any) -> None:
        """Raises OtherVersion; ValueError if the first message of the other end is another one."""
        if not isinstance(first, dict) or "version" not in first:
            raise ValueError(f"no version: {json.dumps(first):.100}")
        if first.get("version") != self._version:
            raise OtherVersion(
                f"this process is of version {self._version}, and the other one of {first.get('version')}: install one version in both"
            )

    def _on_message(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"id": int(number), **answer} if "result" in answer or "error" in answer:
                self._on_answer(number, answer)
            case {"call": str(method), "id": int(number), "with": list(values)}:
                self._link.serve(lambda: self._serve(method, number, values))
            case {"tell": str(method), "with": list(values)}:
                try:
                    self._call(method, values)
                except Exception:
                    log.exception("%s", method)
            case _:
                raise ValueError(f"no message: {json.dumps(message):.100}")

    def _on_answer(self, number: int, message: Mapping[str, Any]) -> None:
        answer, result = self._waiting.get(number, (None, None))
        if answer is None or result is None:
            return
        if "error" in message:
            _fail(answer, load_error(message["error"]))
            return
        try:
            found = result.load(message["result"])
        except Exception as error:
            _fail(answer, error)
        else:
            with suppress(InvalidStateError):
                answer.set_result(found)

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
