"""Which slot keeps a standby copy of which task."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import BadConfig
from sluice.core.ids import ProcessorId, TaskName
from sluice.core.jobmodels.placement import REPLICAS, WARM, place, replicas_of, slots, spares_of, standbys


def tasks(count: int) -> list[TaskName]:
    return [TaskName(f"Partition {n}") for n in range(count)]


def placed(count: int, containers: int) -> dict[TaskName, ProcessorId]:
    return dict(place(tasks(count), slots(containers), {}))


def on_hosts_of_their_own(containers: int) -> dict[ProcessorId, str]:
    return {pid: f"host-{pid}" for pid in slots(containers)}


@given(count=st.integers(1, 40), containers=st.integers(1, 12), hosts=st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=12))
def test_a_copy_is_on_another_host_wherever_there_is_one(count: int, containers: int, hosts: list[str]) -> None:
    containers = min(containers, count)
    placement, where = placed(count, containers), dict(zip(slots(containers), hosts, strict=False))
    found = standbys(placement, where)
    for task, slot in placement.items():
        others = {where[pid] for pid in placement.values()} - {"", where[slot]}
        if where[slot] and others:
            assert where[found[task]] in others
        else:
            assert task not in found


@given(count=st.integers(2, 60), containers=st.integers(2, 12))
def test_when_a_slot_is_lost_every_task_of_it_moves_to_its_copy(count: int, containers: int) -> None:
    containers = min(containers, count)
    placement = placed(count, containers)
    copies = standbys(placement, on_hosts_of_their_own(containers))
    for lost in slots(containers):
        left = [pid for pid in slots(containers) if pid != lost]
        moved = place(list(placement), left, placement, {task: [pid] for task, pid in copies.items()})
        theirs = [task for task, pid in placement.items() if pid == lost]
        homeless = [task for task in theirs if moved[task] != copies[task]]
        assert len(homeless) <= count % containers  # where shares differ by one, balance takes precedence


@given(count=st.integers(1, 60), containers=st.integers(1, 12))
def test_copies_are_spread_as_evenly_as_tasks(count: int, containers: int) -> None:
    containers = min(containers, count)
    copies = Counter(standbys(placed(count, containers), on_hosts_of_their_own(containers)).values())
    if containers > 1:
        assert max(copies.values()) <= 2 * -(-count // containers)


@given(
    count=st.integers(1, 40), containers=st.integers(1, 12), hosts=st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=12, max_size=12)
)
def test_the_tasks_of_a_slot_are_dealt_to_the_slots_after_it_that_are_on_other_hosts(count: int, containers: int, hosts: list[str]) -> None:
    containers = min(containers, count)
    placement, where = placed(count, containers), dict(zip(slots(containers), hosts, strict=False))
    order = sorted(set(placement.values()))
    expected: dict[TaskName, ProcessorId] = {}
    for place_, slot in enumerate(order):
        after = [other for other in (*order[place_ + 1 :], *order[:place_]) if where[slot] and where[other] not in ("", where[slot])]
        own = sorted(task for task, pid in placement.items() if pid == slot)
        expected |= {task: after[nth % len(after)] for nth, task in enumerate(own) if after}
    assert standbys(placement, where) == expected


def test_a_slot_without_a_first_container_neither_has_nor_keeps_copies() -> None:
    placement = placed(4, 2)
    assert standbys(placement, {ProcessorId("0"): "a"}) == {}


def test_the_config_of_a_job_sets_the_number_of_copies() -> None:
    assert (replicas_of({}), replicas_of({REPLICAS: "0"}), replicas_of({REPLICAS: "1"})) == (0, 0, 1)


@pytest.mark.parametrize("text", ["2", "-1", "yes", "", "1.0"])
def test_an_invalid_number_of_copies_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match=r"standby\.replicas"):
        replicas_of({REPLICAS: text})


def test_the_config_of_a_job_sets_the_number_of_spare_containers() -> None:
    assert (spares_of({}), spares_of({WARM: "0"}), spares_of({WARM: "20"})) == (0, 0, 20)


@pytest.mark.parametrize("text", ["21", "-1", "yes", "", "1.0", "٣", "1" * 5000])
def test_an_invalid_number_of_spare_containers_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match=r"standby\.warm"):
        spares_of({WARM: text})
