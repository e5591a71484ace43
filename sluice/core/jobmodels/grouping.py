"""Which task reads which partition, also after a stream has grown.

A grouper maps partitions to tasks and keeps no state. For a stateful job the stored assignment takes precedence: a partition stays with the
task that owned it. When a stream that started with n0 partitions has n, a multiple of n0, partition p goes to the task that owns p % n0.
If producers place a key by hash(key) % n, the key's state is then in one task through any chain of expansions, because
(h % n) % n0 == h % n0 whenever n0 divides n. This requires n0, the *baseline*, which is stored and not derived from the tasks. Owners and
baselines of a stream are kept while a job does not read it, as long as the state of its keys may be used again; see
`PreviousAssignment`.

Format and names of the groupers: Apache Samza (GroupByPartition, GroupBySystemStreamPartition, AllSspToSingleTaskGrouper). The
expansion rule is SEP-5 with an explicit baseline.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from sluice.core.errors import BadGrouping, IncompatibleExpansion, NotCoPartitioned
from sluice.core.ids import Ssp, StreamId, TaskName

Groups = Mapping[TaskName, frozenset[Ssp]]


@dataclass(frozen=True, slots=True)
class PreviousAssignment:
    """The stored assignment of a job: that of the last job model, and those of streams that only earlier models read. `grouping`: the
    grouper and its fold; "" before the first model."""

    tasks: Mapping[Ssp, TaskName] = field(default_factory=dict)
    baselines: Mapping[StreamId, int] = field(default_factory=dict)
    grouping: str = ""

    def owners(self, stream: StreamId) -> frozenset[TaskName]:
        """The tasks that have read the stream."""
        return frozenset(task for ssp, task in self.tasks.items() if ssp.stream_id == stream)

    def without(self, streams: Collection[StreamId]) -> PreviousAssignment:
        """A copy without these streams."""
        return PreviousAssignment(
            tasks={ssp: task for ssp, task in self.tasks.items() if ssp.stream_id not in streams},
            baselines={stream: count for stream, count in self.baselines.items() if stream not in streams},
            grouping=self.grouping,
        )

    def updated(self, made: Assignment, grouping: str) -> PreviousAssignment:
        """The assignment to store with a model that has the assignment `made`. Streams that the model does not read are kept, because a
        later model of the same history may read them again, and the state of their keys is still in the tasks that have read them."""
        others = self.without(made.baselines.keys())
        return PreviousAssignment({**others.tasks, **made.owners}, {**others.baselines, **made.baselines}, grouping)


class Grouper(Protocol):
    """Maps partitions to tasks. Every partition goes to exactly one task; equal arguments give equal results."""

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Groups: ...


def _grouped(named: Iterable[tuple[str, Ssp]]) -> Groups:
    groups: defaultdict[TaskName, set[Ssp]] = defaultdict(set)
    for name, ssp in named:
        groups[TaskName(name)].add(ssp)
    return {name: frozenset(groups[name]) for name in sorted(groups)}


@dataclass(frozen=True, slots=True)
class GroupByPartition:
    """Partition p of every stream goes to the task "Partition p"; with `max_tasks` = m, to "Partition (p % m)"."""

    max_tasks: int | None = None

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Groups:
        fold = self.max_tasks
        return _grouped((f"Partition {s.partition % fold if fold else s.partition}", s) for s in ssps)


@dataclass(frozen=True, slots=True)
class GroupBySystemStreamPartition:
    """Every partition has its own task."""

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Groups:
        return _grouped((f"SystemStreamPartition [{s.system}, {s.stream}, {s.partition}]", s) for s in ssps)


@dataclass(frozen=True, slots=True)
class AllSspToSingleTask:
    """One task reads everything."""

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Groups:
        return _grouped(("Task-0", s) for s in ssps)


GROUPERS = ("GroupByPartition", "GroupBySystemStreamPartition", "AllSspToSingleTask")


def grouper_named(name: str, max_tasks: int | None) -> Grouper:
    """The grouper of a run. Raises BadGrouping for an unknown name, or for `max_tasks` with a grouper that does not support it."""
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
    raise BadGrouping(f"unknown grouper {name!r}: choose one of {', '.join(GROUPERS)}, or name your own class as module:Class")


@dataclass(frozen=True, slots=True)
class Assignment:
    """Tasks with all partitions that they read, and the stored part: owners of the keyed partitions, and baselines."""

    tasks: Groups
    owners: Mapping[Ssp, TaskName]
    baselines: Mapping[StreamId, int]


def assign(
    grouper: Grouper,
    previous: PreviousAssignment,
    counts: Mapping[StreamId, int],
    broadcast: frozenset[StreamId],
    *,
    grouping: str,
    stateful: bool,
    stateless: frozenset[StreamId] = frozenset(),
    broadcast_partitions: Mapping[StreamId, Sequence[int]] | None = None,
) -> Assignment:
    """Group the partitions of `counts` (stream -> partitions) into tasks.

    A stateful job keeps `previous`; a stateless one regroups. `stateless`: the streams of a stateful job that only stateless stages read;
    they may have any number of partitions. Broadcast streams, and the `broadcast_partitions` of other streams, go to every task and never
    create one. Raises IncompatibleExpansion, or BadGrouping if there is no partition for a task, a partition to broadcast does not exist,
    or a stateful job changed its grouper.
    """
    everywhere = _everywhere(counts, broadcast, broadcast_partitions or {})
    ssps = frozenset(Ssp(s.system, s.stream, p) for s, n in counts.items() for p in range(n)) - everywhere
    keyed = {stream: counts[stream] for stream in {ssp.stream_id for ssp in ssps}}
    if not ssps:
        raise BadGrouping("there are no tasks: all inputs of the run are broadcast streams")
    kept = previous if stateful else PreviousAssignment()
    if kept.grouping and kept.grouping != grouping:
        raise BadGrouping(
            f"this stateful job is grouped by {kept.grouping}; {grouping} would separate keys from their state: "
            "drain it, or start with empty state"
        )
    baselines = {stream: kept.baselines.get(stream, n) for stream, n in sorted(keyed.items())}
    for stream, n in sorted(keyed.items()):
        if broadcast_partitions and broadcast_partitions.get(stream):
            _check_no_growth(stream, baselines[stream], n)
        else:
            _check_growth(stream, baselines[stream], kept.tasks, n, keyed=stream not in stateless)
    plain = {ssp: task for task, group in grouper.group(kept, ssps).items() for ssp in group}
    owners = {ssp: _owner(ssp, kept.tasks, baselines[ssp.stream_id], plain) for ssp in sorted(ssps)}
    tasks = {name: group | everywhere for name, group in _grouped((t, s) for s, t in owners.items()).items()}
    return Assignment(tasks=tasks, owners=owners, baselines=baselines)


def _everywhere(
    counts: Mapping[StreamId, int], broadcast: frozenset[StreamId], broadcast_partitions: Mapping[StreamId, Sequence[int]]
) -> frozenset[Ssp]:
    """The partitions that every task reads. Raises BadGrouping."""
    found = {Ssp(s.system, s.stream, p) for s in broadcast if s in counts for p in range(counts[s])}
    for stream, partitions in broadcast_partitions.items():
        if stream in counts and partitions and max(partitions) >= counts[stream]:
            raise BadGrouping(f"{stream} has {counts[stream]} partitions, so its partition {max(partitions)} cannot be broadcast")
        found |= {Ssp(stream.system, stream.stream, p) for p in partitions if stream in counts}
    return frozenset(found)


def _check_no_growth(stream: StreamId, baseline: int, now: int) -> None:
    """Refuse growth, because keys of a broadcast partition could move to one that a single task reads. Raises IncompatibleExpansion."""
    if now != baseline:
        raise IncompatibleExpansion(
            f"{stream} began with {baseline} partitions and now has {now}: a stateful job cannot follow, because single partitions of it "
            "are broadcast; start with empty state"
        )


def _owner(ssp: Ssp, kept: Mapping[Ssp, TaskName], baseline: int, plain: Mapping[Ssp, TaskName]) -> TaskName:
    first = Ssp(ssp.system, ssp.stream, ssp.partition % baseline)
    return kept.get(ssp) or kept.get(first) or plain[first]


def _check_growth(stream: StreamId, baseline: int, kept: Mapping[Ssp, TaskName], now: int, *, keyed: bool) -> None:
    last = sum(1 for ssp in kept if ssp.stream_id == stream)
    if last == 0:
        return
    if now < last:
        raise IncompatibleExpansion(
            f"{stream} had {last} partitions and now has {now}: a stateful job cannot give partitions up; "
            "drain it and start with empty state"
        )
    if keyed and now % baseline:
        raise IncompatibleExpansion(
            f"{stream} began with {baseline} partitions, had {last} and now has {now}, which is not a multiple of {baseline}: "
            f"keys would be separated from their state; grow it to {-(-now // baseline) * baseline}, or drain the job; if the stages "
            "that read it keep no state, declare them with stateful=False and deploy the job again"
        )


def check_co_partitioned(stage: str, reads: Sequence[StreamId], baselines: Mapping[StreamId, int], owners: Mapping[Ssp, TaskName]) -> None:
    """A stage that reads several keyed streams must see equal keys in one task: baselines and owners must be equal. Raises
    NotCoPartitioned."""
    keyed = [stream for stream in reads if stream in baselines]
    if len({baselines[stream] for stream in keyed}) > 1:
        found = ", ".join(f"{stream} has {baselines[stream]}" for stream in keyed)
        raise NotCoPartitioned(f"stage {stage} reads streams with unequal partition counts ({found}): route by the join key first")
    for p in range(baselines[keyed[0]] if len(keyed) > 1 else 0):
        ssps = [Ssp(s.system, s.stream, p) for s in keyed]
        tasks = Counter(owners[ssp] for ssp in ssps if ssp in owners)  # the others are broadcast
        if len(tasks) > 1:
            raise NotCoPartitioned(
                f"stage {stage} reads {', '.join(map(str, keyed))}, but their partition {p} goes to different tasks "
                f"({', '.join(sorted(tasks))}): use GroupByPartition"
            )


_DOTTED = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_CLASS = re.compile(rf"({_DOTTED}):([A-Za-z_][A-Za-z0-9_]*)")
_ALLOWED = re.compile(rf"{_DOTTED}:(?:[A-Za-z_][A-Za-z0-9_]*|\*)")

_TASK_NAME = re.compile(r"(?![. ])[ -.0-~]{1,200}(?<! )")
"""Printable ASCII without a slash, because a task's name is part of URLs."""


@dataclass(frozen=True, slots=True)
class GrouperName:
    """`module:Class`."""

    module: str
    of_class: str

    @staticmethod
    def parse(name: str) -> GrouperName:
        """Raises BadGrouping."""
        found = _CLASS.fullmatch(name)
        if found is None:
            raise BadGrouping(f"{name[:200]!r} is not a grouper: name your own class as module:Class")
        return GrouperName(*found.groups())

    def __str__(self) -> str:
        return f"{self.module}:{self.of_class}"


def is_allowance(text: str) -> bool:
    """Whether the text is `module:Class`, or `module:*` for all classes that a module defines."""
    return _ALLOWED.fullmatch(text) is not None


class _Forwards(frozenset[Ssp]):
    """A set that iterates in order."""

    def __iter__(self) -> Iterator[Ssp]:
        return iter(sorted(super().__iter__()))


class _Backwards(frozenset[Ssp]):
    """A set that iterates in reverse order. The order of a plain set differs between processes, so a grouper must not depend on it."""

    def __iter__(self) -> Iterator[Ssp]:
        return iter(sorted(super().__iter__(), reverse=True))


@dataclass(frozen=True, slots=True)
class CheckedGrouper:
    """A user-defined grouper, created by `make`. It is called twice, with partitions in both orders, and the results are validated. Raises
    BadGrouping."""

    name: str
    make: Callable[[], Grouper]

    def group(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Groups:
        kept = PreviousAssignment(MappingProxyType(dict(previous.tasks)), MappingProxyType(dict(previous.baselines)), previous.grouping)
        groups = self._answer(kept, _Forwards(ssps))
        if self._answer(kept, _Backwards(ssps)) != groups:
            raise BadGrouping(f"{self.name} returned two different results: equal arguments must give equal tasks")
        return groups

    def _answer(self, previous: PreviousAssignment, ssps: frozenset[Ssp]) -> Groups:
        try:
            return self._checked(self.make().group(previous, ssps), ssps)
        except BadGrouping:
            raise
        except (Exception, SystemExit) as error:
            raise BadGrouping(f"{self.name} failed: {type(error).__name__}: {error}") from error

    def _checked(self, answer: object, ssps: frozenset[Ssp]) -> Groups:
        if not isinstance(answer, Mapping):
            raise BadGrouping(f"{self.name} must return a mapping of task names to partitions, not a {type(answer).__name__}")
        owners: dict[Ssp, TaskName] = {}
        groups = {self._name(name): self._partitions(name, members) for name, members in answer.items()}
        for name, members in groups.items():
            for ssp in members:
                if ssp not in ssps:
                    raise BadGrouping(f"{self.name} gives task {name!r} {ssp}, which it was not given")
                if ssp in owners:
                    raise BadGrouping(f"{self.name} gives {ssp} twice, to task {owners[ssp]!r} and to task {name!r}")
                owners[ssp] = name
        if len(owners) < len(ssps):
            left = sorted(ssps - owners.keys())
            raise BadGrouping(f"{self.name} gives {len(left)} of {len(ssps)} partitions to no task: {', '.join(map(str, left[:5]))}")
        return {name: frozenset(groups[name]) for name in sorted(groups)}

    def _name(self, name: object) -> TaskName:
        if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):
            raise BadGrouping(
                f"{self.name} names a task {str(name)[:80]!r}: use a string of 1 to 200 printable ASCII characters without a slash, "
                "that neither begins with a dot nor begins or ends with a space"
            )
        return TaskName(str(name))

    def _partitions(self, name: object, members: object) -> list[Ssp]:
        found = list(members) if isinstance(members, Iterable) else None
        if found is None or not all(isinstance(each, Ssp) for each in found):
            raise BadGrouping(f"{self.name} must give task {name!r} a collection of Ssp, not {str(members)[:80]!r}")
        if not found:
            raise BadGrouping(f"{self.name} gives task {name!r} no partition")
        return found
