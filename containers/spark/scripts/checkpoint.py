"""The checkpoint of a script's query: on any file system that Spark can write, as `file:/…`, `hdfs://…` and `s3a://…`.

A checkpoint is locked when no query may start on it: after a flush, a query would drop all its input as late. The lock is an entry of the
offset log with a number that no batch reaches. A query reads the newest entry when it starts. This one is no entry: Spark fails, and its
error contains the text. So the lock also works for a query that is started without Sluice.

    offsets/<committed + 1,000,000>   the lock: one line, that says why
    drain.json                        {"uuid": drain, "batch": last}, written before the lock; see `containers.state.checkpoint`
    begin.json                        {"topic": {"partition": offset}}: where the first query of a new checkpoint begins
    sources/<number>/0                where a source begins if there is no batch yet: Spark's file, in the format of its Kafka source;
                                      <name> in place of <number> if the source has a name

The format of `sources` is that of Spark's `KafkaSourceInitialOffsetWriter`: a zero byte, "v1", and the offsets as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from containers.errors import CheckpointUnreadable
from containers.spark.jvm import java
from containers.state.checkpoint import DRAIN_MARKER, CheckpointInfo
from sluice.core.ids import Lineage
from sluice.randomness import new_uuid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offsets = Mapping[str, Mapping[str, int]]
"""Kafka's offsets as Spark writes them: topic -> partition -> next offset."""

BEGIN = "begin.json"

LOCK_AFTER = 1_000_000
"""How far the lock is above the last batch. Spark lists all numbers up to it when a query starts, so it must not be much larger."""


def url_of(directory: Path) -> str:
    """The URL of a directory of this machine, for Spark and for Hadoop's `Path`: they do not decode it, so nothing is encoded. The path
    must be absolute."""
    return f"file://{directory}"


class ScriptCheckpoint:
    """`location`: the URL of the checkpoint. Each method needs some calls to the JVM, and raises CheckpointUnreadable if the file system
    fails."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self.location = location.rstrip("/")
        self._path = java(spark, "org.apache.hadoop.fs.Path")
        self._files = self._path(location).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    # --- files -----------------------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        with self._access(name):
            path = self._path(f"{self.location}/{name}")
            if not self._files.exists(path):
                return None
            stream = self._files.open(path)
            try:
                return bytes(java(self._spark, "org.apache.commons.io.IOUtils").toByteArray(stream))
            finally:
                stream.close()

    def write(self, name: str, content: bytes) -> None:
        """Replace the content of a file."""
        with self._access(name):
            stream = self._files.create(self._path(f"{self.location}/{name}"), True)
            try:
                stream.write(content)
            finally:
                stream.close()

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        with self._access(name):
            self._files.delete(self._path(f"{self.location}/{name}"), False)

    def copy_to(self, directory: Path) -> None:
        """Copy all files to a directory of this machine, which must not exist."""
        with self._access("*"):
            to, source = self._path(url_of(directory)), self._path(self.location)
            conf = self._spark._jsparkSession.sessionState().newHadoopConf()
            java(self._spark, "org.apache.hadoop.fs.FileUtil").copy(self._files, source, to.getFileSystem(conf), to, False, conf)

    def numbers(self, directory: str) -> Sequence[int]:
        """The entries of a log, in order."""
        return sorted(int(name) for name in self._names(directory) if name.isdecimal())

    def _names(self, directory: str) -> Sequence[str]:
        with self._access(directory):
            path = self._path(f"{self.location}/{directory}")
            found = self._files.listStatus(path) if self._files.exists(path) else ()
            return [str(each.getPath().getName()) for each in found]

    def newest_of(self, log: str) -> int:
        """The number of the newest entry of a log of a sink, which Spark compacts; -1 for none."""
        return max(
            (int(name.removesuffix(".compact")) for name in self._names(log) if name.removesuffix(".compact").isdecimal()), default=-1
        )

    @contextmanager
    def _access(self, name: str) -> Iterator[None]:
        try:
            yield
        except Py4JError as error:
            cause = getattr(error, "java_exception", None)
            raise CheckpointUnreadable(f"{self.location}/{name}: {cause.toString() if cause is not None else error}") from error

    # --- the logs of batches ---------------------------------------------------------------------------------------

    def inspect(self) -> CheckpointInfo | None:
        """The lineage and the newest batches; None for a directory without a checkpoint. Spark plans one batch at a time, so a higher entry
        of the offset log is a lock."""
        metadata = self.read("metadata")
        if metadata is None:
            return None
        try:
            lineage = Lineage(str(json.loads(metadata)["id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointUnreadable(f"{self.location}/metadata is not the metadata of a checkpoint: {error}") from error
        committed = self._newest_batch()
        planned = max((batch for batch in self.numbers("offsets") if batch <= committed + 1), default=-1)
        return CheckpointInfo(lineage, planned, committed)

    def read_offset_log(self, batch: int) -> str:
        found = self.read(f"offsets/{batch}")
        if found is None:
            raise CheckpointUnreadable(f"{self.location}/offsets/{batch} does not exist; the batch is planned, so it should")
        return found.decode()

    def write_offset_log(self, batch: int, entry: str) -> None:
        self.write(f"offsets/{batch}", entry.encode())

    # --- the lock --------------------------------------------------------------------------------------------------

    def mark_emptied(self, drain: str, batch: int) -> None:
        """Record that the drain flushes the state after this batch, -1 for none, and lock the checkpoint. May be repeated."""
        if self.emptied_by() is None:
            self.write(DRAIN_MARKER, json.dumps({"uuid": drain, "batch": batch}).encode())
        self.lock(
            f"A query must not start on this checkpoint: drain {drain} has written out its state, and the query would drop new rows as "
            "late. Start the query with another checkpointLocation; app.checkpoint(NAME) of sluice.attach continues at the drained offsets."
        )

    def emptied_by(self) -> str | None:
        """The drain that has flushed the state, or has begun to; None if there is none. "" if the record of it cannot be read."""
        mark = self.read(DRAIN_MARKER)
        if mark is None:
            return None
        try:
            return str(json.loads(mark)["uuid"])
        except (ValueError, KeyError, TypeError):
            return ""

    def lock(self, why: str) -> None:
        """Make every later start of a query fail with `why`, which must not begin with "v". A query that runs is not affected. May be
        repeated."""
        if not self._locks():
            self.write(f"offsets/{self._newest_batch() + LOCK_AFTER}", f"{why}\n".encode())

    def unlock(self) -> None:
        for number in self._locks():
            self.delete(f"offsets/{number}")

    def _locks(self) -> Sequence[int]:
        return [number for number in self.numbers("offsets") if number >= LOCK_AFTER - 1 and number > self._newest_batch() + 1]

    def _newest_batch(self) -> int:
        return max(self.numbers("commits"), default=-1)

    # --- where a new checkpoint begins -----------------------------------------------------------------------------

    def begin_at(self, offsets: Offsets) -> None:
        """Let the first query of this new checkpoint begin at these offsets. It must be started in a session of `QueryStarts`, which calls
        `set_sources`; until then the checkpoint is locked. May be repeated."""
        if self.read("metadata") is None:  # Spark refuses an offset log without it
            self.write("metadata", json.dumps({"id": str(new_uuid())}).encode())
        self.lock(
            "The first query on this checkpoint must begin at the offsets of a drain, so start it in the session that was given to "
            "sluice.attach, and in the process that has called app.checkpoint."
        )
        self.write(BEGIN, json.dumps(offsets).encode())

    def begins_at(self) -> Offsets | None:
        """The offsets of `begin_at`, until `set_sources` was called."""
        found = self.read(BEGIN)
        if found is None:
            return None
        try:
            read: Any = json.loads(found)
            return {str(topic): {str(int(p)): int(offset) for p, offset in partitions.items()} for topic, partitions in read.items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise CheckpointUnreadable(f"{self.location}/{BEGIN}: {error}") from error

    def has_sources(self) -> bool:
        """Whether it is recorded where the sources begin."""
        return bool(self._names("sources"))

    def set_sources(self, sources: Mapping[str, Offsets]) -> None:
        """Write where each source of the first query begins, then remove the lock. The keys are the names of the sources, or the numbers of
        those that have none."""
        for name, offsets in sources.items():
            self.write(f"sources/{name}/0", b"\0v1\n" + json.dumps(offsets).encode())
        self.unlock()
        self.delete(BEGIN)
