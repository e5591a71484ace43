"""Agents whose dependencies are missing, slow, or fail permanently."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from errno import ENOSPC
from pathlib import Path

import httpx
import pytest

from containers.engine import StageStart
from containers.errors import EXIT_REPEATED_FAILURE, DiskFull, JavaMissing, SparkStopped, StateNotLocal
from containers.supervision.exit_report import EXIT_FAILED, EXIT_LEASE_LOST, EXIT_OK
from sluice.core.errors import BadJobFile, SluiceError
from sluice.status import overview
from tests.support.agents import Place, place
from tests.support.engines import FakeEngine, FakeQuery, soon
from tests.support.fakes import FakeClock
from tests.support.virtual_time import Gate, wait_in_thread_until


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path) as made:
        yield made


@pytest.fixture
def gate() -> Gate:
    """It holds user code back."""
    return Gate()


def blocking(gate: Gate, stage: str) -> Callable[[StageStart], None]:
    """A slow stage function."""

    def function(start: StageStart) -> None:
        if start.query == stage:
            gate.wait()

    return function


# --- the coordinator is unreachable ----------------------------------------------------------------------------------


async def test_a_container_waits_for_a_coordinator_that_starts_late(there: Place) -> None:
    run_id = await there.deploy()
    way = there.new_wire()
    way.cut = True
    container = there.start(run_id, "c1", wire=way)
    await way.after("unreachable")
    way.cut = False
    await container.engine.all_started(4)


async def test_a_container_fails_when_the_coordinator_does_not_start_in_time(there: Place) -> None:
    run_id = await there.deploy()
    clock, way = FakeClock(), there.new_wire()
    way.cut, way.on_cut = True, lambda: clock.advance(100)
    container = there.start(run_id, "c1", wire=way, clock=clock, connect_timeout_seconds=150.0)
    ending = await container.ending()
    assert (ending.exit_code, ending.reason) == (EXIT_FAILED, "The coordinator does not answer. http://c: ConnectError cut")
    assert way.answered["unreachable"] == 2


async def test_a_stop_while_a_container_waits_for_the_coordinator_is_not_a_failure(there: Place) -> None:
    run_id = await there.deploy()
    way = there.new_wire()
    way.cut = True
    container = there.start(run_id, "c1", wire=way)
    await way.after("unreachable")
    container.agent.stop_requested()
    ending = await container.ending()
    assert (ending.exit_code, ending.reason) == (EXIT_OK, "stop requested")


async def test_queries_continue_while_the_coordinator_is_unreachable_and_the_newest_progress_is_reported_afterwards(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1")
    queries = await container.engine.all_started(4)
    container.wire.cut = True
    await queries["Partition 0/first"].commits(1)
    await container.wire.after("unreachable", 2)
    await queries["Partition 0/first"].commits(2)
    container.wire.cut = False
    await container.wire.after("progress")
    reported = {(t.task, s.stage): s.batch_id for t in (await there.run(run_id)).tasks for s in t.stages}
    assert reported["Partition 0", "first"] == 2
    assert container.lost == []
    assert len(container.engine.acting) == 4


async def test_a_container_that_cannot_reach_the_coordinator_ends_with_its_lease(there: Place) -> None:
    run_id = await there.deploy()
    clock = FakeClock()
    container = there.start(run_id, "c1", clock=clock)
    await container.engine.all_started(4)
    container.wire.cut, container.wire.on_cut = True, lambda: clock.advance(28)
    assert (await container.ending()).exit_code == EXIT_LEASE_LOST
    assert container.lost == ["the lease expired: http://c: ConnectError cut"]
    assert container.engine.stops == []


# --- user code fails -------------------------------------------------------------------------------------------------


async def test_a_query_that_fails_every_time_ends_the_container_and_the_reason_is_in_the_api(there: Place) -> None:
    def explodes(start: StageStart) -> None:
        if start.query == "Partition 1/second":
            raise ValueError("no such column: carrier\0")

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_start=explodes), max_restarts=2)
    assert (await container.ending()).exit_code == EXIT_REPEATED_FAILURE
    assert container.engine.acting == []
    run = await there.run(run_id)
    (incarnation,) = run.incarnations
    assert (incarnation.state, incarnation.exit_code) == ("EXITED", 4)
    assert incarnation.reason.startswith("ValueError: no such column: carrier")
    assert "\nPartition 1/second failed 3 times in a row with this error" in incarnation.reason
    assert [task.holder for task in run.tasks] == [None, None]
    assert run.state == "RUNNING"


async def test_the_status_shows_a_failing_stage_from_its_first_failure_to_its_next_batch(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", log_file="/logs/c1.log", restart_delay_seconds=60)
    queries = await container.engine.all_started(4)
    error = "Traceback (most recent call last):\n  File \"a.py\", line 7, in f\nKeyError: 'carrier'\n\tat org.Spark"
    await queries["Partition 0/first"].ends(error)
    await container.wire.after("failure")
    (failing,) = overview(await there.run(run_id), there.clock.now()).failing
    assert (failing.stage, failing.tasks, failing.error) == ("first", ("Partition 0",), "KeyError: 'carrier'")
    assert (failing.failures, failing.retry_seconds, failing.logs) == (1, 60, ("/logs/c1.log",))
    (problem,) = overview(await there.run(run_id), there.clock.now()).problems
    assert problem.startswith("KeyError: 'carrier' (stage first of Partition 0 failed once; next attempt in 60 s; log: /logs/c1.log)")
    container.agent.stop_requested()
    await container.ending()
    again = there.start(run_id, "c2")
    await (await again.engine.all_started(4))["Partition 0/first"].commits(0)
    await again.wire.after("progress")
    status = overview(await there.run(run_id), there.clock.now())
    assert (status.problems, [each.error for each in status.restarted]) == ((), ["KeyError: 'carrier'"])


async def test_a_container_continues_when_the_coordinator_has_no_route_for_reports_of_failures(there: Place) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1")
    container.wire.foreign["failure"] = [httpx.Response(404, json={"detail": "Not Found"})]
    queries = await container.engine.all_started(4)
    await queries["Partition 0/first"].ends("boom")
    await (await container.engine.started()).commits(0)
    await container.wire.after("progress")
    assert container.wire.answered["foreign"] == 1
    assert not container.life.done()


async def test_a_stage_on_a_full_disk_is_retried_until_there_is_room_and_its_container_continues(there: Place) -> None:
    failures = 8

    def fails(start: StageStart) -> None:
        nonlocal failures
        if start.query == "Partition 0/first" and failures:
            failures -= 1
            raise OSError(ENOSPC, "No space left on device", "/state/offsets/3")

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_start=fails), restart_delay_seconds=0.001, disk_low_bytes=1 << 60)
    queries = await container.engine.all_started(4)
    await container.wire.after("failure")
    (failing,) = overview(await there.run(run_id), there.clock.now()).failing
    assert failing.error.startswith("waiting for room on a disk (state: ")
    assert failing.error.endswith("OSError: [Errno 28] No space left on device: '/state/offsets/3'")
    await queries["Partition 0/first"].commits(0)
    await container.wire.after("progress")
    assert overview(await there.run(run_id), there.clock.now()).problems == ()
    assert not container.life.done()


async def test_a_container_waits_until_the_disk_has_room_for_spark(there: Place) -> None:
    failures = 2

    def fails() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise DiskFull("/state: No space left on device")

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_open=fails))
    await container.engine.all_started(4)
    assert not container.life.done()


async def test_the_reason_of_a_failed_container_names_its_log(there: Place) -> None:
    def no_java() -> None:
        raise JavaMissing("install Java 17 or 21")

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_open=no_java), log_file="/logs/c1.log")
    ending = await container.ending()
    assert (ending.exit_code, ending.reason) == (EXIT_REPEATED_FAILURE, "Java was not found. install Java 17 or 21\nlog: /logs/c1.log")
    assert (await there.run(run_id)).incarnations[0].reason == ending.reason


@pytest.mark.parametrize("error", [StateNotLocal, BadJobFile])
async def test_an_error_that_a_restart_cannot_fix_ends_the_container_at_its_first_occurrence(
    there: Place, error: type[SluiceError]
) -> None:
    def refuses(start: StageStart) -> None:
        if start.query == "Partition 0/first":
            raise error("do this")

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_start=refuses))
    ending = await container.ending()
    assert (ending.exit_code, ending.reason) == (EXIT_FAILED, f"task Partition 0: {error.title()} do this")
    assert [start.query for start in container.engine.tries].count("Partition 0/first") == 1


async def test_a_container_whose_session_does_not_open_fails_with_the_reason(there: Place) -> None:
    def no_java() -> None:
        raise RuntimeError("JAVA_HOME is not set")

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_open=no_java))
    assert (await container.ending()).reason == "RuntimeError: JAVA_HOME is not set"
    assert (await there.run(run_id)).incarnations[0].reason == "RuntimeError: JAVA_HOME is not set"


@pytest.mark.parametrize("ends", [SystemExit("enough"), KeyboardInterrupt(), StopIteration(), GeneratorExit()])
async def test_a_stage_function_that_raises_an_exit_or_an_interrupt_counts_as_failed(there: Place, ends: BaseException) -> None:
    def exits(start: StageStart) -> None:
        if start.query == "Partition 1/second":
            raise ends

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_start=exits), max_restarts=1)
    ending = await container.ending()
    assert ending.exit_code == EXIT_REPEATED_FAILURE
    assert f"UserCodeEnded: user code raised {ends!r:.10}" in ending.reason.splitlines()[0]
    assert (await there.run(run_id)).incarnations[0].reason == ending.reason


# --- Spark fails -----------------------------------------------------------------------------------------------------


async def test_a_container_whose_jvm_was_killed_ends_and_leaves_its_tasks_to_its_process(there: Place, gate: Gate) -> None:
    def dies() -> None:
        gate.wait()
        raise SparkStopped("Spark's JVM was ended by SIGKILL")

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_check=dies))
    await container.engine.all_started(4)
    gate.open()
    ending = await container.ending()
    assert (ending.exit_code, ending.reason) == (EXIT_FAILED, "Spark's JVM was ended by SIGKILL")
    assert container.engine.stops == []
    assert await there.holders(run_id) == {"Partition 0": "c1", "Partition 1": "c1"}
    assert (await there.run(run_id)).incarnations[0].state == "LIVE"


async def test_a_container_whose_driver_hangs_sends_no_heartbeats_and_loses_its_lease(there: Place, gate: Gate) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_check=lambda: (gate.wait(), None)[1]), spark_timeout_seconds=0.2)
    assert (await container.ending()).exit_code == EXIT_LEASE_LOST
    assert container.lost == ["the lease expired: not sent: the driver has not answered for 0.2 s"]
    assert container.wire.answered["containerHeartbeat"] < 10


async def test_a_container_whose_driver_answers_late_keeps_its_lease(there: Place, gate: Gate) -> None:
    run_id = await there.deploy()
    asked: list[None] = []

    def answers_late() -> None:
        asked.append(None)
        if len(asked) == 1:
            gate.wait()

    container = there.start(run_id, "c1", engine=FakeEngine(on_check=answers_late), spark_timeout_seconds=0.2)
    await soon(gate.reached())
    await asyncio.sleep(1)
    before = container.wire.answered["containerHeartbeat"]
    await asyncio.sleep(20)  # of a lease of 27 s
    assert container.wire.answered["containerHeartbeat"] == before
    gate.open()
    await container.wire.after("containerHeartbeat", before + 3)
    assert container.lost == []


async def test_a_spare_whose_driver_hangs_ends_because_it_has_no_lease_to_lose(there: Place, gate: Gate) -> None:
    run_id = await there.deploy()
    there.start(run_id, "c1", engine=FakeEngine())
    hangs = FakeEngine(on_check=lambda: (gate.wait(), None)[1])
    spare = there.start(run_id, "c2", engine=hangs, spare=True, spark_timeout_seconds=0.2)
    ending = await spare.ending()
    assert (ending.exit_code, ending.reason) == (EXIT_FAILED, "the driver has not answered for 0.2 s")
    gate.open()


async def test_a_driver_that_hangs_while_it_opens_loses_the_lease(there: Place, gate: Gate) -> None:
    run_id = await there.deploy()
    hangs = FakeEngine(on_open=lambda: (gate.wait(), None)[1], on_check=lambda: (gate.wait(), None)[1])
    container = there.start(run_id, "c1", engine=hangs, spark_timeout_seconds=0.2)
    assert (await container.ending()).exit_code == EXIT_LEASE_LOST
    gate.open()


async def test_a_stop_does_not_wait_for_a_jvm_that_was_killed_meanwhile(there: Place, gate: Gate) -> None:
    stopping = Gate()

    def never_stops(query: FakeQuery, forced: threading.Event) -> bool:
        stopping.open()
        return gate.wait()

    def dies_then() -> None:
        stopping.wait()
        raise SparkStopped("it was ended by SIGKILL")

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_stop=never_stops, on_check=dies_then))
    await container.engine.all_started(4)
    container.agent.stop_requested()
    ending = await container.ending()
    assert (ending.exit_code, ending.reason) == (EXIT_OK, "stop requested")
    assert await there.holders(run_id) == {"Partition 0": "c1", "Partition 1": "c1"}


async def test_a_task_is_not_released_if_one_of_its_queries_could_not_be_stopped(there: Place) -> None:
    def fails(query: FakeQuery, forced: threading.Event) -> bool:
        if query.start.query == "Partition 1/first":
            raise ConnectionError("the JVM hung up")
        return True

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_stop=fails))
    await container.engine.all_started(4)
    container.agent.stop_requested()
    assert (await container.ending()).exit_code == EXIT_OK
    assert await there.holders(run_id) == {"Partition 0": None, "Partition 1": "c1"}
    assert (await there.run(run_id)).incarnations[0].state == "LIVE"


# --- stops while something is slow -----------------------------------------------------------------------------------


async def test_a_stop_while_the_session_opens_does_not_wait_for_it(there: Place, gate: Gate) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_open=lambda: (gate.wait(), None)[1]))
    await soon(gate.reached())
    container.agent.stop_requested()
    assert (await container.ending()).exit_code == EXIT_OK
    assert container.engine.tries == []


async def test_a_stop_waits_for_a_running_stage_function_and_stops_its_query(there: Place, gate: Gate) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_start=blocking(gate, "Partition 0/first")))
    await soon(gate.reached())
    container.agent.stop_requested()
    gate.open()
    assert (await container.ending()).exit_code == EXIT_OK
    assert "Partition 0/first" in [query for query, _ in container.engine.stops]
    assert container.engine.acting == []


async def test_a_second_stop_does_not_wait_for_a_blocked_function_and_leaves_its_task_to_its_process(there: Place, gate: Gate) -> None:
    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_start=blocking(gate, "Partition 0/first")))
    await container.engine.all_started(3)
    await soon(gate.reached())
    container.agent.stop_requested()
    container.agent.stop_requested()
    assert (await container.ending()).exit_code == EXIT_OK
    assert await there.holders(run_id) == {"Partition 0": "c1", "Partition 1": None}
    assert (await there.run(run_id)).incarnations[0].state == "LIVE"


async def test_a_second_stop_interrupts_running_batches(there: Place) -> None:
    stopping = asyncio.Event()

    def in_the_middle_of_a_batch(query: FakeQuery, forced: threading.Event) -> bool:
        stopping.set()
        wait_in_thread_until(forced.is_set)
        return False

    run_id = await there.deploy()
    container = there.start(run_id, "c1", engine=FakeEngine(on_stop=in_the_middle_of_a_batch))
    await container.engine.all_started(4)
    container.agent.stop_requested()
    await soon(stopping.wait())
    container.agent.stop_requested()
    assert (await container.ending()).exit_code == EXIT_OK
    assert await there.holders(run_id) == {"Partition 0": None, "Partition 1": None}


async def test_a_task_that_was_granted_after_the_stop_is_released_and_not_started(there: Place, gate: Gate) -> None:
    run_id = await there.deploy()
    way = there.new_wire()
    go_on = way.hold("/tasks/Partition 1/acquire")
    container = there.start(run_id, "c1", wire=way, engine=FakeEngine(on_stop=lambda query, forced: gate.wait()))
    await container.engine.all_started(2)
    container.agent.stop_requested()
    await soon(gate.reached())
    go_on.set()
    await way.after("acquire", 2)
    gate.open()
    assert (await container.ending()).exit_code == EXIT_OK
    assert {start.task for start in container.engine.tries} == {"Partition 0"}
    assert await there.holders(run_id) == {"Partition 0": None, "Partition 1": None}
