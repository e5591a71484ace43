"""Port: a stream system, as a stage reads and writes it with Spark. Implemented by `systems.log` and `systems.kafka`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from containers.engine import Writes
from containers.state.checkpoint import PlannedBatches
from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, TaskName
from sluice.job import Delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Grant:
    """The identity under which a stage reads and writes, from the answer to the task's acquire."""

    job: str
    task: TaskName
    stage: StageName
    generation: Generation
    lineage: Lineage
    first_run: RunId
    starts: Mapping[Ssp, int]
    opening: bool = False
    """The query only runs the batch that adds new partitions (`containers.spark.replay`), and reads nothing."""
    confirm_owner: Callable[[], None] = lambda: None
    """See `Callbacks.confirm_owner`."""
    earlier_histories: Sequence[RunId] = ()
    """See `StageStart.earlier_histories`."""

    @property
    def owner(self) -> str:
        return f"{self.job}/{self.task}"

    @property
    def query(self) -> str:
        """The name of the query, which is unique in the container."""
        return f"{self.task}/{self.stage}"


class StreamEnds(Protocol):
    """The ends of streams, for one thread that asks often."""

    def latest(self, partitions: Mapping[str, Collection[int]]) -> Mapping[str, Mapping[int, int]]:
        """The offsets up to which a query can read now, by stream and partition; of these partitions at least, where they exist. Blocks.
        Raises StreamUnavailable, UnknownStream if one of the streams is unavailable."""
        ...

    def close(self) -> None: ...


class TaskSystem(Protocol):
    def read(self, grant: Grant, stream: str, starts: Mapping[int, int], max_rows: int) -> DataFrame:
        """The records of the partitions that are keys of `starts`, as a streaming DataFrame of the columns of `Task.read`.

        A query without a checkpoint starts at these offsets. A query with a checkpoint continues where the checkpoint ends, and starts
        partitions that are not in it at these offsets, or at their first record. A batch has about `max_rows` records at most. Progress
        reports offsets as {"stream": {"partition": next offset}}.
        """
        ...

    def append(
        self,
        grant: Grant,
        records: DataFrame,
        batch: int,
        stream: str,
        headers: Mapping[str, str],
        ready: Callable[[], None] = lambda: None,
        delivery: Delivery = Delivery.EXACTLY_ONCE,
        partitions: int | None = None,
    ) -> None:
        """Append a batch's `records` (key binary, value binary), each with the headers; equal keys share a partition. Blocks. `ready` is
        called before the first record becomes visible, and may wait. If it raises, nothing is appended. `partitions`: append to the first
        so many partitions, as if the stream had no more; None: to all. Raises StreamConflict if the system cannot do that.

        A batch that the grant's lineage has appended is not appended again, except with AT_LEAST_ONCE in a system that supports both. Its
        plan runs nevertheless, because its state must be committed. Raises LeaseLost if the system has fenced the grant off.
        """
        ...

    def ends(self, stream: str) -> Mapping[int, int]:
        """The present next offset of each partition. Blocks. Raises StreamUnavailable."""
        ...

    def stream_ends(self) -> StreamEnds:
        """For the thread that calls this."""
        ...

    def fence(self, grant: Grant, stream: str, delivery: Delivery | None, planned: Callable[[], PlannedBatches] = PlannedBatches) -> int:
        """Fence older generations of the task off the stream, if the system supports that with the delivery. Returns the last batch of the
        grant's lineage in the stream, -1 if the system knows none. `delivery`: None for a stream that the stage does not write through its
        task. `planned`: returns the batches of the checkpoint. Raises
        LeaseLost, and CorruptData if it is unknown whether the stream has one of them."""
        ...

    def writes(self, grant: Grant, stream: str, delivery: Delivery) -> Writes:
        """How the stage writes the stream, and what it has written since the session started. `delivery`: what it asked for. Any thread."""
        ...

    def renew(self) -> None:
        """Renew what would expire in the system. Called every few seconds while queries have nothing to read. Thread-safe."""
        ...

    def close(self) -> None:
        """Release connections. Called at the end of the session, when no query writes any more."""
        ...
