"""Which slot runs which task, and which slot keeps a standby copy of its state: balanced, with as few moves as possible."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from sluice.core.errors import BadConfig, BadPlacement
from sluice.core.ids import ProcessorId, TaskName

Placement = Mapping[TaskName, ProcessorId]

Homes = Mapping[TaskName, Collection[ProcessorId]]
"""The slots on whose hosts a task has run, so that its state may still be there."""


def slots(count: int) -> list[ProcessorId]:
    """The processor ids of a run of `count` containers: "0", "1", … Raises BadPlacement below one."""
    if count < 1:
        raise BadPlacement(f"a run needs at least one container, not {count}")
    return [ProcessorId(str(i)) for i in range(count)]


def scaled(present: Sequence[ProcessorId], count: int, away: Collection[ProcessorId]) -> list[ProcessorId]:
    """The processor ids of a run that has `present` and is scaled to `count`. When the number grows, the lowest free numbers are added.
    When it shrinks, the lowest numbers remain, unless all of these are `away` (slots without a container, whose tasks run in other slots);
    then slots that run tasks are preferred. Raises BadPlacement below one."""
    numbered = slots(count)
    if count >= len(present):
        return in_order([*present, *[pid for pid in numbered if pid not in present][: count - len(present)]])
    kept = in_order(present)[:count]
    if all(pid in away for pid in kept):
        kept = sorted(in_order(present), key=lambda pid: pid in away)[:count]
    return in_order(kept)


def in_order(processors: Collection[ProcessorId]) -> list[ProcessorId]:
    return sorted(processors, key=int)


def place(tasks: Collection[TaskName], processors: Sequence[ProcessorId], previous: Placement, homes: Homes | None = None) -> Placement:
    """Distribute `tasks` over `processors`, with sizes that differ by at most one.

    Without a usable `previous`, this is round robin by name (Samza's GroupByContainerCount). Otherwise every processor keeps as many of its
    tasks as balance allows. The larger shares go to processors that keep most tasks, so that no other balanced placement moves fewer, and
    among these to the homes of incoming tasks. A task that moves goes to the first of its `homes` that has room, if any; tasks that are at
    home are moved last.

    Raises BadPlacement if a processor would have no task.
    """
    if len(tasks) < len(processors):
        raise BadPlacement(f"{len(processors)} containers for {len(tasks)} tasks: request at most {len(tasks)} containers")
    names = sorted(tasks)
    order = {pid: place for place, pid in enumerate(processors)}
    held: defaultdict[ProcessorId, list[TaskName]] = defaultdict(list)
    for name in names:
        if (former := previous.get(name)) in order:
            held[former].append(name)
    if not held:
        return {name: processors[i % len(processors)] for i, name in enumerate(names)}
    at_home = {name: [pid for pid in found if pid in order] for name, found in (homes or {}).items()}
    least, larger = divmod(len(names), len(processors))
    coming = Counter(home for name in names if previous.get(name) not in order for home in at_home.get(name, ())[:1])
    by_held = sorted(processors, key=lambda pid: (-len(held[pid]), -coming[pid], order[pid]))
    room = {pid: least + (1 if rank < larger else 0) for rank, pid in enumerate(by_held)}
    placed: dict[TaskName, ProcessorId] = {}
    for pid in processors:
        away_last = sorted(held[pid], key=lambda name: bool(at_home.get(name)) and pid not in at_home[name])  # else by name
        for name in away_last[: room[pid]]:
            placed[name] = pid
        room[pid] -= min(room[pid], len(held[pid]))
    for name in names:
        home = next((pid for pid in at_home.get(name, ()) if room[pid]), None)
        if name not in placed and home is not None:
            placed[name] = home
            room[home] -= 1
    free = [pid for pid in processors for _ in range(room[pid])]
    placed.update(zip((name for name in names if name not in placed), free, strict=True))
    return placed


REPLICAS = "standby.replicas"
"""A key of a job's configuration."""

WARM, MOST_WARM = "standby.warm", 20
"""A key of a job's configuration, and its greatest value."""

Hosts = Mapping[ProcessorId, str]
"""The host of each slot's last container. Slots of one host share its disk, so a copy there would be lost with the original."""


def replicas_of(config: Mapping[str, str]) -> int:
    """The number of standby copies of each task's state: 0 or 1. Raises BadConfig."""
    value = config.get(REPLICAS, "0")
    if value not in ("0", "1"):
        raise BadConfig(f"{REPLICAS} is {value[:80]!r}: use 0 for no copies of state on other hosts, or 1")
    return int(value)


def spares_of(config: Mapping[str, str]) -> int:
    """The number of spare containers that `sluice run` keeps ready. Raises BadConfig."""
    value = config.get(WARM, "0")
    if not value.isascii() or not value.isdecimal() or len(value) > 3 or int(value) > MOST_WARM:
        raise BadConfig(f"{WARM} is {value[:80]!r}: use the number of spare containers, from 0 to {MOST_WARM}")
    return int(value)


def standbys(placement: Placement, hosts: Hosts) -> Mapping[TaskName, ProcessorId]:
    """The slot that keeps the standby copy of each task; a task without a slot on another host has none."""
    tasks: defaultdict[ProcessorId, list[TaskName]] = defaultdict(list)
    for task, slot in sorted(placement.items()):
        tasks[slot].append(task)
    ring = [slot for slot in sorted(tasks) if hosts.get(slot)]
    if len({hosts[slot] for slot in ring}) < 2:
        return {}
    apart = _steps_to_another_host([hosts[slot] for slot in ring])
    found: dict[TaskName, ProcessorId] = {}
    for place, slot in enumerate(ring):
        others: list[ProcessorId] = []
        step = apart[place]
        while len(others) < len(tasks[slot]) and step < len(ring):
            nearby = (place + step) % len(ring)
            if hosts[ring[nearby]] == hosts[slot]:
                step += apart[nearby]
            else:
                others.append(ring[nearby])
                step += 1
        found |= {task: others[nth % len(others)] for nth, task in enumerate(tasks[slot])}
    return found


def _steps_to_another_host(ring: Sequence[str]) -> Sequence[int]:
    """For each place of the ring, the distance to the next place with another host. There are at least two hosts."""
    steps = [1] * (2 * len(ring))
    for place in reversed(range(2 * len(ring) - 1)):
        if ring[place % len(ring)] == ring[(place + 1) % len(ring)]:
            steps[place] = steps[place + 1] + 1
    return steps[: len(ring)]
