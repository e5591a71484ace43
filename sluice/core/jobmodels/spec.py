"""The spec of a run: the stage graph of its job, the streams to which the graph is bound, and the number of containers.

The API creates a `RunSpec` from a deploy request, and the store reads and writes it as JSON. All other code uses this class, which does no
I/O. Partition counts and identities come from the systems of the streams: see `with_counts` and `with_identities`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal

from sluice.core.errors import BadGraph, BadPlacement
from sluice.core.ids import JobName, ProcessorId, Ssp, StageName, StreamId, TaskName
from sluice.core.jobmodels.graph import Graph, Stage, chain
from sluice.core.jobmodels.placement import slots

Start = Literal["checkpoint", "drained", "earliest", "latest"] | datetime
"""Where a run starts to read; see `sluice.wire.runs.RunRequest`."""


class JobKind(StrEnum):
    """STAGES: a job file, whose stages the containers run. ATTACHED: a command that `sluice exec` runs. The coordinator does not know its
    streams and stages. It has one slot and one task. The owner of the task may run the command."""

    STAGES = "stages"
    ATTACHED = "attached"


ATTACHED_TASK = TaskName("Driver")
"""The one task of an attached job."""


class Role(StrEnum):
    INPUT = "input"
    INTERMEDIATE = "intermediate"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream of a run. `name` is the job's name for it.

    `partitions`: the number in the run's job model; 0 before the stream was looked up. `broadcast`: every task reads all partitions;
    `broadcast_partitions`: every task reads these, in order, and each of the others is read by one task.
    `identity`: distinguishes a stream from a later one of the same name; None if the system has no identities, or it was not looked up.
    `requested_stream`, `requested_partitions`: the values in the deploy request; None if it has none.
    """

    name: str
    role: Role
    id: StreamId
    partitions: int = 0
    broadcast: bool = False
    broadcast_partitions: tuple[int, ...] = ()
    identity: str | None = None
    requested_stream: str | None = None
    requested_partitions: int | None = None

    def read_by_all(self, partition: int) -> bool:
        """Whether every task reads the partition, each from its own offset."""
        return self.broadcast or partition in self.broadcast_partitions

    @property
    def requested_broadcast(self) -> bool | str:
        """The partitions in the format of a deploy request, see `sluice.wire.runs.InputBody`."""
        return broadcast_text(self.broadcast_partitions) or self.broadcast


MAX_PARTITIONS = 100_000

_BROADCAST = re.compile(r"#(?:([0-9]{1,6})|\[([0-9]{1,6})-([0-9]{1,6})\])")


def broadcast_partitions(text: str) -> tuple[int, ...]:
    """The partitions in the spelling of Apache Samza's `task.broadcast.inputs`, without the stream: "#0", "#[0-3]", "#0,#[4-5]". Raises
    BadGraph."""
    found: set[int] = set()
    for part in text.split(","):
        match = _BROADCAST.fullmatch(part.strip())
        first, last = (0, -1) if match is None else (int(match[1] or match[2]), int(match[1] or match[3]))
        if not first <= last < MAX_PARTITIONS:
            raise BadGraph(f"{text[:100]!r} does not name partitions to broadcast: write #0, #[0-3], or several of these with commas")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def broadcast_text(partitions: Sequence[int]) -> str:
    """The reverse of `broadcast_partitions`, for partitions in order."""
    spans: list[list[int]] = []
    for each in partitions:
        if spans and spans[-1][1] == each - 1:
            spans[-1][1] = each
        else:
            spans.append([each, each])
    return ",".join(f"#{first}" if first == last else f"#[{first}-{last}]" for first, last in spans)


@dataclass(frozen=True, slots=True)
class RunSpec:
    """`streams`: inputs, then intermediate streams, then outputs, each in the order of the request. Their names are unique once `check` has
    passed. `containers`: the number of slots. `scaled_to`: their ids, if these are not "0", "1", …
    (`sluice.core.jobmodels.placement.scaled`). The other fields are as in `sluice.wire.runs.RunRequest`."""

    job: JobName
    containers: int
    streams: tuple[StreamSpec, ...]
    stages: tuple[Stage, ...]
    grouper: str = "GroupByPartition"
    max_tasks: int | None = None
    stateful: bool = True
    start: Start = "checkpoint"
    config: Mapping[str, str] = field(default_factory=dict)
    scaled_to: tuple[ProcessorId, ...] = ()
    kind: JobKind = JobKind.STAGES

    def check(self) -> None:
        """Raises BadGraph, also when two names are bound to one stream, or a stage reads two streams of one name."""
        if self.kind is JobKind.ATTACHED:
            if self.streams or self.stages or self.containers != 1:
                raise BadGraph("an attached job has one container, no streams and no stages: its command has them")
            return
        names = {role: [each.name for each in self.streams if each.role is role] for role in Role}
        chain(Graph.declared(names[Role.INPUT], names[Role.INTERMEDIATE], names[Role.OUTPUT], self.stages))
        ids = self.stream_ids
        for stage in self.stages:
            if len({ids[name].stream for name in stage.reads}) < len(stage.reads):  # Spark keys a batch's offsets by stream name alone
                raise BadGraph(
                    f"stage {stage.name} reads two streams of one name, of different systems: bind one to a stream of another name"
                )
        bound = Counter(ids.values())
        for name, stream in ids.items():
            if bound[stream] > 1:
                raise BadGraph(f"{name!r} and another name are both bound to the stream {stream}: bind each to its own stream")

    # --- streams -----------------------------------------------------------------------------------------------------

    @property
    def stream_ids(self) -> Mapping[str, StreamId]:
        """The job's name of each stream -> the stream."""
        return {each.name: each.id for each in self.streams}

    @property
    def inputs(self) -> frozenset[StreamId]:
        return frozenset(each.id for each in self.streams if each.role is Role.INPUT)

    @property
    def intermediates(self) -> frozenset[StreamId]:
        return frozenset(each.id for each in self.streams if each.role is Role.INTERMEDIATE)

    @property
    def streams_read(self) -> Sequence[StreamSpec]:
        """The streams that some stage reads."""
        read = {name for stage in self.stages for name in stage.reads}
        return [each for each in self.streams if each.name in read]

    @property
    def stateless_streams(self) -> frozenset[StreamId]:
        """The streams that only stateless stages read. Their partitions may be assigned to any task."""
        kept = {name for stage in self.stages if stage.stateful for name in stage.reads}
        return frozenset(each.id for each in self.streams_read if each.name not in kept)

    @property
    def monitored(self) -> Sequence[StreamSpec]:
        """The inputs that some stage reads. A run grows with these. Intermediate streams are created by the coordinator and do not grow."""
        return [each for each in self.streams_read if each.role is Role.INPUT]

    def with_counts(self, counts: Mapping[str, int]) -> RunSpec:
        """The spec with other partition counts, by the job's names of the streams; other streams do not change."""
        return replace(self, streams=tuple(replace(each, partitions=counts.get(each.name, each.partitions)) for each in self.streams))

    def with_identities(self, identities: Mapping[StreamId, str | None]) -> RunSpec:
        """Streams without an entry do not change."""
        return replace(self, streams=tuple(replace(each, identity=identities.get(each.id, each.identity)) for each in self.streams))

    # --- stages ------------------------------------------------------------------------------------------------------

    @property
    def stage_names(self) -> Sequence[StageName]:
        return [stage.name for stage in self.stages]

    def reads(self, stage: StageName) -> frozenset[StreamId]:
        """The streams that the stage reads. Raises KeyError for a stage that the run does not have."""
        ids, reads = self.stream_ids, {each.name: each.reads for each in self.stages}
        return frozenset(ids[name] for name in reads[stage])

    def by_stage(self, ssps: Collection[Ssp]) -> Mapping[StageName, frozenset[Ssp]]:
        """The partitions among these that each stage reads, in the order of the stages. Stages that read none are omitted."""
        return self.stage_division()(ssps)

    def stage_division(self) -> Callable[[Collection[Ssp]], Mapping[StageName, frozenset[Ssp]]]:
        """`by_stage` for the partitions of many tasks: a function that looks up the streams of the stages only once."""
        ids = self.stream_ids
        streams = [(stage.name, {(ids[name].system, ids[name].stream) for name in stage.reads}) for stage in self.stages]

        def by_stage(ssps: Collection[Ssp]) -> Mapping[StageName, frozenset[Ssp]]:
            found = {}
            for stage, read in streams:
                if mine := frozenset(ssp for ssp in ssps if (ssp.system, ssp.stream) in read):
                    found[stage] = mine
            return found

        return by_stage

    @property
    def feeders(self) -> Mapping[StageName, frozenset[StageName]]:
        """Stage -> the stages that write the streams that it reads."""
        return {
            stage.name: frozenset(other.name for other in self.stages if not set(other.writes).isdisjoint(stage.reads))
            for stage in self.stages
        }

    # --- slots -------------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> Sequence[ProcessorId]:
        """The processor ids of the run."""
        return self.scaled_to or slots(self.containers)

    def with_slots(self, processors: Sequence[ProcessorId]) -> RunSpec:
        """Raises BadPlacement for an attached job with another number of slots than one."""
        if self.kind is JobKind.ATTACHED and len(processors) != 1:
            raise BadPlacement("an attached job has one container: it runs one command")
        usual = list(processors) == slots(len(processors))
        return replace(self, containers=len(processors), scaled_to=() if usual else tuple(processors))

    # --- the model ---------------------------------------------------------------------------------------------------

    @property
    def grouping(self) -> str:
        """The grouper and its fold, as stored with an assignment."""
        return self.grouper + (f"/{self.max_tasks}" if self.max_tasks else "")
