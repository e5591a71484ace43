"""The embedded log as a Spark streaming source. Runs in the driver and in Spark's Python workers.

Offsets have the format of Kafka's source, {"stream": {"partition": next offset}}, so that one parser reads the progress of both. A batch is
planned from the offsets that Spark passes, never from the options: after a restart they are those of the offset log.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from containers.errors import OffsetsTrimmed
from containers.state.offsets.offsetlog import advance
from sluice.streams.log import Log, Row

COLUMNS = (
    "key binary, value binary, stream string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
"""The columns of `task.read`, for every system."""

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_MAX_ROWS_A_SLICE = 50_000

_READS_THAT_IMPORT = 3

Positions = dict[str, dict[str, int]]


@dataclass
class Slice(InputPartition):
    """[start, end) of one partition, read by one Spark task."""

    partition: int
    start: int
    end: int

    def __init__(self, partition: int, start: int, end: int) -> None:
        self.partition = partition
        self.start = start
        self.end = end


class LogStreamReader(DataSourceStreamReader):
    """Options: path, stream, starts ({"partition": first offset}: the partitions to read), maxRows."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._log = Log(Path(options["path"]))
        self._stream = options["stream"]
        self._starts = {int(p): int(offset) for p, offset in json.loads(options["starts"]).items()}
        self._max_rows = int(options["maxRows"]) if options.get("maxRows") else None

    def initialOffset(self) -> Positions:
        return self._spelled(self._starts)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._max_rows) if self._max_rows else ReadAllAvailable()

    def latestOffset(self, start: Positions, limit: ReadLimit) -> Positions:
        from_ = {p: start[self._stream].get(str(p), first) for p, first in self._starts.items()}
        return self._spelled(advance(from_, self._log.latest(self._stream), limit.max_rows if isinstance(limit, ReadMaxRows) else None))

    def reportLatestOffset(self) -> Positions:
        latest = self._log.latest(self._stream)
        return self._spelled({p: latest.get(p, first) for p, first in self._starts.items()})

    def _spelled(self, offsets: Mapping[int, int]) -> Positions:
        return {self._stream: {str(p): offset for p, offset in sorted(offsets.items())}}

    def partitions(self, start: Positions, end: Positions) -> Sequence[Slice]:
        earliest = self._log.earliest(self._stream)
        slices = []
        for name, high in end[self._stream].items():
            partition, low = int(name), start[self._stream].get(name, self._first(int(name), earliest))
            if low < high and low < earliest.get(partition, 0):
                raise self._trimmed(partition, low, earliest[partition])
            slices += [Slice(partition, at, min(at + _MAX_ROWS_A_SLICE, high)) for at in range(low, high, _MAX_ROWS_A_SLICE)]
        return slices

    def _first(self, partition: int, earliest: Mapping[int, int]) -> int:
        """The start of a partition that the previous batch did not have, because the stream has grown. Its start in the run does not
        change."""
        return self._starts.get(partition, earliest.get(partition, 0))

    def _trimmed(self, partition: int, low: int, high: int) -> OffsetsTrimmed:
        return OffsetsTrimmed(f"log stream {self._stream} partition {partition}: records {low} to {high} are needed and were deleted")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Slice)
        _keep_imports()
        headers: Mapping[int, Any] = {}
        next_ = partition.start
        for rows in self._log.read(self._stream, partition.partition, partition.start, partition.end):
            if rows[0][0] != next_:
                break
            next_ = rows[-1][0] + 1
            if not {row[4] for row in rows} <= headers.keys():
                headers = self._log.headers(self._stream)
            yield _record_batch(self._stream, partition.partition, rows, headers)
        if next_ != partition.end:
            raise self._trimmed(partition.partition, next_, partition.end)


_reads = count()


def _keep_imports() -> None:
    """PySpark's daemon collects garbage after every task of a worker, over all objects that were ever imported: most of the worker's CPU
    time for a small batch. After this call, only newer objects are examined. The first reads still import modules."""
    if next(_reads) < _READS_THAT_IMPORT:
        gc.freeze()


def _record_batch(stream: str, partition: int, rows: Sequence[Row], headers: Mapping[int, Mapping[str, str]]) -> pa.RecordBatch:
    offsets, timestamps, keys, values, header_ids = zip(*rows, strict=True)
    used = sorted(set(header_ids))
    if len(used) == 1:
        positions = pa.repeat(pa.scalar(0, pa.int32()), len(rows))
    else:
        position = {id_: index for index, id_ in enumerate(used)}
        positions = pa.array([position[id_] for id_ in header_ids], pa.int32())
    distinct = pa.array([[{"key": k, "value": v.encode()} for k, v in headers[id_].items()] for id_ in used], _HEADERS)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.repeat(pa.scalar(stream), len(rows)),
            pa.repeat(pa.scalar(partition, pa.int32()), len(rows)),
            pa.array(offsets, pa.int64()),
            pa.array(timestamps, pa.timestamp("us", tz="UTC")),
            distinct.take(positions),
        ],
        names=["key", "value", "stream", "partition", "offset", "timestamp", "headers"],
    )


class LogSource(DataSource):
    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: StructType) -> LogStreamReader:
        return LogStreamReader(self.options)


def register(spark: SparkSession, reader: str) -> str:
    """Register the log as a data source for one reader (a query's stream); the name of its format. A restart registers it again.

    Spark keeps one java.util.HashMap of environment variables for each registered source, writes into it from the thread of every query
    that reads it, and serialises it with every task. Queries that start concurrently corrupt a shared one (its size is larger than the
    number of its entries): from then on every task of these queries fails with OptionalDataException.
    """
    name = f"sluice-log-{hashlib.sha256(reader.encode()).hexdigest()[:16]}"
    spark.dataSource.register(type("LogSource", (LogSource,), {"name": classmethod(lambda _: name)}))
    return name
