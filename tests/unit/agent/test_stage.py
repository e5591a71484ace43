from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest

from containers.agent.async_engine import AsyncEngine
from containers.agent.failures import RestartPolicy, StageFailed, StageFailure
from containers.agent.stage import StageRunner
from containers.engine import StageStart
from containers.errors import CheckpointUnreadable, OffsetsTrimmed, StateIncompatible, StateNotLocal
from sluice.core.errors import BadJobFile, LeaseLost, SluiceError
from sluice.core.ids import Generation, Lineage, RunId, StageName, TaskName
from sluice.core.jobmodels.graph import Stage
from tests.support.engines import FakeEngine, soon
from tests.support.fakes import FakeClock

TINY = timedelta(milliseconds=1)
LONG = timedelta(seconds=60)


def ignored(*what: object) -> None: ...


async def confirmed(task: TaskName, generation: Generation) -> None: ...


START = StageStart(
    stage=Stage(StageName("hourly"), ("in",), ("out",)),
    task=TaskName("Partition 0"),
    generation=Generation(3),
    lineage=Lineage("l"),
    reported=None,
    starts={},
    first_run=RunId("r"),
)


class Bench:
    """A stage runner with a fake engine and a fake clock."""

    def __init__(
        self,
        policy: RestartPolicy,
        engine: FakeEngine | None = None,
        check_lease: Callable[[object], None] = lambda error: None,
        job_directory: Path | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.engine = engine or FakeEngine()
        self.on_loop = AsyncEngine(self.engine)
        self.failures: list[StageFailure] = []
        self.runner = StageRunner(
            self.on_loop,
            START,
            policy,
            self.clock,
            on_failure=self.failures.append,
            check_lease=check_lease,
            job_directory=job_directory,
        )

    def runs(self) -> asyncio.Task[None]:
        async def run() -> None:
            if not self.engine.opened:
                await self.on_loop.open(ignored, ignored, ignored, ignored, ignored, confirmed)
            await self.runner.run()

        return asyncio.create_task(run())

    async def stop(self) -> bool:
        return await soon(self.runner.stop(LONG))

    async def pause(self) -> bool:
        return await soon(self.runner.pause(LONG))


async def fail_for_ever(engine: FakeEngine, before: Callable[[int], Awaitable[None]] | None = None) -> None:
    number = 0
    while True:
        query = await engine.started()
        number += 1
        if before is not None:
            await before(number)
        await query.ends(f"failure {number}")


# --- restarts --------------------------------------------------------------------------------------------------------


def test_pauses_double_up_to_a_minute() -> None:
    policy = RestartPolicy(10, timedelta(seconds=1))
    assert [policy.pause_after(n).total_seconds() for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_failed_query_is_restarted_under_the_same_generation() -> None:
    bench = Bench(RestartPolicy(5, TINY))
    run = bench.runs()
    await (await bench.engine.started()).ends("boom")
    await bench.engine.started()
    assert bench.engine.tries == [START, START]
    await bench.stop()
    await soon(run)


@pytest.mark.parametrize("limit", [0, 3])
async def test_a_query_that_fails_more_often_than_the_limit_ends_with_its_last_error(limit: int) -> None:
    bench = Bench(RestartPolicy(limit, TINY))
    failing = asyncio.create_task(fail_for_ever(bench.engine))
    reported = f"failure {limit + 1}\nPartition 0/hourly failed {limit + 1} times within .*; this is the last error"
    with pytest.raises(StageFailed, match=reported):
        await soon(bench.runs())
    failing.cancel()
    assert len(bench.engine.tries) == limit + 1
    assert [each.failures for each in bench.failures] == list(range(1, limit + 2))
    assert bench.failures[-1] == StageFailure(f"failure {limit + 1}", limit + 1, None)


async def test_a_batch_that_fails_again_with_the_same_error_is_tried_only_once_more() -> None:
    bench = Bench(RestartPolicy(5, TINY))
    run = bench.runs()
    for _ in range(3):
        await (await bench.engine.started()).ends("KeyError: 'carrier'")
    with pytest.raises(StageFailed, match="KeyError: 'carrier'\nPartition 0/hourly failed 3 times in a row with this error") as raised:
        await soon(run)
    assert raised.value.repeated
    assert [(each.error, each.retry_in) for each in bench.failures] == [
        ("KeyError: 'carrier'", TINY),
        ("KeyError: 'carrier'", 30 * TINY),
        ("KeyError: 'carrier'", None),
    ]


async def test_the_same_error_in_another_batch_is_counted_from_one() -> None:
    bench = Bench(RestartPolicy(5, TINY))
    run = bench.runs()
    for _ in range(5):
        await (await bench.engine.started()).ends("no broker")
        bench.runner.committed()
    await bench.engine.started()
    await bench.stop()
    await soon(run)


async def test_state_of_another_version_of_the_stage_ends_it_at_the_first_failure() -> None:
    bench = Bench(RestartPolicy(5, TINY))
    run = bench.runs()
    await (await bench.engine.started()).ends("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match")
    with pytest.raises(StateIncompatible, match="sluice upgrade JOBFILE"):
        await soon(run)
    assert len(bench.engine.tries) == 1
    assert [each.retry_in for each in bench.failures] == [None]


async def test_a_query_that_does_not_start_is_counted_and_reported_in_the_same_way() -> None:
    def explodes(start: StageStart) -> None:
        raise ValueError("no such column")

    bench = Bench(RestartPolicy(2, TINY), FakeEngine(on_start=explodes))
    with pytest.raises(StageFailed, match=r"^ValueError: no such column\n"):
        await soon(bench.runs())
    assert len(bench.engine.tries) == 3


async def test_an_error_of_a_stage_function_begins_with_its_line_of_the_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text("def hourly(task):\n    int('carrier')\n")
    module = ModuleType("sluice_job")
    exec(compile(file.read_text(), str(file), "exec"), vars(module))
    bench = Bench(RestartPolicy(0, TINY), FakeEngine(on_start=module.hourly), job_directory=tmp_path)
    with pytest.raises(StageFailed, match=f"^{file}:2 in hourly: ValueError: invalid literal"):
        await soon(bench.runs())


async def test_a_query_that_ends_without_an_error_is_restarted_too() -> None:
    bench = Bench(RestartPolicy(0, TINY))
    run = bench.runs()
    await (await bench.engine.started()).ends(None)
    with pytest.raises(StageFailed, match="the query ended by itself"):
        await soon(run)


async def test_occasional_failures_are_restarted_without_limit() -> None:
    bench = Bench(RestartPolicy(1, TINY))
    run = bench.runs()
    for _ in range(8):
        query = await bench.engine.started()
        bench.clock.advance(601)
        await query.ends("boom")
    await bench.engine.started()
    await bench.stop()
    await soon(run)


async def test_each_pause_is_twice_the_last_and_short_again_after_a_time_without_failures(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(RestartPolicy(5, TINY))

    async def quiet_before_the_fourth(number: int) -> None:
        bench.clock.advance(1000 if number == 4 else 1)

    failing = asyncio.create_task(fail_for_ever(bench.engine, quiet_before_the_fourth))
    with caplog.at_level(logging.WARNING, "containers.agent.stage"), pytest.raises(StageFailed):
        await soon(bench.runs())
    failing.cancel()
    pauses = [record.args[3] / TINY for record in caplog.records if record.args and len(record.args) == 5]  # type: ignore[index, operator]
    assert pauses == [1, 2, 4, 1, 2, 4, 8, 16]


@pytest.mark.parametrize("error", [LeaseLost, StateNotLocal, BadJobFile, CheckpointUnreadable, OffsetsTrimmed])
async def test_an_error_that_no_restart_can_fix_is_raised_immediately(error: type[SluiceError]) -> None:
    def refuses(start: StageStart) -> None:
        raise error("a reason")

    bench = Bench(RestartPolicy(5, TINY), FakeEngine(on_start=refuses))
    with pytest.raises(error, match="a reason"):
        await soon(bench.runs())
    assert len(bench.engine.tries) == 1


async def test_a_failure_after_the_end_of_the_lease_is_neither_counted_nor_reported_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    def expired(error: object) -> None:
        raise LeaseLost("the lease expired")

    bench = Bench(RestartPolicy(5, TINY), check_lease=expired)
    run = bench.runs()
    query = await bench.engine.started()
    with caplog.at_level(logging.WARNING):
        await query.ends("OffsetsTrimmed: records 3 to 34 are needed and were deleted")
        with pytest.raises(LeaseLost):
            await soon(run)
    assert bench.failures == []
    assert not caplog.records


async def test_an_end_that_is_reported_before_the_start_has_returned_is_not_lost() -> None:
    bench = Bench(RestartPolicy(0, TINY), FakeEngine(ends_told_early=True))
    with pytest.raises(StageFailed, match="it ended before its token was known"):
        await soon(bench.runs())


# --- stops -----------------------------------------------------------------------------------------------------------


async def test_a_running_query_is_stopped_with_the_deadline_and_not_started_again() -> None:
    bench = Bench(RestartPolicy(5, TINY))
    run = bench.runs()
    await bench.engine.started()
    assert await bench.stop() is True
    await soon(run)
    assert bench.engine.stops == [("Partition 0/hourly", LONG)]
    assert len(bench.engine.tries) == 1


async def test_a_batch_that_had_to_be_interrupted_is_logged() -> None:
    bench = Bench(RestartPolicy(5, TINY), FakeEngine(on_stop=lambda query, forced: not forced.is_set()))
    run = bench.runs()
    await bench.engine.started()
    bench.engine.interrupt_batches()
    assert await bench.stop() is False
    await soon(run)


async def test_a_stop_returns_when_the_last_progress_has_been_reported() -> None:
    bench = Bench(RestartPolicy(5, TINY))
    run = bench.runs()
    query = await bench.engine.started()
    await bench.stop()
    assert bench.on_loop.end_of(query.token).done()
    await soon(run)


async def starting() -> tuple[Bench, asyncio.Task[None], threading.Event]:
    """A runner whose query is just starting, until the event is set."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(start: StageStart) -> None:
        begun.set()
        assert go_on.wait(300)

    bench = Bench(RestartPolicy(5, TINY), FakeEngine(on_start=slow))
    run = bench.runs()
    await soon(asyncio.to_thread(begun.wait, 20))
    return bench, run, go_on


async def test_a_query_that_is_starting_is_stopped_once_it_has_started() -> None:
    bench, run, go_on = await starting()
    stop = asyncio.create_task(bench.stop())
    await asyncio.sleep(0)
    assert bench.engine.stops == []
    go_on.set()
    assert await soon(stop) is True
    await soon(run)
    assert bench.engine.acting == []
    assert len(bench.engine.queries) == 1


async def test_a_query_that_is_starting_is_stopped_although_its_runner_was_cancelled() -> None:
    """As when the backup of its stage fails for good. Otherwise its task would be released while it runs."""
    bench, run, go_on = await starting()
    run.cancel()
    await asyncio.wait({run})
    stop = asyncio.create_task(bench.stop())
    await asyncio.sleep(0)
    assert not stop.done()
    go_on.set()
    assert await soon(stop) is True
    assert bench.engine.acting == []
    assert len(bench.engine.queries) == 1


async def test_a_stop_ends_the_pause_before_a_restart_and_prevents_the_restart() -> None:
    bench = Bench(RestartPolicy(5, timedelta(minutes=1)))
    run = bench.runs()
    await (await bench.engine.started()).ends("boom")
    await bench.stop()
    await soon(run)
    assert len(bench.engine.tries) == 1


async def test_a_stop_after_a_failed_restart_does_not_touch_the_ended_query() -> None:
    def only_once(start: StageStart) -> None:
        if len(bench.engine.tries) > 1:
            failed.set()
            raise ValueError("not again")

    failed = threading.Event()
    bench = Bench(RestartPolicy(5, timedelta(milliseconds=1)), FakeEngine(on_start=only_once))
    run = bench.runs()
    await (await bench.engine.started()).ends("boom")
    await soon(asyncio.to_thread(failed.wait, 20))
    await bench.stop()
    await soon(run)
    assert bench.engine.stops == []


async def test_a_runner_that_is_stopped_before_it_ran_starts_nothing() -> None:
    bench = Bench(RestartPolicy(5, TINY))
    assert await bench.stop() is True
    await soon(bench.runner.run())
    assert bench.engine.tries == []


async def test_a_stop_may_be_requested_twice() -> None:
    bench = Bench(RestartPolicy(5, TINY))
    run = bench.runs()
    await bench.engine.started()
    assert [await bench.stop(), await bench.stop()] == [True, True]
    await soon(run)
    assert len(bench.engine.stops) == 1


# --- holding ---------------------------------------------------------------------------------------------------------


async def test_a_paused_query_continues_when_its_runner_runs_again() -> None:
    bench = Bench(RestartPolicy(5, TINY))
    run = bench.runs()
    query = await bench.engine.started()
    assert await bench.pause() is True
    await soon(run)
    assert (bench.runner.paused, query.held) == (True, True)
    run = bench.runs()
    assert await bench.engine.resumed() is query
    assert not bench.runner.paused
    await bench.stop()
    await soon(run)
    assert len(bench.engine.tries) == 1


async def test_a_query_that_ended_while_paused_counts_as_failed_when_it_would_continue() -> None:
    bench = Bench(RestartPolicy(1, TINY))
    run = bench.runs()
    query = await bench.engine.started()
    await bench.pause()
    await soon(run)
    await query.ends("its state is gone")
    run = bench.runs()
    again = await bench.engine.started()
    assert bench.runner.restarts == 1
    await again.ends("boom")
    with pytest.raises(StageFailed, match="boom"):
        await soon(run)


async def test_a_query_that_cannot_be_paused_is_stopped_instead() -> None:
    bench = Bench(RestartPolicy(5, TINY), FakeEngine(on_pause=lambda query, forced: False))
    run = bench.runs()
    query = await bench.engine.started()
    assert await bench.pause() is True
    await soon(run)
    assert (bench.runner.paused, query.stopped) == (False, True)


async def test_a_query_that_is_starting_is_paused_once_it_has_started() -> None:
    bench, run, go_on = await starting()
    pause = asyncio.create_task(bench.pause())
    await asyncio.sleep(0)
    go_on.set()
    await soon(pause)
    await soon(run)
    assert [query.held for query in bench.engine.queries] == [True]


async def test_a_stop_while_a_paused_query_is_about_to_continue_is_not_lost() -> None:
    bench = Bench(RestartPolicy(5, TINY))
    run = bench.runs()
    query = await bench.engine.started()
    await bench.pause()
    await soon(run)
    run, stop = bench.runs(), asyncio.create_task(bench.stop())
    await soon(stop)
    await soon(run)
    assert query.stopped
    assert len(bench.engine.tries) == 1
