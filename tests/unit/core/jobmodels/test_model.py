from __future__ import annotations

from sluice.core.ids import ProcessorId, Ssp, TaskName
from sluice.core.jobmodels.model import JobModel, job_model

T0, T1, T2 = TaskName("Partition 0"), TaskName("Partition 1"), TaskName("Partition 2")


def model(
    partitions: dict[TaskName, int], placement: dict[TaskName, str], changelog: dict[TaskName, int] | None = None, **config: str
) -> JobModel:
    tasks = {name: frozenset({Ssp("kafka", "page-views", p)}) for name, p in partitions.items()}
    return job_model(config, tasks, {name: ProcessorId(pid) for name, pid in placement.items()}, changelog or {})


def test_equal_models_have_equal_hashes_in_any_order() -> None:
    one = model({T0: 0, T1: 1}, {T0: "0", T1: "1"}, a="1", b="2")
    other = model({T1: 1, T0: 0}, {T1: "1", T0: "0"}, b="2", a="1")
    assert one.content_hash() == other.content_hash()


def test_the_hash_is_the_same_in_every_process() -> None:
    assert model({T0: 0}, {T0: "0"}).content_hash() == "de7477d5a3067c872ac42e0383aefcf5906b49f77ab11c978a4612e3ba863af6"


def test_each_part_of_a_model_changes_its_hash() -> None:
    hashes = {
        model({T0: 0, T1: 1}, {T0: "0", T1: "1"}).content_hash(),
        model({T0: 0, T1: 1}, {T0: "1", T1: "0"}).content_hash(),
        model({T0: 0, T1: 2}, {T0: "0", T1: "1"}).content_hash(),
        model({T0: 0, T1: 1}, {T0: "0", T1: "1"}, a="1").content_hash(),
        model({T0: 0, T1: 1}, {T0: "0", T1: "1"}, {T0: 7}).content_hash(),
    }
    assert len(hashes) == 5


def test_new_tasks_take_changelog_numbers_in_name_order() -> None:
    made = model({T1: 1, T0: 0, T2: 2}, {T0: "0", T1: "0", T2: "0"})
    assert {name: task.changelog_partition for name, task in made.tasks.items()} == {T0: 0, T1: 1, T2: 2}


def test_known_tasks_keep_their_changelog_number_and_new_ones_take_the_next() -> None:
    made = model({T0: 0, T1: 1, T2: 2}, {T0: "0", T1: "0", T2: "0"}, {T1: 0, T2: 4})
    assert {name: task.changelog_partition for name, task in made.tasks.items()} == {T0: 5, T1: 0, T2: 4}


def test_a_changelog_number_is_never_used_twice() -> None:
    made = job_model({}, {T2: frozenset()}, {T2: ProcessorId("0")}, {}, 7)
    assert (made.tasks[T2].changelog_partition, made.changelog_partitions) == (7, 8)
    assert job_model({}, {T2: frozenset()}, {T2: ProcessorId("0")}, {T2: 9}, 7).changelog_partitions == 10


def test_a_task_is_found_with_its_slot() -> None:
    made = model({T0: 0, T1: 1}, {T0: "0", T1: "1"})
    found = made.task(T1)
    assert found is not None
    assert (found[0], found[1].name) == ("1", T1)
    assert made.task(T2) is None
    assert made.placement == {T0: "0", T1: "1"}
