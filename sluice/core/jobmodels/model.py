"""The job model: which container runs which task, and which task reads which partition.

`plan_model` creates the model of a run, and the assignment that is stored with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.core.ids import ProcessorId, Ssp, TaskName
from sluice.core.jobmodels.grouping import Assignment, Grouper, PreviousAssignment, assign, check_co_partitioned
from sluice.core.jobmodels.placement import Homes, place
from sluice.core.jobmodels.spec import ATTACHED_TASK, JobKind, RunSpec


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
    """`changelog_partitions`: the number of changelog partitions that the job's tasks have got so far, including removed tasks. It is not
    part of the content hash."""

    config: Mapping[str, str]
    containers: Mapping[ProcessorId, ContainerModel]
    changelog_partitions: int = 0

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
        """SHA-256 of the model in a canonical format, so that equal models have equal hashes in every process."""
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
    changelog_partitions: int = 0,
) -> JobModel:
    """Build a model. Known tasks keep their `changelog` number. New ones get the next numbers from `changelog_partitions` on, in name order
    (as in Samza's JobModelCalculator), so that the changelog of a removed task is not reused. Containers and tasks are in name order, so
    that equal models serialise equally."""
    numbers = dict(changelog)
    free = max([changelog_partitions, *(number + 1 for number in numbers.values())])
    for name in sorted(tasks):
        if name not in numbers:
            numbers[name] = free
            free += 1
    by_slot: dict[ProcessorId, dict[TaskName, TaskModel]] = {pid: {} for pid in sorted(set(placement.values()))}
    for name in sorted(tasks):
        by_slot[placement[name]][name] = TaskModel(name, tasks[name], numbers[name])
    containers = {pid: ContainerModel(pid, held) for pid, held in by_slot.items()}
    return JobModel(config=dict(sorted(config.items())), containers=containers, changelog_partitions=free)


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A job model, and the assignment that is stored with it."""

    model: JobModel
    assignment: PreviousAssignment


def plan_model(
    spec: RunSpec,
    grouper: Grouper,
    previous: PreviousAssignment,
    former: JobModel | None,
    processors: Sequence[ProcessorId],
    homes: Homes | None = None,
) -> PlannedModel:
    """The job model of a run with the partition counts of `spec` and its tasks distributed over `processors`. `grouper`: that of `spec`.
    `former`: the job's last model.

    Raises the errors of grouping, co-partitioning and placement.
    """
    if spec.kind is JobKind.ATTACHED:
        return _attached_model(spec, previous, former, processors)
    streams = {each.id: each.partitions for each in spec.streams_read}
    broadcast = frozenset(each.id for each in spec.streams_read if each.broadcast)
    made: Assignment = assign(
        grouper,
        previous,
        streams,
        broadcast,
        grouping=spec.grouping,
        stateful=spec.stateful,
        stateless=spec.stateless_streams,
        broadcast_partitions={each.id: each.broadcast_partitions for each in spec.streams_read},
    )
    ids = spec.stream_ids
    for stage in spec.stages:
        check_co_partitioned(stage.name, [ids[name] for name in stage.reads], made.baselines, made.owners)
    placement = place(made.tasks.keys(), processors, former.placement if former else {}, homes)
    changelog = {name: task.changelog_partition for name, task in former.tasks.items() if name in made.tasks} if former else {}
    config = {**spec.config, "job.name": spec.job, "job.container.count": str(spec.containers)}
    return PlannedModel(
        model=job_model(config, made.tasks, placement, changelog, former.changelog_partitions if former else 0),
        assignment=previous.updated(made, spec.grouping),
    )


def _attached_model(
    spec: RunSpec, previous: PreviousAssignment, former: JobModel | None, processors: Sequence[ProcessorId]
) -> PlannedModel:
    """One task without partitions, in the first slot. The assignment is kept, because a job file of the same name may
    follow."""
    config = {**spec.config, "job.name": spec.job, "job.container.count": str(spec.containers)}
    return PlannedModel(
        model=job_model(
            config, {ATTACHED_TASK: frozenset()}, {ATTACHED_TASK: processors[0]}, {}, former.changelog_partitions if former else 0
        ),
        assignment=previous,
    )
