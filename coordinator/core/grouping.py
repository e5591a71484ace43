"""Which task reads which partition, and how the answer survives growth.

A grouper maps partitions to tasks without memory. For a stateful job the stored assignment then has the last word: a partition that
some task owned stays with it, and when a stream that began with n0 partitions now has n, a multiple of n0, partition p goes to the
task that owns p % n0. A producer that places a key by hash(key) % n thus finds the key's state in one task through any chain of
expansions: (h % n) % n0 == h % n0 whenever n0 divides n. That is why n0, the *baseline*, is stored and not counted from the tasks.

Format and names of the groupers: Apache Samza (GroupByPartition, GroupBySystemStreamPartition, AllSspToSingleTaskGrouper); the
expansion rule is SEP-5 with the baseline made explicit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.core.errors import BadGrouping, IncompatibleExpansion, NotCoPartitioned
from coordinator.core.ids import Ssp, StreamId, TaskName

Groups = Mapping[TaskName, frozenset[Ssp]]


@dataclass(frozen=True, slots=True)
class Previous:
    """What the last job model decided, as it was stored. `grouping` names the grouper and its fold; "" before the first."""

    tasks: Mapping[Ssp, TaskName] = field(default_factory=dict)
    baselines: Mapping[StreamId, int] = field(default_factory=dict)
    grouping: str = ""


class Grouper(Protocol):
    """Maps partitions to tasks. Every partition goes to exactly one task; equal arguments give equal answers."""

    def group(self, previous: Previous, ssps: frozenset[Ssp]) -> Groups: ...


def _grouped(named: Iterable[tuple[str, Ssp]]) -> Groups:
    groups: defaultdict[TaskName, set[Ssp]] = defaultdict(set)
    for name, ssp in named:
        groups[TaskName(name)].add(ssp)
    return {name: frozenset(groups[name]) for name in sorted(groups)}


@dataclass(frozen=True, slots=True)
class GroupByPartition:
    """Partition p of every stream goes to the task "Partition p"; with `max_tasks` = m, to "Partition (p % m)"."""

    max_tasks: int | None = None

    def group(self, previous: Previous, ssps: frozenset[Ssp]) -> Groups:
        fold = self.max_tasks
        return _grouped((f"Partition {s.partition % fold if fold else s.partition}", s) for s in ssps)


@dataclass(frozen=True, slots=True)
class GroupBySystemStreamPartition:
    """Every partition has a task of its own."""

    def group(self, previous: Previous, ssps: frozenset[Ssp]) -> Groups:
        return _grouped((f"SystemStreamPartition [{s.system}, {s.stream}, {s.partition}]", s) for s in ssps)


@dataclass(frozen=True, slots=True)
class AllSspToSingleTask:
    """One task reads everything."""

    def group(self, previous: Previous, ssps: frozenset[Ssp]) -> Groups:
        return _grouped(("Task-0", s) for s in ssps)


GROUPERS = ("GroupByPartition", "GroupBySystemStreamPartition", "AllSspToSingleTask")


def grouper_named(name: str, max_tasks: int | None) -> Grouper:
    """The grouper that a run asked for. Raises BadGrouping for an unknown name, or a fold that the grouper has not."""
    if max_tasks is not None and max_tasks < 1:
        raise BadGrouping(f"maxTasks is {max_tasks}: it must be at least 1")
    if max_tasks is not None and name != "GroupByPartition":
        raise BadGrouping(f"maxTasks folds the tasks of GroupByPartition; {name} has no partitions to fold")
    match name:
        case "GroupByPartition":
            return GroupByPartition(max_tasks)
        case "GroupBySystemStreamPartition":
            return GroupBySystemStreamPartition()
        case "AllSspToSingleTask":
            return AllSspToSingleTask()
    raise BadGrouping(f"unknown grouper {name!r}: choose one of {', '.join(GROUPERS)}, or name a class of your own as module:Class")


@dataclass(frozen=True, slots=True)
class Assignment:
    """Tasks with all that they read, and what to store of it: owners of the keyed partitions, and baselines."""

    tasks: Groups
    owners: Mapping[Ssp, TaskName]
    baselines: Mapping[StreamId, int]


def assign(
    grouper: Grouper,
    previous: Previous,
    counts: Mapping[StreamId, int],
    broadcast: frozenset[StreamId],
    *,
    grouping: str,
    stateful: bool,
) -> Assignment:
    """Group the partitions of `counts` (stream -> partitions) into tasks.

    A stateful job keeps `previous`; a stateless one regroups. Broadcast streams go to every task and never create one.
    Raises IncompatibleExpansion, or BadGrouping when nothing is left to make a task of or a stateful job changed its grouper.
    """
    keyed = {stream: n for stream, n in counts.items() if stream not in broadcast}
    ssps = frozenset(Ssp(s.system, s.stream, p) for s, n in keyed.items() for p in range(n))
    if not ssps:
        raise BadGrouping("no task can be made: the run has no inputs besides broadcast streams")
    kept = previous if stateful else Previous()
    if kept.grouping and kept.grouping != grouping:
        raise BadGrouping(
            f"this stateful job is grouped by {kept.grouping}; {grouping} would part keys from their state: drain it, or start afresh"
        )
    baselines = {stream: kept.baselines.get(stream, n) for stream, n in sorted(keyed.items())}
    for stream, n in sorted(keyed.items()):
        _check_growth(stream, baselines[stream], kept.tasks, n)
    plain = {ssp: task for task, group in grouper.group(kept, ssps).items() for ssp in group}
    owners = {ssp: _owner(ssp, kept.tasks, baselines[ssp.stream_id], plain) for ssp in sorted(ssps)}
    everywhere = frozenset(Ssp(s.system, s.stream, p) for s in broadcast if s in counts for p in range(counts[s]))
    tasks = {name: group | everywhere for name, group in _grouped((t, s) for s, t in owners.items()).items()}
    return Assignment(tasks=tasks, owners=owners, baselines=baselines)


def _owner(ssp: Ssp, kept: Mapping[Ssp, TaskName], baseline: int, plain: Mapping[Ssp, TaskName]) -> TaskName:
    first = Ssp(ssp.system, ssp.stream, ssp.partition % baseline)
    return kept.get(ssp) or kept.get(first) or plain[first]


def _check_growth(stream: StreamId, baseline: int, kept: Mapping[Ssp, TaskName], now: int) -> None:
    last = sum(1 for ssp in kept if ssp.stream_id == stream)
    if last == 0:
        return
    if now < last:
        raise IncompatibleExpansion(
            f"{stream} had {last} partitions and now has {now}: a stateful job cannot give partitions up; drain it and start afresh"
        )
    if now % baseline:
        raise IncompatibleExpansion(
            f"{stream} began with {baseline} partitions, had {last} and now has {now}, which is no multiple of {baseline}: "
            f"keys would leave their state; grow it to {-(-now // baseline) * baseline}, or drain the job"
        )


def check_co_partitioned(stage: str, reads: Sequence[StreamId], baselines: Mapping[StreamId, int], owners: Mapping[Ssp, TaskName]) -> None:
    """A stage that reads several keyed streams must meet equal keys in one task: the baselines are equal and so are the owners.

    Raises NotCoPartitioned, naming the streams and what to do.
    """
    keyed = [stream for stream in reads if stream in baselines]
    if len({baselines[stream] for stream in keyed}) > 1:
        told = ", ".join(f"{stream} has {baselines[stream]}" for stream in keyed)
        raise NotCoPartitioned(f"stage {stage} reads streams with unequal partition counts ({told}): route by the join key first")
    for p in range(baselines[keyed[0]] if len(keyed) > 1 else 0):
        tasks = Counter(owners[Ssp(s.system, s.stream, p)] for s in keyed)
        if len(tasks) > 1:
            raise NotCoPartitioned(
                f"stage {stage} reads {', '.join(map(str, keyed))}, but their partition {p} goes to different tasks "
                f"({', '.join(sorted(tasks))}): use GroupByPartition"
            )
