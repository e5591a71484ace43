"""The queries of a container, with an engine and backups that are not real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

from containers import Job
from containers.backups import Backup
from containers.engine import Start
from containers.meters import Meters
from containers.pacing import Pacer
from containers.queries import Queries
from containers.reports import Reports
from containers.stagerunner import RestartPolicy
from coordinator.core.ids import Generation, Lineage, RunId, TaskName
from tests.fake_engine import FakeEngine, soon
from tests.fakes import FakeClock

LONG = timedelta(seconds=60)


class NoReports:
    def put(self, report: object) -> None: ...


@dataclass
class SlowBackup:
    """Of a store that takes until `go` to be made ready."""

    start: Start
    preparing: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    abandoned: bool = False

    async def prepare(self) -> Start:
        self.preparing.set()
        await self.go.wait()
        return replace(self.start, restored=True)

    @property
    def ready(self) -> Start:
        return replace(self.start, restored=True)

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def finish(self) -> None: ...

    def abandon(self) -> None:
        self.abandoned = True

    def revive(self) -> None:
        self.abandoned = False


@dataclass
class FakePacer:
    opened: bool = False

    async def run(self) -> None:
        await asyncio.Event().wait()

    def open(self) -> None:
        self.opened = True

    def close(self) -> None:
        self.opened = False


def two_starts() -> tuple[Start, Start]:
    job = Job("j")
    read = job.input("in")
    for name in ("quick", "slow"):
        job.stage(reads=read, name=name)(lambda task: None)  # type: ignore[arg-type, return-value]
    first, second = (
        Start(declared, TaskName("Partition 0"), Generation(1), Lineage(declared.stage.name), None, {}, RunId("r"))
        for declared in job.stages
    )
    return first, second


async def opened(
    engine: FakeEngine,
    backup_of: Callable[[Start], SlowBackup | None] = lambda start: None,
    pacer_of: Callable[[Start], FakePacer | None] = lambda start: None,
) -> Queries:
    clock = FakeClock()
    made = Queries(
        engine,
        RestartPolicy(0, timedelta()),
        clock,
        cast(Reports, NoReports()),
        lambda lost: None,
        cast("Callable[[Start], Pacer | None]", pacer_of),
        cast("Callable[[Start], Backup | None]", backup_of),
        Meters(timedelta(seconds=1), clock),
    )
    await made.open()
    return made


async def ended(task: asyncio.Task[Any]) -> None:
    await soon(asyncio.shield(task))


async def test_a_stage_whose_store_was_made_ready_in_a_pause_starts_when_the_others_go_on() -> None:
    quick, slow = two_starts()
    engine, backup = FakeEngine(), SlowBackup(slow)
    queries = await opened(engine, lambda start: backup if start == slow else None)
    running = asyncio.create_task(queries.run([quick, slow]))
    first = await engine.started()
    await soon(backup.preparing.wait())
    await soon(queries.pause(LONG))
    backup.go.set()
    await ended(running)
    assert (first.held, len(engine.queries)) == (True, 1)
    running = asyncio.create_task(queries.run([quick, slow]))
    assert await engine.released() is first
    assert (await engine.started()).start.query == slow.query
    await soon(queries.stop(LONG))
    await ended(running)
    assert engine.acting == []


async def test_a_query_that_cannot_be_held_is_stopped_and_starts_again() -> None:
    quick, _ = two_starts()
    engine = FakeEngine(on_hold=lambda query, forced: False)
    queries = await opened(engine)
    running = asyncio.create_task(queries.run([quick]))
    first = await engine.started()
    await soon(queries.pause(LONG))
    await ended(running)
    assert first.stopped
    running = asyncio.create_task(queries.run([quick]))
    assert await engine.started() is not first
    await soon(queries.stop(LONG))
    await ended(running)


async def test_a_held_query_that_is_stopped_does_not_go_on() -> None:
    quick, _ = two_starts()
    engine = FakeEngine()
    queries = await opened(engine)
    running = asyncio.create_task(queries.run([quick]))
    query = await engine.started()
    await soon(queries.pause(LONG))
    await ended(running)
    assert await soon(queries.stop(LONG)) == set()
    assert (query.stopped, query.held) == (True, False)


async def test_what_keeps_a_query_in_step_with_others_holds_it_again_when_it_goes_on() -> None:
    quick, _ = two_starts()
    engine, pacers = FakeEngine(), list[FakePacer]()

    def pacer_of(start: Start) -> FakePacer:
        pacers.append(FakePacer())
        return pacers[-1]

    queries = await opened(engine, pacer_of=pacer_of)
    running = asyncio.create_task(queries.run([quick]))
    await engine.started()
    await soon(queries.pause(LONG))
    await ended(running)
    (pacer,) = pacers
    assert pacer.opened
    running = asyncio.create_task(queries.run([quick]))
    await engine.released()
    assert (pacer.opened, len(pacers)) == (False, 1)
    await soon(queries.stop(LONG))
    await ended(running)


async def test_what_was_abandoned_in_a_hurry_stays_abandoned_when_a_drain_begins_its_work() -> None:
    quick, _ = two_starts()
    backup = SlowBackup(quick)
    backup.go.set()
    queries = await opened(FakeEngine(), lambda start: backup)
    prepared = await queries.prepare([quick])
    assert prepared is not None

    async def abandoned() -> bool:
        return backup.abandoned

    backup.abandon()
    assert not await queries.beside_backups(prepared, abandoned())
    queries.hurry()
    assert await queries.beside_backups(prepared, abandoned())
