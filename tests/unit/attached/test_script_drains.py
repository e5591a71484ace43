"""The part of an agent in a drain of its script, with queries that exist only here."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from containers.agent.lifecycle import ContainerLifecycle
from containers.attached.port import Flushed, agent_methods, driver_methods
from containers.attached.script_drains import ScriptDrains, commit, flush_order
from containers.engine import Position
from containers.rpc.connection import Connection
from containers.rpc.socket_link import SocketLink
from sluice.client import Refused
from sluice.core.drain import Mode, Phase
from sluice.core.errors import BlobStoreUnusable, CoordinatorUnreachable
from sluice.core.ids import Generation, RunId, Ssp, StageName
from sluice.wire import drains as wire_drains
from tests.support.fakes import FakeClock
from tests.support.script_peers import DriverPeer

STEPS = {"stopped": Phase.FLUSHING, "flushed": Phase.COMMITTING, "committed": Phase.DRAINED}


class Coordinator:
    """Moves a drain as soon as all stages have taken a step; `ends`: to this phase instead, when all have stopped. `away`: it does not
    answer."""

    def __init__(self, stages: Sequence[str], phase: Phase, ends: Phase | None) -> None:
        self.phase = phase
        self.phases = [Phase.FLUSHING] if phase is Phase.FLUSHING else []
        self.taken: dict[str, list[str]] = {name: [] for name in (*STEPS, "flushing")}
        self.stages = stages
        self.away = False
        self._ends = ends

    async def basic_run(self, run: RunId) -> Any:
        return SimpleNamespace(drain=self.drain_of_run)

    @property
    def drain_of_run(self) -> Any:
        return SimpleNamespace(uuid="d-1", phase=self.phase, mode=Mode.DEFAULT)

    async def drain(self, uuid: str) -> Any:
        self._answer()
        stages = [SimpleNamespace(stage=each, step=self._step_of(each), batch_id=None, offsets=()) for each in self.stages]
        containers = [SimpleNamespace(tasks=[SimpleNamespace(stages=stages)])]
        phases = [SimpleNamespace(phase=each) for each in self.phases]
        return SimpleNamespace(uuid=uuid, phase=self.phase, phases=phases, containers=containers, catch_up=(), reason="")

    async def drain_step(self, run: Any, task: Any, stage: StageName, body: wire_drains.DrainStepRequest) -> Any:
        self._answer()
        self.taken[body.step].append(stage)
        if body.step in STEPS and set(self.taken[body.step]) == set(self.stages):
            self.phase = self._ends if body.step == "stopped" and self._ends is not None else STEPS[body.step]
            self.phases += [Phase.FLUSHING] if self.phase is Phase.FLUSHING else []
        return wire_drains.DrainStepReply(phase=self.phase, flushed=self.flushed)

    def _step_of(self, stage: str) -> str | None:
        return next((step for step in ("committed", "flushed", "flushing", "stopped") if stage in self.taken[step]), None)

    @property
    def flushed(self) -> tuple[str, ...] | None:
        """A coordinator names the stages that the run declares, and those of a script are not declared."""
        return () if self.phase is Phase.FLUSHING else None

    def _answer(self) -> None:
        if self.away:
            raise CoordinatorUnreachable("it is restarting")


async def until(found: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if found():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not happen")


class World:
    """A drain of queries that feed each other. `journal`: what the driver did."""

    def __init__(
        self, feeds: Mapping[str, Sequence[str]], *, fails: str = "", phase: Phase = Phase.STOPPING, ends: Phase | None = None
    ) -> None:
        self.journal: list[str] = []
        self.feeds = feeds
        self.fails = fails
        self.coordinator = Coordinator(list(feeds), phase, ends)
        self.left = asyncio.Event()
        self.backups = self.failing_backups = 0
        self.may_back_up = asyncio.Event()
        self.may_back_up.set()
        self.runs = list(feeds)
        """The queries that run."""
        self._loop = asyncio.get_running_loop()

    @asynccontextmanager
    async def draining(self) -> AsyncIterator[ScriptDrains]:
        coordinator: Any = self.coordinator
        lifecycle = ContainerLifecycle(FakeClock(), timedelta(seconds=1), lambda reason: None)
        drains = ScriptDrains(coordinator, RunId("run-1"), Generation(4), lifecycle, self._backed_up)
        drains.begin(self.coordinator.drain_of_run)
        drains.advance(wire_drains.DrainNotice(uuid="d-1", phase=self.coordinator.phase, flushed=self.coordinator.flushed))
        running = asyncio.create_task(drains.run())
        try:
            async with self.attached(drains):
                yield drains
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    @asynccontextmanager
    async def attached(self, drains: ScriptDrains) -> AsyncIterator[None]:
        """A driver, whose agent has these drains."""
        ours, theirs = socket.socketpair()
        self.told = driver = DriverPeer(ours, **self._answers())
        agent = Connection(SocketLink(theirs), driver_methods(), agent_methods(), {})
        agent.start()
        drains.attached(agent)
        try:
            yield
        finally:
            agent.close()
            driver.connection.close()

    async def _backed_up(self, stage: StageName) -> Any:
        self.backups += 1
        if self.backups <= self.failing_backups:
            raise BlobStoreUnusable("its disk is not mounted")
        await self.may_back_up.wait()

    def _answers(self) -> dict[str, Callable[..., Any]]:
        def pause_queries(drain: str, needed: Sequence[str]) -> Mapping[StageName, Position]:
            self.journal.append(f"pause {','.join(sorted(needed))}")
            return {StageName(name): Position(7, {Ssp("kafka", name, 0): 40}) for name in self.runs}

        def flush(drain: str, stage: str, feeders: Sequence[str]) -> Flushed:
            if stage == self.fails:
                raise RuntimeError("the sink is full")
            self.journal.append(f"flush {stage} after {','.join(feeders) or 'nothing'}")
            return Flushed(Position(8, {}))

        def leave(drain: str, end: bool) -> None:
            self.journal.append("end" if end else "continue")
            self._loop.call_soon_threadsafe(self.left.set)

        return {"pause_queries": pause_queries, "feeders": lambda: self.feeds, "flush": flush, "leave": leave}


async def test_each_query_is_flushed_after_those_that_write_its_input_and_all_end_together_before_they_are_committed() -> None:
    world = World({"minutes": ["tens"], "tens": [], "alerts": ["minutes", "tens"]})
    async with world.draining():
        await world.left.wait()
        await until(lambda: world.coordinator.phase is Phase.DRAINED)
    assert world.journal == [
        "pause alerts,minutes,tens",
        "flush tens after nothing",
        "flush minutes after tens",
        "flush alerts after minutes,tens",
        "end",
    ]
    assert {*world.coordinator.taken["committed"]} == {"alerts", "minutes", "tens"}


async def test_queries_that_write_each_others_input_are_flushed_one_after_the_other() -> None:
    world = World({"a": ["b"], "b": ["a"]})
    async with world.draining():
        await world.left.wait()
    assert [each for each in world.journal if each.startswith("flush")] == ["flush a after b", "flush b after a"]


def test_a_query_that_writes_its_own_input_waits_for_no_other() -> None:
    a, b = StageName("a"), StageName("b")
    assert flush_order([a, b], {a: [a], b: [a, b]}) == {a: frozenset(), b: {a}}


@pytest.mark.parametrize("over", [Phase.CANCELLED, Phase.FAILED])
async def test_a_drain_that_is_over_before_the_flush_lets_the_queries_continue(over: Phase) -> None:
    world = World({"tens": [], "minutes": ["tens"]}, ends=over)
    async with world.draining():
        await world.left.wait()
    assert world.journal == ["pause minutes,tens", "continue"]


async def test_a_drain_that_was_flushing_when_the_script_started_goes_on_and_the_driver_is_informed_of_that() -> None:
    world = World({"tens": []}, phase=Phase.FLUSHING)
    async with world.draining():
        await world.left.wait()
        assert world.told.next("drain").flushing
    assert world.journal == ["pause tens", "flush tens after nothing", "end"]
    assert world.coordinator.taken["stopped"] == []


async def test_a_query_that_fails_ends_the_others_and_is_not_reported_as_flushed(caplog: pytest.LogCaptureFixture) -> None:
    world = World({"tens": [], "minutes": ["tens"]}, fails="tens")
    async with world.draining():
        await world.left.wait()
        await until(lambda: "continues when the script is started again" in caplog.text)
    assert "the sink is full" in caplog.text
    assert world.journal == ["pause minutes,tens", "end"]
    assert world.coordinator.taken["flushed"] == []


async def test_a_stage_that_an_earlier_start_has_flushed_and_whose_query_does_not_run_is_committed_with_the_others() -> None:
    world = World({"minutes": ["tens"], "tens": []}, phase=Phase.FLUSHING)
    world.coordinator.taken["flushed"].append("tens")
    world.runs = ["minutes"]
    async with world.draining():
        await until(lambda: world.coordinator.phase is Phase.DRAINED)
    assert world.journal == ["pause minutes", "flush minutes after tens", "end"]
    assert {*world.coordinator.taken["committed"]} == {"minutes", "tens"}


async def test_a_drain_waits_for_a_backup_that_fails_also_with_an_error_that_an_operator_must_act_on() -> None:
    world = World({"tens": []})
    world.failing_backups = 2
    async with world.draining():
        await world.left.wait()
    assert (world.backups, world.journal[-1]) == (3, "end")


async def test_a_drain_that_is_cancelled_while_a_checkpoint_is_backed_up_lets_the_queries_continue_at_once() -> None:
    world = World({"tens": []})
    world.may_back_up.clear()
    async with world.draining() as drains:
        await until(lambda: world.backups == 1)
        drains.advance(wire_drains.DrainNotice(uuid="d-1", phase=Phase.CANCELLED))
        await world.left.wait()
    assert world.journal == ["pause tens", "continue"]


async def test_a_second_driver_is_told_that_the_drain_of_the_first_one_is_over() -> None:
    world = World({"tens": []})
    world.may_back_up.clear()
    async with world.draining() as drains:
        await until(lambda: world.backups == 1)
        drains.driver_ended()
        async with world.attached(drains):
            drains.advance(wire_drains.DrainNotice(uuid="d-1", phase=Phase.CANCELLED))
            await until(lambda: world.journal.count("continue") == 2)


async def test_a_step_is_reported_when_the_coordinator_answers_again() -> None:
    world = World({"tens": []})
    world.coordinator.away = True
    async with world.draining():
        await asyncio.sleep(0.05)
        world.coordinator.away = False
        await world.left.wait()
    assert world.coordinator.taken["stopped"] == ["tens"]


async def test_a_driver_that_ends_when_all_queries_are_flushed_leaves_nothing_to_do_but_the_commit() -> None:
    world = World({"tens": []})

    async with world.draining() as drains:
        world.coordinator.phase = Phase.COMMITTING
        drains.driver_ended()
        drains.advance(wire_drains.DrainNotice(uuid="d-1", phase=Phase.COMMITTING))
        await until(lambda: world.coordinator.phase is Phase.DRAINED)
    assert world.coordinator.taken["committed"] == ["tens"]


class OnceCommitted(Coordinator):
    """Has the step of one stage already; the answer to it was lost, and the step is refused now."""

    async def drain_step(self, run: Any, task: Any, stage: StageName, body: wire_drains.DrainStepRequest) -> Any:
        if stage == "minutes":
            raise Refused("drain-step", "it is committed")
        return await super().drain_step(run, task, stage, body)


async def test_a_refused_step_of_one_stage_does_not_keep_the_others_from_being_committed() -> None:
    coordinator: Any = OnceCommitted(["minutes", "tens"], Phase.COMMITTING, None)
    await commit(coordinator, RunId("run-1"), Generation(1), "d-1")
    assert coordinator.taken["committed"] == ["tens"]
