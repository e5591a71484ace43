"""What a container has to do to run a new version of its run's job model: decided purely, from what it runs and what the version says.

A task that the version gives to another slot is released: its queries stop between batches, commit, and only then may the other container
acquire it. One with more partitions is acquired again, under its generation, and the queries that read the new ones start again. One that
is new to the slot is waited for in its own time. A task never gives a partition up while it runs: Spark does not start a query with fewer
partitions than its checkpoint has, so one that the version has not (somebody rolled it back) is read on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.core.ids import ProcessorId, Ssp, TaskName
from sluice.core.model import ContainerModel, JobModel
from sluice.core.placement import slots


@dataclass(frozen=True, slots=True)
class Adoption:
    """In terms of tasks. `release`: those that the slot has no more, held or waited for; `extend`: held ones, with the partitions that
    are new; `leave`: those that stay as they are, of which `beyond` read more than the version says; `acquire`: those that are new to the
    slot. `slot_gone`: the run has so many containers that this one is none of them."""

    version: int
    release: frozenset[TaskName] = frozenset()
    extend: Mapping[TaskName, frozenset[Ssp]] = field(default_factory=dict)
    leave: frozenset[TaskName] = frozenset()
    acquire: frozenset[TaskName] = frozenset()
    beyond: Mapping[TaskName, frozenset[Ssp]] = field(default_factory=dict)
    slot_gone: bool = False

    @property
    def nothing(self) -> bool:
        """Nothing is to be done but to tell that the version is run."""
        return not (self.release or self.extend or self.acquire or self.slot_gone)

    def __str__(self) -> str:
        parts = ["the slot is no more"] if self.slot_gone else []
        parts += [f"release {_names(self.release)}"] if self.release else []
        parts += [f"{task} reads {_ssps(ssps)} too" for task, ssps in sorted(self.extend.items())]
        parts += [f"acquire {_names(self.acquire)}"] if self.acquire else []
        parts += [f"{task} goes on reading {_ssps(ssps)}, which it cannot give up" for task, ssps in sorted(self.beyond.items())]
        return f"version {self.version}: {'; '.join(parts) or 'nothing changes here'}"


def adoption(
    version: int, model: JobModel, containers: int, slot: ProcessorId, runs: Mapping[TaskName, frozenset[Ssp]], waits: frozenset[TaskName]
) -> Adoption:
    """What the container of `slot` has to do to run this version, of a run with so many containers. `runs`: the tasks that it holds, and
    what they read; `waits`: those that it has asked for and not got yet, which come as they are then. A slot without tasks stays: they
    may be given back to it."""
    if slot not in slots(containers):
        return Adoption(version, release=frozenset(runs) | waits, slot_gone=True)
    wanted = {task.name: task.ssps for task in model.containers.get(slot, ContainerModel(slot, {})).tasks.values()}
    kept = runs.keys() & wanted.keys()
    extend = {task: wanted[task] - runs[task] for task in kept if wanted[task] - runs[task]}
    return Adoption(
        version,
        release=frozenset((runs.keys() | waits) - wanted.keys()),
        extend=extend,
        leave=frozenset((kept - extend.keys()) | (waits & wanted.keys())),
        acquire=frozenset(wanted.keys() - runs.keys() - waits),
        beyond={task: runs[task] - wanted[task] for task in kept if runs[task] - wanted[task]},
    )


def _names(tasks: frozenset[TaskName]) -> str:
    return ", ".join(sorted(tasks))


def _ssps(ssps: frozenset[Ssp]) -> str:
    return ", ".join(map(str, sorted(ssps)))
