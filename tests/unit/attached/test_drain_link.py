"""Where the checkpoint of a query begins, according to the drains of its job, and the agent's reports of steps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from containers.attached.drain_link import DrainLink, last_drain_of
from containers.attached.port import Step
from sluice.core.drain import Phase
from sluice.core.errors import CoordinatorUnreachable
from sluice.core.ids import Generation, JobName, RunId, StageName

DRAINED = {"orders": {"0": 12}}


class Coordinator:
    """A coordinator with one drain, which has begun to flush and has taken the query `counts` to a step."""

    def __init__(self, phase: Phase, step: str, pinned: str | None) -> None:
        offset = SimpleNamespace(stream="orders", partition=0, offset=12)
        stage = SimpleNamespace(stage="counts", step=step, offsets=[offset], pinned_checkpoint=pinned)
        containers = [SimpleNamespace(tasks=[SimpleNamespace(stages=[stage])])]
        phases = [SimpleNamespace(phase=Phase.FLUSHING)]
        self._detail = SimpleNamespace(uuid="d-1", seq=3, phase=phase, phases=phases, reason="too slow", containers=containers)

    async def run(self, run: RunId) -> Any:
        return SimpleNamespace(config={})

    async def drains(self, job: JobName) -> Any:
        return [self._detail]

    async def drain(self, uuid: str) -> Any:
        return self._detail


@pytest.mark.parametrize(
    ("phase", "step", "pinned", "seq", "offsets", "failed"),
    [
        (Phase.DRAINED, "committed", "s-1", 3, DRAINED, ""),
        (Phase.FAILED, "flushed", None, 3, DRAINED, ""),
        (Phase.FAILED, "flushing", None, 3, DRAINED, "drain d-1 has failed: too slow"),
        (Phase.FAILED, "flushed", "s-1", 3, {}, ""),  # it goes back to the snapshot
        (Phase.FAILED, "flushing", "s-1", 3, {}, ""),
        (Phase.FAILED, "stopped", "s-1", 0, {}, ""),  # its checkpoint is not locked
        (Phase.FLUSHING, "flushing", "s-1", 0, {}, ""),  # the script was killed in the flush, and must finish it on the same checkpoint
        (Phase.FLUSHING, "flushed", "s-1", 0, {}, ""),
    ],
)
async def test_only_a_drain_that_is_over_gives_a_query_another_checkpoint(
    phase: Phase, step: str, pinned: str | None, seq: int, offsets: Any, failed: str
) -> None:
    coordinator: Any = Coordinator(phase, step, pinned)
    found = await last_drain_of(coordinator, JobName("orders"), RunId("run-1"), "counts")
    assert (found.seq, found.offsets, found.failed) == (seq, offsets, failed)


class TwoDrains:
    """A coordinator. The run's first drain was cancelled, and the second one is in progress. `away`: it does not answer."""

    def __init__(self) -> None:
        self.away = False
        self.reported = asyncio.Event()
        self.steps: list[tuple[str, str]] = []

    async def drain(self, uuid: str) -> Any:
        self._answer()
        phase = Phase.CANCELLED if uuid == "d-1" else Phase.STOPPING
        return SimpleNamespace(uuid=uuid, phase=phase, phases=[], containers=[])

    async def drain_step(self, run: Any, task: Any, stage: Any, body: Any) -> Any:
        self._answer()
        self.steps.append((body.uuid, body.step))
        self.reported.set()
        return SimpleNamespace(phase=Phase.STOPPING)

    def _answer(self) -> None:
        if self.away:
            raise CoordinatorUnreachable("it is restarting")


async def no_backup(stage: object) -> None: ...


async def test_a_step_is_reported_although_an_older_drain_is_read_when_the_script_starts() -> None:
    """The coordinator restarts between the notices of the two drains."""
    found = TwoDrains()
    coordinator: Any = found
    link = DrainLink(coordinator, RunId("run-1"), Generation(4), lambda drain: None, no_backup)
    await link.begin("d-2")  # the drain in progress, from the claim
    reporting = asyncio.create_task(link.run())
    await link.begin("d-1")  # from the notices of the run
    found.away = True
    following = asyncio.create_task(link.begin("d-2"))
    link.take("d-2", Step(StageName("counts"), "stopped", 4))
    await asyncio.sleep(0)
    found.away = False
    await following
    async with asyncio.timeout(300):
        await found.reported.wait()
    reporting.cancel()
    assert found.steps == [("d-2", "stopped")]
