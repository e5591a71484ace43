"""Transfers the rows of a DataFrame to the driver's Python, in one Spark action and with bounded memory.

`transfer` passes rows on while they are computed. `collect_few` is for small results: Spark's JVM sends them without Python workers, which
take 30 ms a batch.

`DataFrame.toArrow` holds the whole result, and is limited by `spark.driver.maxResultSize`; `toLocalIterator` runs one job for each
partition and holds that partition. In `transfer` each Spark task sends its rows as an Arrow IPC stream over a socket to the driver, a piece
at a time. A driver that is slower makes the tasks wait.

A task that Spark runs twice (a lost executor, speculation) sends its rows twice. So the driver counts the rows of each attempt, and the
transfer fails unless exactly the rows of the attempts that count for Spark have arrived. What it has passed on must then be discarded.

An attempt waits, with all rows sent, until the driver has read them and closes the connection. So when the action has ended, connections
that are still open belong to attempts that do not count, and are not waited for: the machine of such an attempt may have disappeared.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from sluice.core.errors import Unavailable
from sluice.randomness import new_uuid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

READERS = 64
"""The number of Spark tasks that send concurrently. Further tasks wait."""

_PROBING = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""A connection whose other end is silent for 60 s, and then does not answer six probes within a minute, is closed."""

FEW_ROWS = 10_000
"""`collect_few` accepts this many rows of each Spark task."""

FEW_BYTES = 4_096
"""`collect_few` accepts values of this many bytes, so that it holds at most 80 MB of each Spark task."""

_BINARY = "binary"
_FIXED = ("int", "bigint")
"""Types whose values all have the same size."""

_NOT_FEW = "sluice: these rows are not few"
_ROW_OF_TASK = (1 << 33) - 1
"""The bits of `monotonically_increasing_id` that count the rows of a Spark task."""

_TOKEN_BYTES = 32
_ATTEMPT_BYTES = 8
_SENT = "attempt long, rows long"
_LOCAL = "127.0.0.1"


class TransferFailed(Unavailable):
    """The rows of a batch did not arrive completely, or arrived twice, or the driver could not accept them."""


def _listen(address: str) -> socket.socket:
    return socket.create_server((address, 0), backlog=READERS)


def _reader_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="sluice-rows")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a transfer takes from the system. `listen` returns a socket that listens at the address."""

    listen: Callable[[str], socket.socket] = _listen
    threads: Callable[[], ThreadPoolExecutor] = _reader_threads


class Transfers:
    """Passes the rows of one batch after another on."""

    def __init__(self) -> None:
        self._last = FEW_ROWS

    def run(self, rows: DataFrame, receive: Callable[[pa.RecordBatch], None]) -> int:
        """Pass the rows to `receive`, and return their number. After a small batch, the next one is expected to be small. If it is not, its
        plan runs a second time; nothing was passed on by then. Raises what `transfer` and `collect_few` raise."""
        few = collect_few(rows) if self._last < FEW_ROWS else None
        if few is None:
            self._last = transfer(rows, receive)
        else:
            for piece in few:
                receive(piece)
            self._last = sum(piece.num_rows for piece in few)
        return self._last


def transfer(rows: DataFrame, receive: Callable[[pa.RecordBatch], None], resources: Resources = Resources()) -> int:
    """Run the plan once, and call `receive` with each piece of its rows, from several threads. Returns the number of rows.

    Pieces have up to `spark.sql.execution.arrow.maxRecordsPerBatch` rows. Raises TransferFailed, what the plan raises, and what `receive`
    raises, which has precedence. `receive` may have been called before an error."""
    spark = rows.sparkSession.sparkContext
    host = _LOCAL if str(spark.master).startswith("local") else str(spark.getConf().get("spark.driver.host", _LOCAL))
    receiver = _Receiver(host, receive, resources)
    try:
        sent = {row.attempt: row.rows for row in rows.mapInArrow(_sender(receiver.address, receiver.token), _SENT).collect()}
    except Exception:
        receiver.close()
        receiver.check()  # an error of the driver makes the tasks fail, and is the cause
        raise
    receiver.close()
    receiver.check()
    expected = {attempt: count for attempt, count in sent.items() if count}
    if receiver.received.keys() - expected.keys():
        raise TransferFailed("a Spark task has run twice, so that rows of this batch arrived twice: the batch runs again")
    if receiver.received != expected:
        raise TransferFailed("the rows of a Spark task arrived only in part: the batch runs again")
    return sum(sent.values())


def collect_few(rows: DataFrame) -> list[pa.RecordBatch] | None:
    """Run the plan once and return its rows, or None if they are not few: more than FEW_ROWS of a Spark task, or a value of more than
    FEW_BYTES. The first column is binary. Raises what the plan raises."""
    quoted = [f"`{name.replace('`', '``')}`" for name, _ in rows.dtypes]
    sizes = [
        name if kind == _BINARY else f"to_json({name})" for name, (_, kind) in zip(quoted, rows.dtypes, strict=True) if kind not in _FIXED
    ]
    too_many = [f"(monotonically_increasing_id() & {_ROW_OF_TASK}) >= {FEW_ROWS}"]
    too_many += [f"coalesce(octet_length({size}) > {FEW_BYTES}, false)" for size in sizes]
    first, *rest = quoted
    # As SQL, because each function of a Column is a call into the JVM: 40 ms for a batch of four columns, and 2 ms to parse this.
    checked = f"CASE WHEN {' OR '.join(too_many)} THEN CAST(raise_error('{_NOT_FEW}') AS {_BINARY}) ELSE {first} END AS {first}"
    try:
        return _collected(rows.selectExpr(checked, *rest))
    except (PySparkException, Py4JError) as error:
        if _NOT_FEW in str(error):
            return None
        raise


def _collected(rows: Any) -> list[pa.RecordBatch]:
    """All rows. Spark 3.5 has `toArrow` only under the name of its first half."""
    pieces: list[pa.RecordBatch] = rows.toArrow().to_batches() if hasattr(rows, "toArrow") else rows._collect_as_arrow()
    return pieces


class _Receiver:
    """Listens on a port of its own, and reads each connection on a thread. `received`: rows by attempt of a task."""

    def __init__(self, host: str, receive: Callable[[pa.RecordBatch], None], resources: Resources) -> None:
        self._receive = receive
        self.token = new_uuid().bytes + new_uuid().bytes
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        """Of the driver. A connection that ends early is none: its task fails, or the numbers of rows differ."""
        self.received: Counter[int] = Counter()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._listener = resources.listen(_LOCAL if host == _LOCAL else "")
        self.address = (host, self._listener.getsockname()[1])
        self._threads = resources.threads()
        self._acceptor = threading.Thread(target=self._accept, name="sluice-rows-accept", daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        """Accept connections until `close`. If that fails, because there is no descriptor or no thread left, let all tasks fail: they would
        wait for ever."""
        try:
            while True:
                connection, _ = self._listener.accept()
                with self._lock:
                    self._open.add(connection)
                _probe(connection)
                self._threads.submit(self._read, connection)
        except Exception as error:
            if not self._closed:
                self._errors.append(TransferFailed(f"the driver cannot accept the rows of Spark's tasks: {error}"))
                self._listener.close()
                self._end_connections()

    def _read(self, connection: socket.socket) -> None:
        """Read one connection."""
        try:
            with ExitStack() as closing:
                closing.callback(self._forget, connection)
                source = closing.enter_context(connection.makefile("rb", buffering=1 << 16))
                if not hmac.compare_digest(source.read(_TOKEN_BYTES), self.token):
                    return
                attempt = int.from_bytes(source.read(_ATTEMPT_BYTES), "big")
                with pa.ipc.open_stream(source) as pieces:
                    for piece in pieces:
                        with self._lock:
                            self.received[attempt] += piece.num_rows
                        if not self._pass_on(piece):
                            return
        except (OSError, pa.ArrowInvalid) as error:
            log.debug("a Spark task has sent its rows only in part: %s", error)
        except BaseException as error:
            self._errors.append(error)

    def _pass_on(self, piece: pa.RecordBatch) -> bool:
        try:
            self._receive(piece)
        except BaseException as error:
            self._errors.append(error)
            return False
        return True

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def close(self) -> None:
        """Close all connections, after the action has ended."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        self._end_connections()
        self._threads.shutdown(wait=True)

    def _end_connections(self) -> None:
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def check(self) -> None:
        """Raise the first error of the driver."""
        if self._errors:
            raise self._errors[0]


def _probe(connection: socket.socket) -> None:
    """Let the system probe the other end while it sends nothing. Otherwise machines that disappear could keep all readers for ever."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PROBING.items():
        if hasattr(socket, name):  # macOS lacks one
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _sender(address: tuple[str, int], token: bytes) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that each Spark task runs. It is pickled by value and imports only what every executor has."""

    def send(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import socket

        import pyarrow as pa
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        attempt, rows, stream = context.taskAttemptId(), 0, None
        for piece in pieces:
            if piece.num_rows == 0:
                continue
            if stream is None:
                connection = socket.create_connection(address, timeout=60)
                connection.settimeout(None)  # the driver may be slow
                connection.sendall(token + attempt.to_bytes(8, "big"))
                sink = connection.makefile("wb", buffering=1 << 16)
                stream = pa.ipc.new_stream(sink, piece.schema)
            stream.write_batch(piece)
            rows += piece.num_rows
        if stream is not None:
            stream.close()
            sink.close()
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # the driver closes when it has read everything, and relies on this wait
            connection.close()
        yield pa.RecordBatch.from_pydict({"attempt": pa.array([attempt], pa.int64()), "rows": pa.array([rows], pa.int64())})

    return send
