"""A system of streams as a stage's task sees it: reading and writing records with Spark, as a port.

`containers/spark/systems/log.py` and `containers/spark/systems/kafka.py` implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sluice.core.ids import Generation, Lineage, RunId, Ssp, StageName, TaskName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Grant:
    """What the acquire of a task gave one of its stages."""

    job: str
    task: TaskName
    stage: StageName
    generation: Generation
    lineage: Lineage
    origin: RunId
    starts: Mapping[Ssp, int]
    opening: bool = False
    """The query runs the one batch that makes new partitions known (`containers/spark/replay.py`), and reads nothing."""

    @property
    def owner(self) -> str:
        return f"{self.job}/{self.task}"


class TaskSystem(Protocol):
    def read(self, grant: Grant, stream: str, starts: Mapping[int, int], max_rows: int) -> DataFrame:
        """The records of the partitions that are keys of `starts`, as a streaming DataFrame of the columns of `Task.read`.

        A query without a checkpoint begins at these offsets; one with a checkpoint goes on where that ends, and begins partitions that it
        does not know there, or at their first record. A batch has about `max_rows` records at most. Progress spells offsets as
        {"stream": {"partition": next offset}}.
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
    ) -> None:
        """Append a batch's `records` (key binary, value binary), each with the headers; equal keys share a partition. Blocks. `ready` is
        called before the first record can be seen, as late as can be, since it waits; what it raises is passed on, and nothing is appended.

        Raises LeaseLost where the system can tell that the grant is over.
        """
        ...

    def ends(self, stream: str) -> Mapping[int, int]:
        """The next offset of each partition, now. Blocks. Raises StreamUnavailable."""
        ...

    def fence(self, grant: Grant, stream: str) -> int:
        """Shut out older generations of the task from the stream where the system can; the last batch of the grant's lineage in it, as
        far as the system knows, -1 for none. Raises LeaseLost."""
        ...
