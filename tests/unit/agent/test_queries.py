"""The queries of a container, with a fake engine and fake backups."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

from containers.agent.failures import RestartPolicy
from containers.agent.progress import ProgressReport, ProgressReporter
from containers.agent.queries import Queries
from containers.agent.stage import StageContext
from containers.engine import StageStart
from containers.state.backup import Backup
from sluice import Job
from sluice.core.ids import Generation, Lineage, RunId, Ssp, TaskName
from tests.support.engines import FakeEngine, FakeQuery, soon
from tests.support.fakes import FakeClock

LONG = timedelta(seconds=60)


class Reports:
    def __init__(self) -> None:
        self.all: list[ProgressReport] = []

    def put(self, report: ProgressReport) -> None:
        self.all.append(report)


@dataclass
class SlowBackup:
    """A backup of a stage whose preparation takes until `go`."""

    start: StageStart
    preparing: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned: bool = False
    finished: int = 0
    forgotten: bool = False
    problem: str | None = None

    async def prepare(self) -> StageStart:
        self.preparing.set()
        await self.go.wait()
        return replace(self.start, restored=True)

    def extend(self, start: StageStart) -> None:
        self.start = start

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def watch(self, report: Callable[[], None]) -> None:
        await asyncio.Event().wait()

    async def finish(self) -> None:
        self.finished += 1

    def forget(self) -> None:
        self.forgotten = True

    def release_batches(self) -> None:
        self.abandoned = True

    def hold_batches(self) -> None:
        self.abandoned = False


def two_starts() -> tuple[StageStart, StageStart]:
    job = Job("j")
    read = job.input("in")
    for name in ("quick", "slow"):
        job.stage(reads=read, name=name)(lambda task: None)  # type: ignore[arg-type, return-value]
    first, second = (
        StageStart(declared.stage, TaskName("Partition 0"), Generation(1), Lineage(declared.stage.name), None, {}, RunId("r"))
        for declared in job.stages
    )
    return first, second


async def opened(
    engine: FakeEngine,
    backup_of: Callable[[StageStart], SlowBackup | None] = lambda start: None,
    reports: Reports | None = None,
) -> Queries:
    context = StageContext(
        policy=RestartPolicy(0, timedelta()),
        trigger=timedelta(seconds=1),
        clock=FakeClock(),
        reporter=cast(ProgressReporter, reports or Reports()),
        new_backup=cast("Callable[[StageStart], Backup | None]", backup_of),
    )
    made = Queries(engine, context, lambda lost: None, confirmed)
    await made.open()
    return made


async def confirmed(task: TaskName, generation: Generation) -> None:
    """A confirmation by the coordinator."""


def runs(queries: Queries, *starts: StageStart) -> asyncio.Task[Any]:
    """Run these stages as if the task had been acquired."""
    stages = [queries.add(start) for start in starts]
    return asyncio.ensure_future(asyncio.gather(*(queries.run(stage) for stage in stages)))


async def ended(task: asyncio.Task[Any]) -> None:
    await soon(asyncio.shield(task))


async def test_a_stage_that_was_prepared_during_a_pause_starts_when_the_others_continue() -> None:
    quick, slow = two_starts()
    engine, backup = FakeEngine(), SlowBackup(slow)
    queries = await opened(engine, lambda start: backup if start == slow else None)
    running = runs(queries, quick, slow)
    first = await engine.started()
    await soon(backup.preparing.wait())
    await soon(queries.pause(LONG))
    backup.go.set()
    await ended(running)
    assert (first.held, len(engine.queries)) == (True, 1)
    running = runs(queries, quick, slow)
    assert await engine.resumed() is first
    assert (await engine.started()).start.query == slow.query
    await soon(queries.stop(LONG))
    await ended(running)
    assert engine.acting == []


async def test_a_query_that_cannot_be_paused_is_stopped_and_restarted() -> None:
    quick, _ = two_starts()
    engine = FakeEngine(on_pause=lambda query, forced: False)
    queries = await opened(engine)
    running = runs(queries, quick)
    first = await engine.started()
    await soon(queries.pause(LONG))
    await ended(running)
    assert first.stopped
    running = runs(queries, quick)
    assert await engine.started() is not first
    await soon(queries.stop(LONG))
    await ended(running)


async def test_a_paused_query_that_is_stopped_does_not_continue() -> None:
    quick, _ = two_starts()
    engine = FakeEngine()
    queries = await opened(engine)
    running = runs(queries, quick)
    query = await engine.started()
    await soon(queries.pause(LONG))
    await ended(running)
    assert await soon(queries.stop(LONG)) == set()
    assert (query.stopped, query.held) == (True, False)


async def test_a_stage_has_metrics_while_it_runs_and_its_progress_is_reported_without_them_after_that() -> None:
    quick, _ = two_starts()
    engine, reports = FakeEngine(), Reports()
    queries = await opened(engine, reports=reports)
    running = runs(queries, quick)
    query = await engine.started()
    await query.commits(0)
    assert [meter.stage for meter in queries.meters()] == ["quick"]
    await soon(queries.pause(LONG))
    await ended(running)
    assert queries.meters() == []
    await query.commits(1)
    await asyncio.sleep(0)
    assert [(report.batch, report.metrics is None) for report in reports.all] == [(0, False), (1, True)]


# --- some of them ----------------------------------------------------------------------------------------------------


async def test_some_queries_restart_with_more_partitions_while_the_others_continue() -> None:
    quick, slow = two_starts()
    engine = FakeEngine()
    queries = await opened(engine)
    others, running = runs(queries, quick), runs(queries, slow)
    await engine.all_started(2)
    assert await soon(queries.stop_stages([queries.add(slow)], LONG)) == []
    await ended(running)
    assert engine.acting == [quick.query]
    longer = replace(slow, starts={Ssp("log", "in", 0): 0, Ssp("log", "in", 1): 7})
    begun = asyncio.create_task(queries.add(slow).started.wait())
    running = runs(queries, longer)
    assert (await engine.started()).start == longer
    await ended(begun)
    await soon(queries.stop(LONG))
    await ended(running)
    await ended(others)


async def test_a_query_that_was_prepared_restarts_with_more_partitions() -> None:
    quick, _ = two_starts()
    engine, backup = FakeEngine(), SlowBackup(quick)
    backup.go.set()
    queries = await opened(engine, lambda start: backup)
    running = runs(queries, quick)
    await engine.started()
    await soon(queries.stop_stages([queries.add(quick)], LONG))
    await ended(running)
    longer = replace(quick, starts={Ssp("log", "in", 0): 0})
    running = runs(queries, longer)
    again = (await engine.started()).start
    assert (again.starts, again.restored) == (longer.starts, True)
    await soon(queries.stop(LONG))
    await ended(running)


async def test_a_query_that_is_stopped_during_its_preparation_does_not_start() -> None:
    _, slow = two_starts()
    engine, backup = FakeEngine(), SlowBackup(slow)
    queries = await opened(engine, lambda start: backup)
    running = runs(queries, slow)
    await soon(backup.preparing.wait())
    await soon(queries.stop_stages([queries.add(slow)], LONG))
    await ended(running)
    assert engine.queries == []


async def test_a_query_that_cannot_be_stopped_is_logged_every_time() -> None:
    def fail(query: FakeQuery, forced: threading.Event) -> bool:
        raise RuntimeError("Py4J failed")

    quick, _ = two_starts()
    engine = FakeEngine(on_stop=fail)
    queries = await opened(engine)
    running = runs(queries, quick)
    await engine.started()
    assert await soon(queries.stop_stages([queries.add(quick)], LONG)) == [queries.add(quick)]
    assert await soon(queries.stop(LONG)) == {quick.task}
    running.cancel()


async def test_a_task_that_was_released_is_committed_and_starts_again_when_it_returns() -> None:
    quick, _ = two_starts()
    engine, made = FakeEngine(), list[SlowBackup]()

    def backup_of(start: StageStart) -> SlowBackup:
        made.append(SlowBackup(start))
        made[-1].go.set()
        return made[-1]

    queries = await opened(engine, backup_of)
    for _ in range(2):
        running = runs(queries, quick)
        await engine.started()
        await soon(queries.stop_stages([queries.add(quick)], LONG))
        await ended(running)
        await soon(queries.release([queries.add(quick)], LONG))
    assert [(each.finished, each.forgotten) for each in made] == [(1, True), (1, True)]
    assert engine.forgotten == [quick.query, quick.query]


async def test_queries_that_were_abandoned_stay_abandoned_when_a_drain_begins() -> None:
    quick, _ = two_starts()
    backup = SlowBackup(quick)
    backup.go.set()
    queries = await opened(FakeEngine(), lambda start: backup)
    stage = queries.add(quick)
    assert await queries.prepare([stage])

    async def abandoned() -> bool:
        return backup.abandoned

    backup.release_batches()
    assert not await queries.concurrently_with_commits([stage], abandoned())
    queries.interrupt_batches()
    assert await queries.concurrently_with_commits([stage], abandoned())


async def test_a_query_that_ends_during_a_stop_counts_as_stopped_in_time() -> None:
    """The end of a query is reported to several listeners one after the other, and the event loop may run a stop in between."""
    start = replace(two_starts()[0], reported=7)
    for turns in range(8):
        queries = await opened(FakeEngine())
        begun, go, gone = threading.Event(), threading.Event(), threading.Event()

        def work(_: Any, begun: threading.Event = begun, go: threading.Event = go, gone: threading.Event = gone) -> None:
            begun.set()
            assert go.wait(300)
            threading.Timer(0.02, gone.set).start()  # by then the worker thread has reported its end

        working = asyncio.create_task(queries.engine.run_for(start.task, work))
        await asyncio.to_thread(begun.wait)
        go.set()
        assert gone.wait(300), "the event loop is blocked until then"
        for _ in range(turns):
            await asyncio.sleep(0)
        assert await soon(queries.stop(LONG)) == set(), f"{turns} turns later"
        await soon(working)


async def test_a_failure_of_work_that_is_no_longer_awaited_is_not_logged() -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    queries, begun, go = await opened(FakeEngine()), threading.Event(), threading.Event()

    def work(_: Any) -> None:
        begun.set()
        assert go.wait(300)
        raise ValueError("the run is over")

    working = asyncio.create_task(queries.engine.run_for(two_starts()[0].task, work))
    await asyncio.to_thread(begun.wait)
    working.cancel()
    await asyncio.wait({working})
    go.set()
    assert await soon(queries.stop(LONG)) == set()
    del working
    gc.collect()
    assert complaints == []
