"""Warm standby: which slots keep a restored copy of which tasks' newest snapshots, besides the tasks that they run.

Every task of a slot has its copy on another host, and the copies of one slot's tasks are spread over the others: when its container is
lost for good, fail-over spreads its tasks just so. What is decided here changes only with the job model and with where slots live, and not
with who is alive at the moment: a copy that moves is fetched anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from coordinator.core.errors import BadConfig
from coordinator.core.ids import ProcessorId, TaskName
from coordinator.core.placement import Placement

REPLICAS = "standby.replicas"
"""What a job's configuration may say."""

Hosts = Mapping[ProcessorId, str]
"""Where the last container of each slot is, or was. Slots of one host share its disk: a copy there would be lost with the original."""


def replicas_of(config: Mapping[str, str]) -> int:
    """How many copies each task's state has on other hosts: none, or one. Raises BadConfig."""
    told = config.get(REPLICAS, "0")
    if told not in ("0", "1"):
        raise BadConfig(f"{REPLICAS} is {told[:80]!r}: say 0 for no copies of state on other hosts, or 1")
    return int(told)


def standbys(placement: Placement, hosts: Hosts) -> Mapping[TaskName, ProcessorId]:
    """The slot that keeps a copy of each task; those that could have it on no other host have none."""
    tasks: defaultdict[ProcessorId, list[TaskName]] = defaultdict(list)
    for task, slot in sorted(placement.items()):
        tasks[slot].append(task)
    order = sorted(tasks)
    found: dict[TaskName, ProcessorId] = {}
    for place, slot in enumerate(order):
        others = [other for other in (*order[place + 1 :], *order[:place]) if _apart(slot, other, hosts)]
        found |= {task: others[nth % len(others)] for nth, task in enumerate(tasks[slot]) if others}
    return found


def _apart(slot: ProcessorId, other: ProcessorId, hosts: Hosts) -> bool:
    return bool(hosts.get(slot)) and bool(hosts.get(other)) and hosts[slot] != hosts[other]
