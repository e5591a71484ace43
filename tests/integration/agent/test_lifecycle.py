"""The ordinary life of an agent, from registration to exit code."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from containers.engine import Batch, StageStart
from containers.supervision.exit_report import EXIT_FAILED, EXIT_OK
from sluice.core.ids import Ssp
from tests.support.agents import Place, place, two_stages
from tests.support.engines import FakeEngine, FakeQuery, soon
from tests.support.virtual_time import Gate

IN_0, MID_0 = Ssp("log", "in", 0), Ssp("log", "mid", 0)
QUERIES_OF_SLOT_0 = {"Partition 0/first", "Partition 0/second"}


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path) as made:
        yield made


# --- the beginning ---------------------------------------------------------------------------------------------------


async def test_an_agent_registers_with_the_name_of_its_host(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", SLUICE_CONTAINER_HOST="node-3")
    await container.engine.all_started(4)
    run = await there.run(run_id)
    assert run.state == "RUNNING"
    assert [(each.execution_container_id, each.processor_id, each.epoch, each.host) for each in run.incarnations] == [
        ("c1", "0", 1, "node-3")
    ]


async def test_each_slot_runs_all_stages_of_its_own_tasks(there: Place) -> None:
    run_id = await there.deploy(containers=2)
    one, other = there.start(run_id, "c1"), there.start(run_id, "c2", slot="1")
    assert set(await one.engine.all_started(2)) == {"Partition 0/first", "Partition 0/second"}
    assert set(await other.engine.all_started(2)) == {"Partition 1/first", "Partition 1/second"}
    assert await there.holders(run_id) == {"Partition 0": "c1", "Partition 1": "c2"}
    assert (one.engine.opened, other.engine.opened) == (1, 1)


async def test_a_stage_starts_with_the_generation_lineage_and_offsets_of_its_acquire(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1")
    starts = {name: query.start for name, query in (await container.engine.all_started(4)).items()}
    first, second = starts["Partition 0/first"], starts["Partition 0/second"]
    assert (first.generation, first.first_run, first.reported) == (1, run_id, None)
    assert (dict(first.starts), dict(second.starts)) == ({IN_0: 0}, {MID_0: 0})
    assert len({start.lineage for start in starts.values()}) == 4
    listed = {(t.task, s.stage): s.lineage for t in (await there.run(run_id)).tasks for s in t.stages}
    assert listed["Partition 0", "first"] == first.lineage


async def test_no_query_starts_before_its_task_was_acquired(there: Place) -> None:
    run_id = await there.deploy()
    way = there.new_wire()
    go_on = way.hold("acquire")
    container = there.start(run_id, "c1", wire=way)
    await soon(way.held.wait())
    assert container.engine.opened == 1
    assert container.engine.tries == []
    go_on.set()
    await container.engine.all_started(4)


async def test_the_guardian_gets_the_lease_from_the_registration_on(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1")
    await container.wire.after("containerHeartbeat", 3)
    assert len(container.renewed) >= 3
    assert container.renewed == sorted(container.renewed)


# --- progress --------------------------------------------------------------------------------------------------------


async def test_a_run_shows_what_its_queries_have_committed(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1")
    queries = await container.engine.all_started(4)
    await queries["Partition 0/first"].commits(4, {IN_0: 70})
    await container.wire.after("progress")
    found = {(t.task, s.stage): (s.batch_id, [o.offset for o in s.offsets]) for t in (await there.run(run_id)).tasks for s in t.stages}
    assert found["Partition 0", "first"] == (4, [70])
    assert found["Partition 0", "second"] == (None, [])


async def test_the_next_incarnation_gets_the_last_batch_that_was_reported(there: Place) -> None:
    run_id = await there.deploy()
    first = there.start(run_id, "c1")
    queries = await first.engine.all_started(4)
    await queries["Partition 0/first"].commits(4, {IN_0: 70})
    first.agent.stop_requested()
    await first.ending()
    second = there.start(run_id, "c2")
    start = (await second.engine.all_started(4))["Partition 0/first"].start
    assert (start.reported, start.generation, start.lineage) == (4, 2, queries["Partition 0/first"].start.lineage)


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_a_stop_of_the_run_ends_its_container_normally_and_then_the_run(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", stop_timeout_seconds=77.0)
    await container.engine.all_started(4)
    await there.client.stop_run(run_id, "maintenance")
    ending = await container.ending()
    assert (ending.exit_code, ending.reason) == (EXIT_OK, "the run is to stop: maintenance")
    assert container.engine.acting == []
    assert {deadline.total_seconds() for _, deadline in container.engine.stops} == {77}
    run = await there.run(run_id)
    assert run.state == "STOPPED"
    assert [task.holder for task in run.tasks] == [None, None]
    assert [(each.state, each.exit_code, each.reason) for each in run.incarnations] == [("EXITED", 0, "the run is to stop: maintenance")]


async def test_a_signal_ends_the_container_normally_and_the_run_continues(there: Place) -> None:
    run_id = await there.deploy(containers=2)
    one, other = there.start(run_id, "c1"), there.start(run_id, "c2", slot="1")
    await one.engine.all_started(2)
    await other.engine.all_started(2)
    one.agent.stop_requested()
    assert (await one.ending()).exit_code == EXIT_OK
    assert one.engine.acting == []
    assert await there.state(run_id) == "RUNNING"
    assert await there.holders(run_id) == {"Partition 0": None, "Partition 1": "c2"}
    assert not other.life.done()


async def test_batches_that_end_during_the_stop_are_reported_before_the_tasks_are_given_back(there: Place) -> None:
    def commits_a_last_batch(query: FakeQuery, forced: threading.Event) -> bool:
        query.callbacks.on_batch(Batch(query.start.query, 9, 1, 1, {}))
        return True

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_stop=commits_a_last_batch))
    await container.engine.all_started(4)
    container.agent.stop_requested()
    await container.ending()
    assert {s.batch_id for t in (await there.run(run_id)).tasks for s in t.stages} == {9}


async def test_a_run_that_ended_before_the_container_started_is_not_a_failure(there: Place) -> None:
    run_id = await there.deploy()
    await there.client.stop_run(run_id, "never mind")
    container = there.start(run_id, "c1")
    ending = await container.ending()
    assert (ending.exit_code, ending.reason) == (EXIT_OK, "the run has ended: STOPPED")
    assert container.engine.opened == 0


async def test_a_container_that_starts_while_its_run_is_stopping_ends_normally(there: Place) -> None:
    stops_late = Gate()
    run_id = await there.deploy(containers=2)
    one = there.start(run_id, "c1", engine=FakeEngine(on_stop=lambda query, forced: stops_late.wait()))
    await one.engine.all_started(2)
    await there.client.stop_run(run_id, "enough")
    await soon(stops_late.reached())
    late = there.start(run_id, "c2", slot="1")
    assert (await late.ending()).exit_code == EXIT_OK
    assert late.engine.opened == 0
    stops_late.open()
    await one.ending()
    assert await there.state(run_id) == "STOPPED"


async def test_a_job_file_whose_stages_are_not_those_of_the_run_is_refused(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", job=two_stages(last="third"))
    ending = await container.ending()
    assert ending.exit_code == EXIT_FAILED
    assert f"the stages in the file differ from those of run {run_id} (second, third): deploy the file again" in ending.reason
    assert (await there.run(run_id)).incarnations == ()


async def test_the_job_file_of_another_job_is_refused(there: Place) -> None:
    run_id = await there.deploy()
    ending = await there.start(run_id, "c1", job=two_stages("arrivals")).ending()
    assert ending.exit_code == EXIT_FAILED
    assert f"the file defines job arrivals, but run {run_id} belongs to job delays" in ending.reason


@pytest.mark.parametrize(("run", "slot", "expected"), [("lost", "0", "there is no run 'lost'"), (None, "7", "has no processor '7'")])
async def test_a_run_or_slot_that_does_not_exist_is_a_failure_that_names_it(
    there: Place, run: str | None, slot: str, expected: str
) -> None:
    run_id = await there.deploy()
    ending = await there.start(type(run_id)(run or run_id), "c1", slot=slot).ending()
    assert ending.exit_code == EXIT_FAILED
    assert expected in ending.reason


async def test_queries_start_again_while_others_continue(there: Place) -> None:
    def fails_once(start: StageStart) -> None:
        if start.query == "Partition 0/second" and [s.query for s in engine.tries].count(start.query) == 1:
            raise ValueError("once")

    run_id = await there.deploy()
    engine = FakeEngine(on_start=fails_once)
    there.start(run_id, "c1", engine=engine)
    assert set(await engine.all_started(4)) >= QUERIES_OF_SLOT_0
    assert len(engine.tries) == 5
