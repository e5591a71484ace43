"""What a run asks for, as far as its job model hangs on it, and the model that it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.core.grouping import Assignment, Grouper, Previous, assign, check_co_partitioned
from coordinator.core.ids import JobName, ProcessorId, StageName, StreamId
from coordinator.core.model import JobModel, job_model
from coordinator.core.placement import Homes, place


@dataclass(frozen=True, slots=True)
class Plan:
    """A job model with the assignment to store beside it."""

    model: JobModel
    assignment: Previous


@dataclass(frozen=True, slots=True)
class Outline:
    """`reads`: stage -> the job's names of the streams that it reads; `bindings`: those names -> streams; `broadcast` are some of them.
    `grouping` names the grouper and its fold. `containers`: how many slots the run has, whether all of them are given tasks or not."""

    job: JobName
    reads: Mapping[StageName, Sequence[str]]
    bindings: Mapping[str, StreamId]
    broadcast: frozenset[str]
    grouping: str
    stateful: bool
    containers: int
    config: Mapping[str, str]

    @property
    def read(self) -> Sequence[str]:
        """The names that some stage reads."""
        return sorted({name for names in self.reads.values() for name in names})

    def planned(
        self,
        grouper: Grouper,
        counts: Mapping[str, int],
        previous: Previous,
        former: JobModel | None,
        processors: Sequence[ProcessorId],
        homes: Homes | None = None,
    ) -> Plan:
        """The job model for these partition counts, by the job's names of streams, with the tasks spread over `processors`.

        Raises the errors of grouping, co-partitioning and placement.
        """
        streams = {self.bindings[name]: counts[name] for name in self.read}
        broadcast = frozenset(self.bindings[name] for name in self.broadcast if name in self.read)
        made: Assignment = assign(grouper, previous, streams, broadcast, grouping=self.grouping, stateful=self.stateful)
        for stage, reads in self.reads.items():
            check_co_partitioned(stage, [self.bindings[name] for name in reads], made.baselines, made.owners)
        placement = place(made.tasks.keys(), processors, former.placement if former else {}, homes)
        changelog = {name: task.changelog_partition for name, task in former.tasks.items() if name in made.tasks} if former else {}
        config = {**self.config, "job.name": self.job, "job.container.count": str(self.containers)}
        return Plan(
            model=job_model(config, made.tasks, placement, changelog),
            assignment=Previous(tasks=made.owners, baselines=made.baselines, grouping=self.grouping),
        )
