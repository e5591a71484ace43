"""The containers of a run on this machine, with fake processes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from containers.local.processes import Launch, LocalContainers, Processes, RestartLimitReached, Slot
from sluice.client.agents import AgentClient
from sluice.core.ids import ProcessorId, RunId
from sluice.core.jobmodels.placement import slots
from tests.support.fakes import FakeClock


class Process:
    pid = 1
    returncode: int | None = None


class FakeProcesses(Processes):
    """They start at once, and end when the test ends them."""

    async def start(self, slot: Slot) -> None:
        slot.process = Process()  # type: ignore[assignment]
        slot.starts += 1


@pytest.fixture
def containers(tmp_path: Path) -> LocalContainers:
    processes = FakeProcesses(tmp_path, 5, FakeClock())
    return LocalContainers(Launch(Path("job.py"), "http://c", tmp_path), processes, cast(AgentClient, None), RunId("r"), 2)


def ends(containers: LocalContainers, name: str, code: int) -> None:
    (slot,) = (each for each in containers.slots if each.name == name)
    cast(Process, slot.process).returncode = code


def up(containers: LocalContainers) -> list[str]:
    return [slot.name for slot in containers.up]


async def test_a_run_that_is_scaled_up_gets_containers_for_its_new_slots(containers: LocalContainers) -> None:
    await containers.keep_up()
    containers.scale(slots(4))
    await containers.keep_up()
    assert up(containers) == ["container-0", "container-1", "container-2", "container-3"]
    assert [slot.starts for slot in containers.slots] == [1, 1, 1, 1]
    assert {slot.environment["SLUICE_PROCESSOR_ID"] for slot in containers.slots} == {"0", "1", "2", "3"}


async def test_the_container_of_a_removed_slot_ends_by_itself_and_is_not_restarted(containers: LocalContainers) -> None:
    await containers.keep_up()
    containers.scale(slots(1))
    await containers.keep_up()
    assert up(containers) == ["container-0", "container-1"]
    ends(containers, "container-1", 0)
    await containers.keep_up()
    assert [slot.name for slot in containers.slots] == ["container-0"]
    containers.scale(slots(2))
    await containers.keep_up()
    assert up(containers) == ["container-0", "container-1"]


async def test_a_run_that_keeps_its_highest_slot_keeps_the_container_of_that_slot(containers: LocalContainers) -> None:
    await containers.keep_up()
    containers.scale([ProcessorId("1")])
    ends(containers, "container-0", 0)
    await containers.keep_up()
    assert up(containers) == ["container-1"]


async def test_the_container_of_a_remaining_slot_is_restarted(containers: LocalContainers) -> None:
    await containers.keep_up()
    ends(containers, "container-1", 1)
    await containers.keep_up()
    clock = cast(FakeClock, containers._processes._clock)
    clock.advance(1)
    await containers.keep_up()
    assert up(containers) == ["container-0", "container-1"]
    assert [slot.starts for slot in containers.slots] == [1, 2]


async def test_a_container_whose_batch_fails_again_and_again_with_one_error_is_not_restarted(containers: LocalContainers) -> None:
    await containers.keep_up()
    ends(containers, "container-1", 4)
    with pytest.raises(RestartLimitReached, match=r"container-1 ended once \(exit 4\)"):
        await containers.keep_up()


async def test_a_container_that_failed_otherwise_is_restarted(containers: LocalContainers) -> None:
    await containers.keep_up()
    ends(containers, "container-1", 1)
    await containers.keep_up()  # it is due in half a second
    assert up(containers) == ["container-0"]


async def test_spares_are_started_too_and_a_container_that_has_ended_becomes_a_spare(containers: LocalContainers) -> None:
    containers.scale(slots(2), spares=1)
    await containers.keep_up()
    assert up(containers) == ["container-0", "container-1", "spare-0"]
    assert [slot.environment["SLUICE_SPARE"] for slot in containers.slots] == ["false", "false", "true"]
    ends(containers, "container-1", 1)
    await containers.keep_up()
    cast(FakeClock, containers._processes._clock).advance(1)
    await containers.keep_up()
    assert up(containers) == ["container-0", "container-1", "spare-0"]
    assert [slot.environment["SLUICE_SPARE"] for slot in containers.slots] == ["false", "true", "true"]


async def test_each_run_and_slot_has_a_log_of_its_own_which_its_container_names(containers: LocalContainers, tmp_path: Path) -> None:
    await containers.keep_up()
    assert [slot.environment["SLUICE_LOG_FILE"] for slot in containers.slots] == [
        str(tmp_path / "r" / "container-0.log"),
        str(tmp_path / "r" / "container-1.log"),
    ]


async def test_a_spare_that_is_killed_again_and_again_does_not_end_a_run_whose_slots_all_have_containers(tmp_path: Path) -> None:
    """The machine has no memory for it."""
    clock = FakeClock()
    processes = FakeProcesses(tmp_path, 5, clock)
    containers = LocalContainers(Launch(Path("job.py"), "http://c", tmp_path), processes, cast(AgentClient, None), RunId("r"), 2)
    containers.scale(slots(2), spares=1)
    await containers.keep_up()

    async def killed() -> None:
        clock.advance(20)
        ends(containers, "spare-0", -9)
        await containers.keep_up()

    for _ in range(7):
        await killed()
        clock.advance(61)
        await containers.keep_up()
        assert up(containers) == ["container-0", "container-1", "spare-0"]
    ends(containers, "container-1", 3)
    with pytest.raises(RestartLimitReached, match="spare-0"):
        await killed()
