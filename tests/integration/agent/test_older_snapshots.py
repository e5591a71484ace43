"""Which older states a stage continues from: snapshots of earlier histories, and checkpoints that tasks have left on disks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from containers.supervision.exit_report import EXIT_FAILED, EXIT_OK
from sluice.core.ids import Generation, Lineage, RunId
from sluice.streams.log import Record, Writer
from tests.support.agents import Incarnation, Place, place
from tests.support.backups import BACKED_UP, EVERY_BATCH, NEVER, began, one_stage, start, stopped
from tests.support.counting_engine import COUNTS, CountingEngine, Ledger, summed
from tests.support.engines import DiskEngine, FakeQuery, soon

ALL = 100
"""Records: more than there are to read."""


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **BACKED_UP) as made:
        yield made


def lose(there: Place, snapshots: list[dict[str, Any]]) -> None:
    """Delete the indexes of the snapshots without Sluice."""
    for marker in (marker for each in snapshots for marker in each["markers"].values()):
        found = list(there.home.rglob(marker["index"].rpartition("/")[2]))
        assert found
        for each in found:
            each.unlink()


async def drained(there: Place, run_id: RunId, mode: str, container: Incarnation) -> None:
    async with httpx.AsyncClient(transport=there.app, base_url="http://c") as http:
        answer = await http.post("/drain", json={"runId": run_id, "drainMode": mode})
        assert answer.status_code == 202, answer.text
    ending = await container.ending()
    assert ending.exit_code == EXIT_OK, ending
    assert await there.state(run_id) == "DRAINED"


# --- histories ---------------------------------------------------------------------------------------------------------


class Counting:
    """Two tasks of two stages, in one container: `first` sums records by key, and `second` counts the sums."""

    def __init__(self, there: Place) -> None:
        self.there = there
        self.ledger = Ledger(there.log)
        self.produced = 0

    def start(self, run_id: RunId, disk: str) -> Incarnation:
        root = self.there.home.parent / disk
        engine = CountingEngine(root=root, ledger=self.ledger, version="v", operators=("sums",))
        name = f"c{len(self.there.incarnations)}"
        return self.there.start(run_id, name, engine=engine, state_dir=root, **EVERY_BATCH)

    def produce(self) -> None:
        records = [Record(b"1", key, partition) for key in (b"a", b"d", b"e") for partition in (0, 1)]
        writer = Writer(Lineage("producer"), "producer", Generation(1))
        self.there.log.append("in", records, writer=writer, batch=self.produced, now_micros=0)
        self.produced += 1

    async def queries(self, container: Incarnation) -> Mapping[str, FakeQuery]:
        engine = container.engine
        assert isinstance(engine, CountingEngine)
        await soon(engine.all_acting(4))
        return {query.start.query: query for query in engine.running}

    async def batches(self, container: Incarnation, number: int) -> None:
        engine, queries = container.engine, await self.queries(container)
        assert isinstance(engine, CountingEngine)
        for _ in range(number):
            self.produce()
            for name in sorted(queries):
                await engine.reads_on(queries[name], ALL)

    def counts(self, stream: str) -> Mapping[str, int]:
        return summed(self.there.log, stream, {}, self.there.log.latest(stream), lambda headers: True)


@pytest.mark.long
@pytest.mark.parametrize("drains", [1, 2])
async def test_a_stage_that_restores_a_snapshot_from_before_drains_that_kept_the_state_reads_the_records_since_again(
    there: Place, drains: int
) -> None:
    job = Counting(there)
    for _ in range(drains):
        run_id = await there.deploy()
        container = job.start(run_id, "disk1")
        await job.batches(container, 4)
        await drained(there, run_id, "KEEP_STATE", container)
    last = await there.deploy()
    for task in ("Partition 0", "Partition 1"):
        found = [each for each in await there.snapshots() if (each["task"], each["stage"]) == (task, COUNTS)]
        assert len(found) > drains
        assert not any(each["historyEnded"] for each in found)
        lose(there, found[:-1])
    container = job.start(last, "disk2")
    await job.queries(container)
    await drained(there, last, "DEFAULT", container)
    assert not job.ledger.faults
    assert job.counts("out") == job.counts("in")


async def test_a_stage_without_snapshots_does_not_return_to_a_history_that_an_explicit_start_has_ended(there: Place) -> None:
    former = await there.deploy(job=one_stage())
    await batches(there, former, "disk1", range(3))
    run_id = await there.deploy(job=one_stage(), start="earliest")
    await batches(there, run_id, "disk2", range(1))
    snapshots = await there.snapshots()
    assert [each["historyEnded"] for each in snapshots] == [False, True, True, True]
    lose(there, snapshots[:1])
    ending = await start(there, run_id, "c3", "disk3", **NEVER).ending()
    assert ending.exit_code == EXIT_FAILED
    assert snapshots[0]["markers"]["local"]["index"] in ending.reason


# --- disks -------------------------------------------------------------------------------------------------------------


async def batches(there: Place, run_id: RunId, disk: str, numbers: range) -> tuple[DiskEngine, FakeQuery]:
    """A container runs these batches, each with a commit, and stops."""
    container = start(there, run_id, f"of-{disk}", disk, **EVERY_BATCH)
    engine, query = await began(container)
    for batch in numbers:
        await engine.runs(query, batch, {0: batch + 1, 1: 0})
    await stopped(container)
    return engine, query


async def test_a_disk_that_is_older_than_the_newest_snapshot_repeats_no_batch_since_its_records_may_be_trimmed(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    await batches(there, run_id, "disk1", range(2))
    newer, query = await batches(there, run_id, "disk2", range(2, 5))
    disk, again = await began(start(there, run_id, "c3", "disk1", **NEVER))
    assert disk.outputs == {}
    assert again.start.lineage == query.start.lineage
    assert disk.state(again.start) == newer.state(query.start)


async def test_a_disk_that_is_newer_than_every_remaining_snapshot_is_used(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    await batches(there, run_id, "disk1", range(2))
    newer, query = await batches(there, run_id, "disk2", range(2, 5))
    snapshots = await there.snapshots()
    lose(there, [each for each in snapshots if each["batchId"] > 0])
    disk, again = await began(start(there, run_id, "c3", "disk1", **NEVER))
    assert [batch for batch, _ in disk.outputs[again.start.query]] == [2, 3, 4]
    assert disk.state(again.start) == newer.state(query.start)
