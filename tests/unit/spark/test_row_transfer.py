"""The transfer of rows to the driver, whose Spark tasks are sockets of these tests."""

from __future__ import annotations

import errno
import io
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from inspect import getclosurevars
from queue import Queue
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from containers.spark.systems.row_transfer import Resources, TransferFailed, transfer

SOON = 300

PIECE = pa.RecordBatch.from_pydict({"value": pa.array([b"1", b"2", b"3"], pa.binary())})


class TaskFailed(Exception):
    """Spark's error of an action."""


def stream(pieces: int) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, PIECE.schema) as writer:
        for _ in range(pieces):
            writer.write_batch(PIECE)
    return sink.getvalue()


END = 8
"""The bytes of the end of a stream."""


@dataclass
class Tasks:
    """Runs the tasks of an action. `run` returns the rows of each attempt that has succeeded, or raises what the action raises."""

    run: Callable[[Tasks], Sequence[tuple[int, int]]]
    sparkSession: Any = field(default_factory=lambda: SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]")))
    address: tuple[str, int] = ("", 0)
    token: bytes = b""
    open: ExitStack = field(default_factory=ExitStack)

    def mapInArrow(self, function: Callable[..., Any], schema: str) -> Any:
        names = getclosurevars(function).nonlocals
        self.address, self.token = names["address"], names["token"]
        return SimpleNamespace(collect=lambda: [SimpleNamespace(attempt=attempt, rows=rows) for attempt, rows in self.run(self)])

    def begin(self, attempt: int, sent: bytes) -> socket.socket:
        """An attempt that has sent this much of its stream."""
        connection = self.open.enter_context(closing(socket.create_connection(self.address, timeout=SOON)))
        connection.sendall(self.token + attempt.to_bytes(8, "big") + sent)
        return connection

    def end(self, connection: socket.socket) -> None:
        """It ends when the driver has read everything."""
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""

    def send(self, attempt: int, pieces: int) -> tuple[int, int]:
        """A complete attempt. Raises TaskFailed."""
        try:
            self.end(self.begin(attempt, stream(pieces)))
        except TimeoutError:
            raise
        except OSError as error:
            raise TaskFailed(str(error)) from error
        return attempt, pieces * PIECE.num_rows


@pytest.fixture
def tasks() -> Iterator[Callable[[Callable[[Tasks], Sequence[tuple[int, int]]]], Any]]:
    made: list[Tasks] = []

    def make(run: Callable[[Tasks], Sequence[tuple[int, int]]]) -> Any:
        made.append(Tasks(run))
        return made[-1]

    yield make
    for each in made:
        each.open.close()


def soon(work: Callable[[], object]) -> Any:
    """The result of `work` or what it raises, which must not take long."""
    found: Queue[tuple[object, BaseException | None]] = Queue()

    def run() -> None:
        try:
            found.put((work(), None))
        except BaseException as error:
            found.put((None, error))

    Thread(target=run, daemon=True).start()
    result, error = found.get(timeout=SOON)
    if error is not None:
        raise error
    return result


def ignore(piece: pa.RecordBatch) -> None:
    """Takes rows."""


MakeTasks = Callable[[Callable[[Tasks], Sequence[tuple[int, int]]]], Any]


def test_the_rows_of_all_tasks_are_passed_on(tasks: MakeTasks) -> None:
    rows: list[int] = []
    made = tasks(lambda spark: [spark.send(7, 2), spark.send(8, 1), (9, 0)])
    assert soon(lambda: transfer(made, lambda piece: rows.append(piece.num_rows))) == 9
    assert sum(rows) == 9


class Listener(socket.socket):
    """Listens on a port, and has no descriptor left when a task has connected."""

    def __init__(self) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.connected = Event()

    def accept(self) -> tuple[socket.socket, Any]:
        assert self.connected.wait(SOON)
        raise OSError(errno.EMFILE, "Too many open files")


def test_tasks_fail_if_the_driver_cannot_accept_their_connections(tasks: MakeTasks) -> None:
    listener = Listener()

    def run(spark: Tasks) -> Sequence[tuple[int, int]]:
        connection = spark.begin(7, stream(1))
        listener.connected.set()
        try:
            spark.end(connection)
        except ConnectionError as error:
            raise TaskFailed(str(error)) from error
        return [(7, 3)]

    with pytest.raises(TransferFailed, match="Too many open files"):
        soon(lambda: transfer(tasks(run), ignore, Resources(listen=lambda address: listener)))


class NoThreads(ThreadPoolExecutor):
    def submit(self, *arguments: Any, **named: Any) -> Any:
        raise RuntimeError("can't start new thread")


def test_tasks_fail_if_the_driver_has_no_thread_to_read_them(tasks: MakeTasks) -> None:
    with pytest.raises(TransferFailed, match="can't start new thread"):
        soon(lambda: transfer(tasks(lambda spark: [spark.send(7, 1)]), ignore, Resources(threads=NoThreads)))


@pytest.mark.parametrize("closed", [False, True])
def test_a_task_that_was_lost_before_its_first_rows_and_has_run_again_does_not_delay_the_end(tasks: MakeTasks, closed: bool) -> None:
    """Its machine has disappeared, so that the connection stays open. `closed`: its process was killed."""

    def run(spark: Tasks) -> Sequence[tuple[int, int]]:
        lost = spark.begin(7, stream(1)[: -END - 1])
        if closed:
            spark.end(lost)
        return [spark.send(8, 1)]

    assert soon(lambda: transfer(tasks(run), ignore)) == 3


def test_rows_of_a_task_that_was_lost_and_has_run_again_fail_the_transfer(tasks: MakeTasks) -> None:
    passed = Event()

    def run(spark: Tasks) -> Sequence[tuple[int, int]]:
        spark.begin(7, stream(2)[: -END - 1])
        assert passed.wait(SOON)
        return [spark.send(8, 2)]

    with pytest.raises(TransferFailed, match="has run twice"):
        soon(lambda: transfer(tasks(run), lambda piece: passed.set()))


def test_rows_that_the_driver_has_not_read_fail_the_transfer(tasks: MakeTasks) -> None:
    """The driver has closed the connection early, and the task has not noticed it."""

    def run(spark: Tasks) -> Sequence[tuple[int, int]]:
        spark.end(spark.begin(7, stream(2)[: -END - 1]))
        return [(7, 6)]

    with pytest.raises(TransferFailed, match="only in part"):
        soon(lambda: transfer(tasks(run), ignore))


def test_the_error_of_an_action_is_raised_although_its_tasks_have_ended_in_the_middle_of_their_rows(tasks: MakeTasks) -> None:
    def run(spark: Tasks) -> Sequence[tuple[int, int]]:
        spark.end(spark.begin(7, stream(2)[: -END - 1]))
        raise TaskFailed("a broken row")

    with pytest.raises(TaskFailed, match="a broken row"):
        soon(lambda: transfer(tasks(run), ignore))


def test_an_error_of_the_receiver_is_raised_instead_of_that_of_the_action(tasks: MakeTasks) -> None:
    def refuse(piece: pa.RecordBatch) -> None:
        raise OSError("the disk is full")

    def run(spark: Tasks) -> Sequence[tuple[int, int]]:
        spark.send(7, 1)
        raise TaskFailed("Broken pipe")

    with pytest.raises(OSError, match="the disk is full"):
        soon(lambda: transfer(tasks(run), refuse))


class Accepting(socket.socket):
    """Listens on a port, and keeps the connections."""

    def __init__(self) -> None:
        super().__init__(socket.AF_INET, socket.SOCK_STREAM)
        self.bind(("127.0.0.1", 0))
        self.listen()
        self.accepted: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        self.accepted.append(connection)
        return connection, address


def test_connections_are_probed_so_that_a_machine_that_disappears_does_not_keep_a_reader(tasks: MakeTasks) -> None:
    listener, probed = Accepting(), list[int]()

    def look(piece: pa.RecordBatch) -> None:
        probed.append(listener.accepted[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    soon(lambda: transfer(tasks(lambda spark: [spark.send(7, 1)]), look, Resources(listen=lambda address: listener)))
    assert probed == [1]
