"""What the engine of the simulation counts as lost."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from containers.engine import StageStart
from containers.errors import OffsetsTrimmed
from sluice.clock import SystemClock
from sluice.core.ids import Generation, Lineage, RunId, TaskName
from sluice.streams.log import Log, Record, Writer
from tests.simulation.engine import GrowingLedger, SimulatedEngine
from tests.simulation.loop import Process, SimulatedLoop, main_process, simulated
from tests.support.agents import two_stages

RECORDS = [Record(b"1", key) for key in (b"a", b"b", b"c", b"d")]


class Bench:
    """The second stage of a task, whose first records are no longer in the intermediate stream."""

    def __init__(self, loop: SimulatedLoop, directory: Path, *, expired: bool) -> None:
        log = Log(directory)
        log.create("mid", 1)
        log.append("mid", RECORDS, writer=Writer(Lineage("l"), "first", Generation(1)), batch=0, now_micros=0)
        log.trim("mid", {0: 2})
        (declared,) = (each for each in two_stages().chain() if each.stage.name == "second")
        self.start = StageStart(declared.stage, TaskName("Partition 0"), Generation(1), Lineage("l"), None, {}, RunId("r"))
        self.ledger = GrowingLedger(log, split=False)
        self.engine = SimulatedEngine(
            root=directory,
            ledger=self.ledger,
            version="1",
            loop=loop,
            process=Process("a"),
            chance=Random(1),
            clock=SystemClock(),
            lease_expired=lambda: expired,
        )


def on_loop(test: Callable[[SimulatedLoop], Coroutine[Any, Any, None]]) -> None:
    with simulated(Random(1)) as loop:
        loop.run_until_complete(loop.create_task(test(loop), context=main_process()))


def test_a_read_of_trimmed_records_under_a_lease_is_a_loss(tmp_path: Path) -> None:
    async def test(loop: SimulatedLoop) -> None:
        bench = Bench(loop, tmp_path, expired=False)
        with pytest.raises(AssertionError, match="were trimmed"):
            bench.engine._check_present(bench.start, 1, {0: 0}, {0: 4})
        assert len(bench.ledger.faults) == 1

    on_loop(test)


def test_a_read_of_trimmed_records_after_the_lease_is_an_error_of_the_source_and_no_loss(tmp_path: Path) -> None:
    async def test(loop: SimulatedLoop) -> None:
        bench = Bench(loop, tmp_path, expired=True)
        with pytest.raises(OffsetsTrimmed, match="were trimmed"):
            bench.engine._check_present(bench.start, 1, {0: 0}, {0: 4})
        assert not bench.ledger.faults

    on_loop(test)
