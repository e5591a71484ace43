"""Which container runs which task: balanced, and with as few moves as balance allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from coordinator.core.errors import BadPlacement
from coordinator.core.ids import ProcessorId, TaskName

Placement = Mapping[TaskName, ProcessorId]


def slots(count: int) -> list[ProcessorId]:
    """The processor ids of a run of `count` containers: "0", "1", … Raises BadPlacement below one."""
    if count < 1:
        raise BadPlacement(f"a run needs at least one container, not {count}")
    return [ProcessorId(str(i)) for i in range(count)]


def place(tasks: Collection[TaskName], processors: Sequence[ProcessorId], previous: Placement) -> Placement:
    """Spread `tasks` over `processors`, sizes differing by at most one.

    Without a usable `previous`, name-sorted round robin (Samza's GroupByContainerCount). Otherwise every processor keeps as many of its
    tasks as the balance allows; the larger shares go to those that keep most, so that no other balanced placement moves fewer tasks.
    Raises BadPlacement when a processor would be left without a task.
    """
    if len(tasks) < len(processors):
        raise BadPlacement(f"{len(processors)} containers for {len(tasks)} tasks: ask for at most {len(tasks)} containers")
    names = sorted(tasks)
    order = {pid: place for place, pid in enumerate(processors)}
    held: defaultdict[ProcessorId, list[TaskName]] = defaultdict(list)
    for name in names:
        if (former := previous.get(name)) in order:
            held[former].append(name)
    if not held:
        return {name: processors[i % len(processors)] for i, name in enumerate(names)}
    least, larger = divmod(len(names), len(processors))
    by_held = sorted(processors, key=lambda pid: (-len(held[pid]), order[pid]))
    room = {pid: least + (1 if rank < larger else 0) for rank, pid in enumerate(by_held)}
    placed: dict[TaskName, ProcessorId] = {}
    for pid in processors:
        for name in held[pid][: room[pid]]:
            placed[name] = pid
        room[pid] -= min(room[pid], len(held[pid]))
    free = [pid for pid in processors for _ in range(room[pid])]
    placed.update(zip((name for name in names if name not in placed), free, strict=True))
    return placed
