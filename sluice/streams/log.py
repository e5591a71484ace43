"""The embedded log: partitioned streams in SQLite, one file a stream, for one machine or one shared path.

    <directory>/<stream>.db
      partitions   partition -> earliest and latest offset
      records      id = partition * 2**40 + offset -> timestamp (µs), key, value, headers
      headers      the distinct sets of record headers, as JSON text, each stored once
      writers      lineage -> last batch appended           (exactly once)
      identity     the unique id of the stream
      fences       owner -> highest generation seen         (rejects appends of former owners)
      falls        partition, offset of a record that is older than the one before it, by more than the clocks may differ

An append is one transaction: it checks the fence and the writer, adds the records of one batch to any number of partitions, and records the
number of the batch. A batch at or below the writer's last one is skipped, so a batch that Spark runs twice appears once. Files are in WAL
mode with synchronous=FULL: an append that returned survives a power failure. A stream's file is independent of the coordinator's database.

SQLite reuses its WAL from the beginning only while no reader uses it, which never happens if readers overlap. So a writer whose transaction
makes the WAL exceed a size waits for the present readers to end; later readers use only the database file.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
import zlib
from asyncio import to_thread
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from sluice import disks
from sluice.clock import Clock, SystemClock
from sluice.core.errors import ClientError, LeaseLost, StreamConflict, StreamUnavailable, UnknownStream
from sluice.core.ids import Generation, Lineage, checked_name
from sluice.core.waits import TOLERANCE
from sluice.randomness import new_uuid, token_hex
from sluice.streams.port import KeyValue, Offsets, StreamRecord

_SPAN = 1 << 40
_BUSY_SECONDS = 30.0
WAL_BYTES = 16 << 20
"""A WAL that grows beyond a multiple of this size is checkpointed and truncated. SQLite's own checkpoints come at 4 MiB."""

_READERS_SECONDS = 1.0
"""How long a truncation of the WAL waits for readers. Appends wait meanwhile. If a reader takes longer, such as a suspended process, the
next attempt is made when the WAL has grown by the same size again."""

_TRIM_PAUSE = timedelta(seconds=0.1)
"""The shortest pause between two portions of a trim: SQLite's waiting writers retry at least this often."""

TRIM_PORTION = 100_000

_ENDS_SECONDS = 1.0
"""How long a question for the ends of streams waits for a lock. Writers do not lock readers out, except after a crash."""

_LONGEST_NAME = 240
"""A file name has up to 255 bytes, and SQLite appends up to eight to that of the database."""

_SCHEMA = """
CREATE TABLE partitions (partition INTEGER PRIMARY KEY, earliest INTEGER NOT NULL, latest INTEGER NOT NULL);
CREATE TABLE records (id INTEGER PRIMARY KEY, timestamp INTEGER NOT NULL, key BLOB, value BLOB, headers INTEGER NOT NULL);
CREATE TABLE headers (id INTEGER PRIMARY KEY, entries TEXT NOT NULL UNIQUE);
CREATE TABLE writers (lineage TEXT PRIMARY KEY, batch INTEGER NOT NULL);
CREATE TABLE fences (owner TEXT PRIMARY KEY, generation INTEGER NOT NULL);
CREATE TABLE identity (id TEXT NOT NULL);
"""

_FALLS = "CREATE TABLE IF NOT EXISTS falls (partition INTEGER, offset INTEGER, PRIMARY KEY (partition, offset)) WITHOUT ROWID"
"""Created when it is first needed; most streams never need it."""

_TOLERANCE_MICROS = TOLERANCE // timedelta(microseconds=1)

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Writer:
    """The batches of a `lineage` are numbered upwards. `owner`, a task of a job, is fenced by `generation`."""

    lineage: Lineage
    owner: str
    generation: Generation


class Record(NamedTuple):
    """A record to append. Without `partition`, the CRC-32 of the key chooses it; records without key go round robin within the batch."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None


Row = tuple[int, int, bytes | None, bytes | None, int]
"""offset, timestamp in µs, key, value, id of the headers."""


def partition_of(key: bytes | None, partitions: int, position: int) -> int:
    """CRC-32 of the key modulo the count (hash(key) % n, as expansion requires); `position` in the batch for records without key."""
    return (position if key is None else zlib.crc32(key)) % partitions


def _mode(path: Path) -> int:
    """The mode of the file or directory, 0 if there is none. Unlike `Path.exists`, it raises if the path is not accessible."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


class Log:
    """One directory of streams. Methods block and may be called from any thread or process; every call opens its own connection."""

    def __init__(self, directory: Path, wal_bytes: int = WAL_BYTES) -> None:
        self.directory = directory
        self._wal_bytes = wal_bytes

    def file(self, stream: str) -> Path:
        """The file of a stream, which need not exist. Raises ClientError for a name that no stream can have."""
        if len(checked_name("stream", stream)) > _LONGEST_NAME:
            raise ClientError(f"the name of a log stream has at most {_LONGEST_NAME} characters, because its files are named after it")
        return self.directory / f"{stream}.db"

    @contextmanager
    def _open(self, stream: str, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        file = self.file(stream)
        try:
            self._check_present(stream, file)
            with closing(sqlite3.connect(file, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous=FULL")
                before = self._wal_size(file) if write else 0
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    yield connection
                except BaseException:
                    if connection.in_transaction:  # a full disk has ended it already
                        connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
                if write and self._wal_size(file) // self._wal_bytes > before // self._wal_bytes:
                    self._truncate_wal(connection)
        except (OSError, sqlite3.Error) as error:
            raise StreamUnavailable(f"log stream {stream}: {error} (file {file}){disks.note(file.parent)}") from error

    def _wal_size(self, file: Path) -> int:
        try:
            return file.with_name(f"{file.name}-wal").stat().st_size
        except OSError:
            return 0

    def _truncate_wal(self, connection: sqlite3.Connection) -> None:
        """Move the WAL's contents into the database file and empty the WAL, unless a reader uses it for too long. The caller's transaction
        has been committed, so a failure is ignored."""
        with suppress(sqlite3.Error):
            connection.execute(f"PRAGMA busy_timeout={_READERS_SECONDS * 1000:.0f}")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _check_present(self, stream: str, file: Path) -> None:
        """A missing directory is an error and not a log without streams: its disk may not be mounted. Raises StreamUnavailable,
        UnknownStream."""
        if stat.S_ISREG(_mode(file)):
            return
        if not stat.S_ISDIR(_mode(self.directory)):
            raise StreamUnavailable(f"the log's directory {self.directory} does not exist: is its disk mounted?")
        raise UnknownStream(f"the log has no stream {stream!r}: create it first: sluice streams create {stream} --partitions N")

    def create(self, stream: str, partitions: int) -> None:
        if partitions < 1:
            raise StreamConflict(f"a stream needs at least one partition, not {partitions}")
        file = self.file(stream)
        self._write_new(file, partitions)
        present = self.partitions(stream)
        if present != partitions:
            raise StreamConflict(f"log stream {stream!r} exists with {present} partitions, not {partitions}")

    def _write_new(self, file: Path, partitions: int) -> None:
        """Create the file under a temporary name and link it into place, so that it is always complete, and only one of two creators
        succeeds."""
        draft = self.directory / f".{token_hex(8)}.draft"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if stat.S_ISREG(_mode(file)):
                return
            with closing(sqlite3.connect(draft, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.executescript(f"BEGIN; {_SCHEMA}")
                connection.executemany("INSERT INTO partitions VALUES (?, 0, 0)", [(p,) for p in range(partitions)])
                connection.execute("INSERT INTO identity VALUES (?)", (str(new_uuid()),))
                connection.execute("COMMIT")
            with suppress(FileExistsError):
                file.hardlink_to(draft)
            draft.unlink()
        except (OSError, sqlite3.Error) as error:
            for each in (draft, *(draft.with_name(f"{draft.name}{suffix}") for suffix in ("-wal", "-shm"))):
                with suppress(OSError):
                    each.unlink(missing_ok=True)
            raise StreamUnavailable(f"cannot create the log stream {file.stem}: {error}{disks.note(self.directory)}") from error

    def grow(self, stream: str, partitions: int) -> None:
        """Add partitions up to that number. Raises StreamConflict for a number below the present one."""
        with self._open(stream, write=True) as connection:
            (present,) = connection.execute("SELECT count(*) FROM partitions").fetchone()
            if partitions < present:
                raise StreamConflict(f"log stream {stream!r} has {present} partitions and cannot shrink to {partitions}")
            connection.executemany("INSERT INTO partitions VALUES (?, 0, 0)", [(p,) for p in range(present, partitions)])

    def streams(self) -> list[str]:
        return sorted(file.stem for file in self.directory.glob("[!.]*.db"))

    def partitions(self, stream: str) -> int:
        with self._open(stream) as connection:
            (count,) = connection.execute("SELECT count(*) FROM partitions").fetchone()
            return int(count)

    def identity(self, stream: str) -> str | None:
        """None for a stream created by a version of Sluice without identities."""
        with self._open(stream) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'identity'").fetchone() is None:
                return None
            (identity,) = connection.execute("SELECT id FROM identity").fetchone()
            return str(identity)

    def earliest(self, stream: str) -> Offsets:
        with self._open(stream) as connection:
            return dict(connection.execute("SELECT partition, earliest FROM partitions"))

    def latest(self, stream: str) -> Offsets:
        with self._open(stream) as connection:
            return dict(connection.execute("SELECT partition, latest FROM partitions"))

    def at_time(self, stream: str, micros: int, now_micros: int) -> Offsets:
        """Per partition the first offset appended at or after `micros` (µs since 1970).

        A record with a timestamp further than TOLERANCE ahead of `now_micros` was appended by a container whose clock was ahead. It counts
        as appended between the records around it."""
        limit = now_micros + _TOLERANCE_MICROS
        with self._open(stream) as connection:
            falls, found = _falls(connection), dict[int, int]()
            for partition, earliest, latest in connection.execute("SELECT partition, earliest, latest FROM partitions").fetchall():
                bounds = [earliest, *(offset for offset in falls.get(partition, ()) if offset > earliest), latest]
                found[partition] = _first_at(connection, partition, bounds, micros, limit)
            return found

    def fence(self, stream: str, owner: str, generation: Generation) -> None:
        """After this returns, no append of `owner` under a lower generation succeeds. May run twice."""
        with self._open(stream, write=True) as connection:
            self._pass_fence(connection, owner, generation)

    def fences(self) -> Mapping[str, Generation]:
        """The highest generation of each owner, in all streams. A stream that cannot be read is left out."""
        found: dict[str, Generation] = {}
        for stream in self.streams() if self.directory.is_dir() else ():
            with suppress(StreamUnavailable, UnknownStream), self._open(stream) as connection:
                for owner, generation in connection.execute("SELECT owner, generation FROM fences"):
                    found[owner] = Generation(max(generation, found.get(owner, 0)))
        return found

    def _pass_fence(self, connection: sqlite3.Connection, owner: str, generation: Generation) -> None:
        row = connection.execute("SELECT generation FROM fences WHERE owner = ?", (owner,)).fetchone()
        if row and row[0] > generation:
            raise LeaseLost(f"{owner} is owned by generation {row[0]}; generation {generation} may not append")
        if not row or row[0] < generation:
            connection.execute("INSERT OR REPLACE INTO fences VALUES (?, ?)", (owner, generation))

    def append(
        self,
        stream: str,
        records: Sequence[Record],
        *,
        writer: Writer,
        batch: int,
        headers: Headers | None = None,
        now_micros: int,
        partitions: int | None = None,
    ) -> bool:
        """Append one batch. False if this batch of the writer's lineage was appended before. `partitions`: records without a partition go
        to the first so many, as if the stream had no more; None: to all. Raises LeaseLost for a fenced generation."""
        with self._open(stream, write=True) as connection:
            self._pass_fence(connection, writer.owner, writer.generation)
            row = connection.execute("SELECT batch FROM writers WHERE lineage = ?", (writer.lineage,)).fetchone()
            if row and row[0] >= batch:
                return False
            connection.execute("INSERT OR REPLACE INTO writers VALUES (?, ?)", (writer.lineage, batch))
            if records:
                self._insert(connection, records, headers or {}, now_micros, partitions)
            return True

    def _insert(
        self, connection: sqlite3.Connection, records: Sequence[Record], headers: Headers, now_micros: int, partitions: int | None
    ) -> None:
        before = dict(connection.execute("SELECT partition, latest FROM partitions"))
        ends = dict(before)
        spread = len(ends) if partitions is None else min(len(ends), partitions)
        entries = json.dumps(dict(sorted(headers.items())))
        connection.execute("INSERT OR IGNORE INTO headers (entries) VALUES (?)", (entries,))
        (headers_id,) = connection.execute("SELECT id FROM headers WHERE entries = ?", (entries,)).fetchone()
        newest = self._newest(connection)
        micros = max([now_micros, *(each for each in newest.values() if each <= now_micros + _TOLERANCE_MICROS)])
        rows = []
        for position, record in enumerate(records):
            partition = record.partition
            if partition is None:
                partition = partition_of(record.key, spread, position)
            if partition not in ends:
                raise UnknownStream(f"the stream has partitions 0 to {len(ends) - 1}, and no {partition}")
            rows.append((partition * _SPAN + ends[partition], micros, record.key, record.value, headers_id))
            ends[partition] += 1
        connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?)", rows)
        moved = [(end, p) for p, end in ends.items() if end != before[p]]
        connection.executemany("UPDATE partitions SET latest = ? WHERE partition = ?", moved)
        if fell := [(p, before[p]) for _, p in moved if newest.get(p, micros) > micros]:
            connection.execute(_FALLS)
            connection.executemany("INSERT OR IGNORE INTO falls VALUES (?, ?)", fell)

    def _newest(self, connection: sqlite3.Connection) -> Mapping[int, int]:
        """The timestamp of the last record of each partition that has one. New records get at least the newest of these, also after the
        clock was set back, unless that is further ahead than TOLERANCE."""
        return dict(
            connection.execute(
                "SELECT p.partition, r.timestamp FROM partitions p JOIN records r ON r.id = p.partition * ? + p.latest - 1", (_SPAN,)
            )
        )

    def last_batch(self, stream: str, lineage: Lineage) -> int | None:
        """The last batch that the lineage appended to the stream, None before the first."""
        with self._open(stream) as connection:
            row = connection.execute("SELECT batch FROM writers WHERE lineage = ?", (lineage,)).fetchone()
            return int(row[0]) if row else None

    def read(self, stream: str, partition: int, start: int, end: int, chunk: int = 10_000) -> Generator[Sequence[Row], None, None]:
        """The records of [start, end), in order, in chunks."""
        with self._open(stream) as connection:
            low = partition * _SPAN
            rows = connection.execute(
                "SELECT id - ?, timestamp, key, value, headers FROM records WHERE id >= ? AND id < ? ORDER BY id",
                (low, low + start, low + end),
            )
            while found := rows.fetchmany(chunk):
                yield found

    def headers(self, stream: str) -> Mapping[int, Headers]:
        """Every set of headers in the stream, by id."""
        with self._open(stream) as connection:
            return {id_: json.loads(entries) for id_, entries in connection.execute("SELECT id, entries FROM headers")}

    def trim(self, stream: str, before: Offsets, limit: int = TRIM_PORTION) -> int:
        """Delete up to `limit` records of each partition below `before`. The limit keeps the transaction short: appends wait for it."""
        gone = 0
        with self._open(stream, write=True) as connection:
            for partition, earliest, latest in connection.execute("SELECT partition, earliest, latest FROM partitions").fetchall():
                end = min(before.get(partition, earliest), latest, earliest + limit)
                if end > earliest:
                    low = partition * _SPAN
                    connection.execute("DELETE FROM records WHERE id >= ? AND id < ?", (low + earliest, low + end))
                    connection.execute("UPDATE partitions SET earliest = ? WHERE partition = ?", (end, partition))
                    gone += end - earliest
        return gone


class LogEnds:
    """The ends of streams, for one thread that asks often: connections stay open, so an answer takes some microseconds."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._connections: dict[str, tuple[tuple[int, int], sqlite3.Connection]] = {}
        """By stream, with the device and inode of its file."""

    def latest(self, stream: str) -> Offsets:
        """Raises StreamUnavailable, UnknownStream."""
        file = self._log.file(stream)
        try:
            return dict(self._connection(stream, file).execute("SELECT partition, latest FROM partitions"))
        except (OSError, sqlite3.Error) as error:
            self._close(stream)
            raise StreamUnavailable(f"log stream {stream}: {error} (file {file}){disks.note(file.parent)}") from error

    def close(self) -> None:
        for stream in list(self._connections):
            self._close(stream)

    def _connection(self, stream: str, file: Path) -> sqlite3.Connection:
        """The open connection, or a new one if the file is another one."""
        found = file.stat()
        identity = (found.st_dev, found.st_ino)
        if stream in self._connections and self._connections[stream][0] != identity:
            self._close(stream)
        if stream not in self._connections:
            self._connections[stream] = identity, sqlite3.connect(file, timeout=_ENDS_SECONDS, isolation_level=None)
        return self._connections[stream][1]

    def _close(self, stream: str) -> None:
        if stream in self._connections:
            with suppress(sqlite3.Error):
                self._connections.pop(stream)[1].close()


def _falls(connection: sqlite3.Connection) -> Mapping[int, Sequence[int]]:
    """The offsets at which timestamps fall, in order, by partition. Between two of them they never fall."""
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'falls'").fetchone() is None:
        return {}
    found: defaultdict[int, list[int]] = defaultdict(list)
    for partition, offset in connection.execute("SELECT partition, offset FROM falls ORDER BY partition, offset"):
        found[partition].append(offset)
    return found


def _first_at(connection: sqlite3.Connection, partition: int, bounds: Sequence[int], micros: int, limit: int) -> int:
    """The first offset at or after `micros`. Between two `bounds` timestamps never fall; those above `limit` are wrong."""

    def first(low: int, high: int, at_least: int) -> int:
        while low < high:
            middle = (low + high) // 2
            row = connection.execute("SELECT timestamp FROM records WHERE id = ?", (partition * _SPAN + middle,)).fetchone()
            low, high = (low, middle) if row and row[0] >= at_least else (middle + 1, high)
        return low

    unknown: int | None = None
    """The first of the records before this stretch whose time is unknown."""
    for low, high in pairwise(bounds):
        wrong = first(low, high, limit + 1)
        found = first(low, wrong, micros)
        if found < wrong:
            return found if found > low or unknown is None else unknown
        if found > low:
            unknown = None
        if wrong < high and unknown is None:
            unknown = wrong
    return bounds[-1] if unknown is None else unknown


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Pause = Callable[[timedelta], Awaitable[None]]


async def _sleep(duration: timedelta) -> None:
    await asyncio.sleep(duration.total_seconds())


class LogSystem:
    """The log as a stream system. Its streams have no retention: every one is kept. `trim_portion`: records of each partition that one
    transaction of a trim deletes at most; `pause` waits between two of them."""

    def __init__(self, directory: Path, clock: Clock | None = None, trim_portion: int = TRIM_PORTION, pause: Pause = _sleep) -> None:
        self.log = Log(directory)
        self._clock = clock or SystemClock()
        self._trim_portion = trim_portion
        self._pause = pause

    async def partitions(self, stream: str) -> int:
        return await to_thread(self.log.partitions, stream)

    async def identity(self, stream: str) -> str | None:
        return await to_thread(self.log.identity, stream)

    async def create(self, stream: str, partitions: int, *, kept: bool = False) -> None:
        await to_thread(self.log.create, stream, partitions)

    async def earliest(self, stream: str) -> Offsets:
        return await to_thread(self.log.earliest, stream)

    @property
    def transactional(self) -> bool:
        return False

    async def abort(self, stream: str, job: str, stage: str, task: str) -> None:
        """An append that is interrupted leaves nothing."""

    async def open_transactions(self, stream: str, offsets: Offsets) -> Mapping[int, str]:
        return {}

    async def readable(self, stream: str) -> Offsets:
        return await self.latest(stream)

    async def latest(self, stream: str) -> Offsets:
        return await to_thread(self.log.latest, stream)

    async def at_time(self, stream: str, when: datetime) -> Offsets:
        now = max(self._clock.now(), when)
        return await to_thread(self.log.at_time, stream, (when - _EPOCH) // _MICROSECOND, (now - _EPOCH) // _MICROSECOND)

    async def trim(self, stream: str, before: Offsets) -> int:
        """Trim in portions. After each one, writers get as much time as it took."""
        gone = 0
        while True:
            began = self._clock.elapsed()
            portion = await to_thread(self.log.trim, stream, before, self._trim_portion)
            gone += portion
            if portion < self._trim_portion:
                return gone
            await self._pause(max(_TRIM_PAUSE, timedelta(seconds=self._clock.elapsed() - began)))

    def connection(self) -> Mapping[str, str]:
        return {"type": "log", "path": str(self.log.directory)}

    async def close(self) -> None:
        """Nothing is held open between calls."""

    async def fences(self) -> Mapping[str, int]:
        """See `Log.fences`."""
        return await to_thread(self.log.fences)

    async def streams(self) -> Sequence[str]:
        return await to_thread(self.log.streams)

    async def grow(self, stream: str, partitions: int) -> None:
        await to_thread(self.log.grow, stream, partitions)

    async def append(self, stream: str, batches: AsyncIterable[Sequence[KeyValue]]) -> int:
        """Each batch is one transaction."""
        await self.partitions(stream)
        lineage = Lineage(f"terminal-{new_uuid()}")
        writer, count = Writer(lineage, lineage, Generation(1)), 0
        async for batch in batches:
            records = [Record(value, key) for key, value in batch]
            micros = (self._clock.now() - _EPOCH) // _MICROSECOND
            await to_thread(self.log.append, stream, records, writer=writer, batch=count, now_micros=micros)
            count += len(records)
        return count

    async def records(self, stream: str, starts: Offsets) -> AsyncGenerator[StreamRecord, None]:
        ends = await self.latest(stream)
        headers = await to_thread(self.log.headers, stream)
        for partition, start in starts.items():
            at = start
            while rows := await to_thread(self._chunk, stream, partition, at, ends[partition]):
                for offset, micros, key, value, headers_id in rows:
                    yield StreamRecord(partition, offset, _EPOCH + micros * _MICROSECOND, key, value, headers[headers_id])
                at = rows[-1][0] + 1

    def _chunk(self, stream: str, partition: int, start: int, end: int) -> Sequence[Row]:
        with closing(self.log.read(stream, partition, start, end)) as chunks:
            return next(chunks, [])
