"""The job model: which container runs which task, and which task reads which partition.

A `ModelSpec` is the part of a run's request on which its job model depends. `ModelSpec.plan` makes a `PlannedModel` of it, which holds the
model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.core.grouping import Assignment, Grouper, Previous, assign, check_co_partitioned
from sluice.core.ids import JobName, ProcessorId, Ssp, StageName, StreamId, TaskName
from sluice.core.placement import Homes, place


@dataclass(frozen=True, slots=True)
class TaskModel:
    """A task and the partitions that it reads, broadcast ones included. `changelog_partition` is the task's number in Samza's format."""

    name: TaskName
    ssps: frozenset[Ssp]
    changelog_partition: int


@dataclass(frozen=True, slots=True)
class ContainerModel:
    processor_id: ProcessorId
    tasks: Mapping[TaskName, TaskModel]


@dataclass(frozen=True, slots=True)
class JobModel:
    config: Mapping[str, str]
    containers: Mapping[ProcessorId, ContainerModel]

    def task(self, name: TaskName) -> tuple[ProcessorId, TaskModel] | None:
        """The task of that name and its slot, or None."""
        for processor_id, container in self.containers.items():
            if name in container.tasks:
                return processor_id, container.tasks[name]
        return None

    @property
    def tasks(self) -> Mapping[TaskName, TaskModel]:
        return {name: task for container in self.containers.values() for name, task in container.tasks.items()}

    @property
    def task_count(self) -> int:
        return sum(len(container.tasks) for container in self.containers.values())

    @property
    def placement(self) -> Mapping[TaskName, ProcessorId]:
        return {name: pid for pid, container in self.containers.items() for name in container.tasks}

    def content_hash(self) -> str:
        """SHA-256 of the model in a canonical spelling: equal models have equal hashes in every process."""
        canonical = {
            "config": dict(self.config),
            "containers": {
                pid: {
                    name: [sorted((s.system, s.stream, s.partition) for s in task.ssps), task.changelog_partition]
                    for name, task in container.tasks.items()
                }
                for pid, container in self.containers.items()
            },
        }
        return hashlib.sha256(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def job_model(
    config: Mapping[str, str],
    tasks: Mapping[TaskName, frozenset[Ssp]],
    placement: Mapping[TaskName, ProcessorId],
    changelog: Mapping[TaskName, int],
) -> JobModel:
    """Put a model together. Known tasks keep their `changelog` number, new ones take the next free ones in name order
    (as Samza's JobModelCalculator does). Containers and tasks are in name order, so that equal models serialise equally."""
    numbers = dict(changelog)
    free = max(numbers.values(), default=-1) + 1
    for name in sorted(tasks):
        if name not in numbers:
            numbers[name] = free
            free += 1
    by_slot: dict[ProcessorId, dict[TaskName, TaskModel]] = {pid: {} for pid in sorted(set(placement.values()))}
    for name in sorted(tasks):
        by_slot[placement[name]][name] = TaskModel(name, tasks[name], numbers[name])
    containers = {pid: ContainerModel(pid, held) for pid, held in by_slot.items()}
    return JobModel(config=dict(sorted(config.items())), containers=containers)


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A job model with the assignment to store beside it."""

    model: JobModel
    assignment: Previous


@dataclass(frozen=True, slots=True)
class ModelSpec:
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
    ) -> PlannedModel:
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
        return PlannedModel(
            model=job_model(config, made.tasks, placement, changelog),
            assignment=Previous(tasks=made.owners, baselines=made.baselines, grouping=self.grouping),
        )
