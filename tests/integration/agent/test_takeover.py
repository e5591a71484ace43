"""Two containers and one task: the second one waits until the first can no longer act."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from containers.agent.lifecycle import EXPIRED
from containers.engine import StageStart
from containers.errors import OffsetsTrimmed
from containers.supervision.exit_report import EXIT_LEASE_LOST, EXIT_OK
from sluice.core.ids import ExecutionContainerId, RunId, TaskName
from tests.support.agents import Incarnation, Place, place
from tests.support.engines import FakeEngine, soon
from tests.support.fakes import FakeClock
from tests.support.virtual_time import Gate


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path) as made:
        yield made


class Overlaps:
    """Starts of a query while a query of the same task was still running in the former container."""

    def __init__(self, former: FakeEngine) -> None:
        self.found: list[str] = []
        self._former = former

    def watch(self, start: StageStart) -> None:
        self.found += [f"{start.query} beside {acting}" for acting in self._former.acting if acting.startswith(f"{start.task}/")]


async def replaced(there: Place, run_id: RunId) -> tuple[Incarnation, Incarnation]:
    """A first incarnation, which has just been notified that a second one has its slot, and the second one."""
    first = there.start(run_id, "c1")
    await first.engine.all_started(4)
    second = there.start(run_id, "c2")
    assert (await first.ending()).exit_code == EXIT_LEASE_LOST
    return first, second


# --- a second incarnation --------------------------------------------------------------------------------------------


async def test_a_second_incarnation_of_the_slot_ends_the_first_at_once_without_stops_releases_or_an_exit_report(there: Place) -> None:
    run_id = await there.deploy()
    first, _ = await replaced(there, run_id)
    assert first.lost == ["the coordinator considers this container replaced or lost"]
    assert first.engine.stops == []
    assert first.wire.answered["release"] == 0
    assert first.wire.answered["exit"] == 0


async def test_the_second_waits_while_the_first_may_act_and_continues_when_its_exit_is_reported(there: Place) -> None:
    run_id = await there.deploy()
    first, second = await replaced(there, run_id)
    await second.wire.after("acquire", 2)
    assert second.engine.tries == []
    assert set((await there.holders(run_id)).values()) == {"c1"}
    await there.client.exited(ExecutionContainerId("c1"), 3, "lease lost")
    starts = [query.start for query in (await second.engine.all_started(4)).values()]
    assert {start.generation for start in starts} == {2}
    assert {start.lineage for start in starts} == {start.lineage for start in first.engine.tries}


async def test_the_second_continues_when_lease_and_grace_of_a_silent_first_have_passed(there: Place) -> None:
    run_id = await there.deploy()
    _, second = await replaced(there, run_id)
    await second.wire.after("acquire", 2)
    for _ in range(2):
        there.clock.advance(20)
        beats = second.wire.answered["containerHeartbeat"]
        await second.wire.after("containerHeartbeat", beats + 2)
    await second.engine.all_started(4)
    assert set((await there.holders(run_id)).values()) == {"c2"}
    assert not second.life.done()


async def test_a_late_report_of_the_first_incarnation_changes_nothing(there: Place) -> None:
    run_id = await there.deploy()
    _, second = await replaced(there, run_id)
    await there.client.exited(ExecutionContainerId("c1"), 3, "lease lost")
    await second.engine.all_started(4)
    late = there.start(run_id, "c1")
    ending = await late.ending()
    assert ending.exit_code == EXIT_LEASE_LOST
    assert late.engine.opened == 0
    assert set((await there.holders(run_id)).values()) == {"c2"}
    assert not second.life.done()


async def test_a_query_that_is_fenced_ends_its_container(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1")
    query = await container.engine.started()
    await query.is_fenced_off("generation 2 holds the task")
    assert (await container.ending()).exit_code == EXIT_LEASE_LOST
    assert container.lost == ["generation 2 holds the task"]
    assert container.engine.stops == []


async def test_progress_under_a_former_generation_ends_its_container(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1")
    query = await container.engine.started()
    for task in ("Partition 0", "Partition 1"):
        await there.client.release(run_id, TaskName(task), query.start.generation)
    await query.commits(1)
    assert (await container.ending()).exit_code == EXIT_LEASE_LOST
    assert "no longer owns it" in container.lost[0]


async def test_a_container_that_continues_after_its_lease_and_finds_its_records_trimmed_ends_because_of_the_lease(there: Place) -> None:
    run_id, clock, engine, wire, suspended = await there.deploy(), FakeClock(), FakeEngine(), there.new_wire(), Gate()

    def resumes(start: StageStart) -> None:
        suspended.wait()
        clock.advance(300)
        raise OffsetsTrimmed("records 3 to 34 are needed and were deleted")

    engine.on_start = resumes
    wire.hold("/containerHeartbeat")
    container = there.start(run_id, "c1", engine=engine, wire=wire, clock=clock)
    await soon(wire.held.wait())
    suspended.open()
    assert (await container.ending()).exit_code == EXIT_LEASE_LOST
    assert container.lost == [EXPIRED]


# --- a new deployment ------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_deployment_over_a_live_run_never_has_two_queries_of_a_task_at_once(there: Place) -> None:
    may_stop = Gate()
    old_run = await there.deploy()
    old = there.start(old_run, "old", engine=FakeEngine(on_stop=lambda query, forced: may_stop.wait()))
    await old.engine.all_started(4)

    overlaps = Overlaps(old.engine)
    new_run = await there.deploy()
    new = there.start(new_run, "new", engine=FakeEngine(on_start=overlaps.watch))
    await soon(may_stop.reached())
    await new.wire.after("acquire", 2)
    assert new.engine.tries == []

    may_stop.open()
    ending = await old.ending()
    assert (ending.exit_code, ending.reason) == (EXIT_OK, f"the run is to stop: replaced by run {new_run}")
    queries = await new.engine.all_started(4)
    assert overlaps.found == []
    assert {query.start.generation for query in queries.values()} == {2}
    assert {query.start.first_run for query in queries.values()} == {old_run}
    assert (await there.state(old_run), await there.state(new_run)) == ("STOPPED", "RUNNING")


async def test_a_container_whose_run_was_replaced_before_it_started_ends_normally(there: Place) -> None:
    old_run = await there.deploy()
    await there.deploy()
    container = there.start(old_run, "c1")
    assert (await container.ending()).exit_code == EXIT_OK
    assert container.engine.opened == 0


async def test_a_deployment_with_an_explicit_start_begins_a_new_history(there: Place) -> None:
    old_run = await there.deploy()
    old = there.start(old_run, "old")
    before = {query.start.lineage for query in (await old.engine.all_started(4)).values()}
    new_run = await there.deploy(start="earliest")
    await old.ending()
    after = await there.start(new_run, "new").engine.all_started(4)
    assert before.isdisjoint(query.start.lineage for query in after.values())
    assert {query.start.first_run for query in after.values()} == {new_run}
