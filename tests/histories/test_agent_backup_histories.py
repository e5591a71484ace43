"""Random histories of batches, kills, stops and lost disks: all outputs of a batch are equal, and the state includes every batch."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from tests.support.agents import Incarnation, Place, place
from tests.support.backups import BACKED_UP, began, one_stage, start, stopped
from tests.support.engines import DiskEngine, FakeQuery, soon

STEPS = 25


class History:
    """One stage, on any disk. `written` is the content of a sink that deduplicates by batch: the first output of each."""

    def __init__(self, there: Place, run_id: str, chance: random.Random, interval: float, **settings: float) -> None:
        self.there = there
        self.run_id = run_id
        self.chance = chance
        self.interval = interval
        self.settings = settings
        self.written: dict[tuple[str, int], str] = {}
        self.read = 0
        self.disks = 0
        self.container: Incarnation | None = None
        self.query: FakeQuery | None = None

    @property
    def disk(self) -> DiskEngine:
        assert self.container is not None
        assert isinstance(self.container.engine, DiskEngine)
        return self.container.engine

    async def begin(self) -> None:
        name = f"c{len(self.there.incarnations)}"
        settings = {"commit_interval_seconds": self.interval, "max_replay": 3, **self.settings}
        self.container = start(self.there, self.run_id, name, f"disk{self.disks}", **settings)  # type: ignore[arg-type]
        _, self.query = await began(self.container)
        self.check()

    async def batch(self) -> None:
        assert self.query is not None
        known = self.disk.state(self.query.start)
        number = max(known, default=-1) + 1
        self.read += self.chance.randrange(1, 5)
        await self.disk.runs(self.query, number, {0: self.read, 1: 0}, note=str(self.chance.random()))
        self.check()

    def check(self) -> None:
        """Every output of a batch, first or repeated, is the same; the state has all batches up to the last; and the container is
        healthy.
        """
        assert self.query is not None
        assert self.container is not None
        assert not self.container.life.done()
        lineage = self.query.start.lineage
        for batch, plan in self.disk.outputs.get(self.query.start.query, []):
            assert self.written.setdefault((lineage, batch), plan) == plan
        known = self.disk.state(self.query.start)
        assert known == {batch: plan for (of, batch), plan in self.written.items() if of == lineage}

    async def end(self, how: str) -> None:
        assert self.container is not None
        if how == "stop":
            await stopped(self.container)
        else:
            self.container.life.cancel()
            await asyncio.gather(self.container.life, return_exceptions=True)
            self.there.clock.advance(60)

    async def lose_an_answer(self) -> None:
        """Lose the answer to a commit's report. In most cases, wait until the next report has been answered."""
        assert self.container is not None
        wire = self.container.wire
        wire.held.clear()
        wire.lose("/snapshots")
        for _ in range(3):
            await self.batch()
        await soon(wire.held.wait())
        if self.chance.random() < 0.7:
            await wire.after("snapshots", wire.answered["snapshots"] + 1)
            await self.batch()

    def lose_disk(self) -> None:
        shutil.rmtree(self.there.home.parent / f"disk{self.disks}", ignore_errors=True)
        self.disks += 1


@pytest.mark.parametrize(
    ("seed", "interval"),
    [
        (0, 0),
        (1, 0.02),
        (2, 3600),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((0, 0.02), (0, 3600), (1, 0), (1, 3600), (2, 0), (2, 0.02))),
    ],
)
async def test_all_outputs_of_a_batch_are_equal_over_kills_stops_and_lost_disks(tmp_path: Path, seed: int, interval: float) -> None:
    chance = random.Random(f"{seed} {interval}")
    async with place(tmp_path / "home", **BACKED_UP) as there:
        history = History(there, await there.deploy(job=one_stage()), chance, interval)
        await history.begin()
        for _ in range(STEPS):
            match chance.choices(["batch", "stop", "kill"], [8, 1, 2])[0]:
                case "batch":
                    await history.batch()
                case how:
                    await history.end(how)
                    if chance.random() < 0.6:
                        history.lose_disk()
                    await history.begin()
        assert len({lineage for lineage, _ in history.written}) == 1


@pytest.mark.parametrize("seed", range(3))
async def test_all_outputs_of_a_batch_are_equal_when_answers_to_reports_are_lost_too(tmp_path: Path, seed: int) -> None:
    """A commit is abandoned after 0.5 s. The next one must then find out what the coordinator has recorded."""
    chance = random.Random(f"{seed} lost answers")
    async with place(tmp_path / "home", **BACKED_UP) as there:
        run_id, quick = await there.deploy(job=one_stage()), {"commit_max_delay_seconds": 0.1, "commit_timeout_seconds": 0.4}
        history = History(there, run_id, chance, 3600, **quick)
        await history.begin()
        for _ in range(STEPS):
            match chance.choices(["batch", "lose", "stop", "kill"], [8, 1, 1, 1])[0]:
                case "batch":
                    await history.batch()
                case "lose":
                    await history.lose_an_answer()
                case how:
                    await history.end(how)
                    if chance.random() < 0.6:
                        history.lose_disk()
                    await history.begin()
        assert len({lineage for lineage, _ in history.written}) == 1
