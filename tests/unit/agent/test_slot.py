from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from containers.agent.slot import Adoption, adoption
from sluice.core.ids import ProcessorId, Ssp, TaskName
from sluice.core.jobmodels.model import JobModel, job_model
from sluice.core.jobmodels.placement import slots

ZERO, ONE, TWO = (TaskName(f"Partition {n}") for n in range(3))
SLOT = ProcessorId("0")


def ssps(*partitions: int) -> frozenset[Ssp]:
    return frozenset(Ssp("log", "in", partition) for partition in partitions)


def model(**slots_: dict[TaskName, frozenset[Ssp]]) -> JobModel:
    """s0={task: partitions} for slot 0, and so on."""
    tasks = {task: reads for held in slots_.values() for task, reads in held.items()}
    placement = {task: ProcessorId(slot[1:]) for slot, held in slots_.items() for task in held}
    return job_model({}, tasks, placement, {})


def plan(
    found: JobModel,
    containers: int,
    runs: dict[TaskName, frozenset[Ssp]],
    waits: frozenset[TaskName] = frozenset(),
    slot: ProcessorId = SLOT,
) -> Adoption:
    return adoption(2, found, slots(containers), slot, runs, waits)


def test_a_version_that_does_not_affect_the_slot_is_only_acknowledged() -> None:
    found = plan(model(s0={ZERO: ssps(0)}, s1={ONE: ssps(1, 3)}), 2, {ZERO: ssps(0)})
    assert found.nothing
    assert found.keep == {ZERO}
    assert str(found) == "version 2: nothing changes here"


def test_a_task_that_moved_to_another_slot_is_released_and_a_new_one_is_acquired() -> None:
    found = plan(model(s0={TWO: ssps(2)}, s1={ZERO: ssps(0)}), 2, {ZERO: ssps(0)})
    assert [found.release, found.acquire, found.keep] == [{ZERO}, {TWO}, set()]
    assert str(found) == "version 2: release Partition 0; acquire Partition 2"


def test_a_task_with_more_partitions_is_extended_by_the_new_ones() -> None:
    found = plan(model(s0={ZERO: ssps(0, 2, 4, 6), ONE: ssps(1)}), 1, {ZERO: ssps(0, 2), ONE: ssps(1)})
    assert found.extend == {ZERO: ssps(4, 6)}
    assert found.keep == {ONE}
    assert str(found) == "version 2: Partition 0 also reads log.in.4, log.in.6"


def test_a_running_task_never_gives_up_partitions() -> None:
    found = plan(model(s0={ZERO: ssps(0)}), 1, {ZERO: ssps(0, 2)})
    assert found.nothing
    assert found.keep == {ZERO}
    assert found.beyond == {ZERO: ssps(2)}
    assert str(found) == "version 2: Partition 0 keeps reading log.in.2, which it cannot give up"


def test_a_removed_slot_releases_its_tasks_and_stops_waiting_for_others() -> None:
    found = plan(model(s0={ZERO: ssps(0), ONE: ssps(1)}), 1, {ONE: ssps(1)}, frozenset({TWO}), ProcessorId("1"))
    assert found.slot_removed
    assert found.release == {ONE, TWO}
    assert not found.nothing
    assert str(found) == "version 2: the slot no longer exists; release Partition 1, Partition 2"


def test_a_slot_whose_tasks_were_reassigned_continues_without_tasks() -> None:
    found = plan(model(s0={ZERO: ssps(0), ONE: ssps(1)}), 2, {ONE: ssps(1)}, slot=ProcessorId("1"))
    assert not found.slot_removed
    assert found.release == {ONE}


def test_a_task_that_the_slot_waits_for_is_not_requested_twice() -> None:
    found = plan(model(s0={ZERO: ssps(0), ONE: ssps(1, 3)}), 1, {ZERO: ssps(0)}, frozenset({ONE}))
    assert found.nothing
    assert found.keep == {ZERO, ONE}


tasks = st.sampled_from([ZERO, ONE, TWO])
partitions = st.frozensets(st.integers(0, 7), max_size=4).map(lambda numbers: ssps(*numbers))


@given(
    st.dictionaries(tasks, st.tuples(partitions, st.integers(0, 2))),
    st.dictionaries(tasks, partitions),
    st.frozensets(tasks),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_after_an_adoption_the_slot_has_its_tasks_and_each_reads_at_least_its_partitions(
    placed: dict[TaskName, tuple[frozenset[Ssp], int]],
    runs: dict[TaskName, frozenset[Ssp]],
    waits: frozenset[TaskName],
    containers: int,
    number: int,
) -> None:
    slot, waits = ProcessorId(str(number)), waits - runs.keys()
    placement = {task: ProcessorId(str(at % containers)) for task, (_, at) in placed.items()}
    found = job_model({}, {task: reads for task, (reads, _) in placed.items()}, placement, {})
    wanted = {task: reads for task, (reads, _) in placed.items() if placement[task] == slot}

    done = adoption(2, found, slots(containers), slot, runs, waits)

    assert done.slot_removed == (slot not in slots(containers))
    assert not done.release & (done.keep | done.acquire | done.extend.keys())
    kept = {task: reads | done.extend.get(task, frozenset()) for task, reads in runs.items() if task not in done.release}
    assert {*kept, *(waits - done.release), *done.acquire} == wanted.keys()
    assert all(reads >= wanted[task] for task, reads in kept.items())
    assert all(reads >= runs[task] for task, reads in kept.items())
    assert done.extend.keys() | done.keep == (runs.keys() | waits) - done.release
    assert not done.acquire & (runs.keys() | waits)
    held = {**kept, **{task: wanted[task] for task in done.acquire}}
    again = adoption(3, found, slots(containers), slot, held, waits - done.release)
    assert again.nothing or again.slot_removed
