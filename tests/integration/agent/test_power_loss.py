"""Checkpoints whose newest files a power failure has left empty, with a real coordinator and real blob stores, and a fake engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from containers.supervision.exit_report import EXIT_FAILED
from sluice.core.ids import ExecutionContainerId, RunId
from tests.support.agents import Incarnation, Place, place
from tests.support.backups import BACKED_UP, EVERY_BATCH, NEVER, began, disk_of, one_stage, start
from tests.support.engines import DiskEngine, FakeQuery

BATCHES = 3


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **BACKED_UP) as made:
        yield made


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Place]:
    """Without backups."""
    async with place(tmp_path / "home") as made:
        yield made


async def cut_off(there: Place, run_id: RunId, **settings: float) -> tuple[DiskEngine, FakeQuery, dict[int, str]]:
    """A container that runs some batches and is then killed. Returns its state, too."""
    container = start(there, run_id, "c1", "disk", **settings)
    disk, query = await began(container)
    for batch in range(BATCHES):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
    state = disk.state(query.start)
    container.life.cancel()
    await asyncio.gather(container.life, return_exceptions=True)
    await there.client.exited(ExecutionContainerId("c1"), 1, "the machine was restarted")
    return disk, query, state


def again(there: Place, run_id: RunId, **settings: float) -> Incarnation:
    return start(there, run_id, "c2", "disk", **settings)


@pytest.mark.parametrize("file", ["commits/2", "offsets/2", "metadata"])
@pytest.mark.parametrize("content", [b"", bytes(100)], ids=["empty", "zeros"])
async def test_a_checkpoint_with_an_empty_log_entry_is_restored_from_the_snapshot(there: Place, file: str, content: bytes) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query, state = await cut_off(there, run_id, **EVERY_BATCH)
    damaged = disk.directory(query.start) / file
    before = damaged.read_bytes()
    damaged.write_bytes(content)
    disk2, query2 = await began(again(there, run_id, **EVERY_BATCH))
    assert damaged.read_bytes() == before
    assert disk2.state(query2.start) == state
    assert query2.start.lineage == query.start.lineage


async def test_an_empty_file_of_the_state_is_found_after_the_next_boot_of_the_machine(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query, state = await cut_off(there, run_id, **EVERY_BATCH)
    directory = disk.directory(query.start)
    (directory / "state" / "1.changelog").write_bytes(b"")
    (directory.parent / ".checked" / directory.name).write_text("a former boot")
    disk2, query2 = await began(again(there, run_id, **EVERY_BATCH))
    assert disk2.state(query2.start) == state


async def test_without_a_snapshot_the_batches_are_run_again_from_their_durable_plans(there: Place) -> None:
    run_id = await there.deploy(job=one_stage())
    disk, query, state = await cut_off(there, run_id, **NEVER)
    (disk.directory(query.start) / "commits" / "2").write_bytes(b"")
    disk2, query2 = await began(again(there, run_id, **NEVER))
    assert disk2.state(query2.start) == state
    assert [batch for batch, _ in disk2.outputs[query2.start.query]] == [0, 1, 2]


async def test_without_a_backup_the_container_ends_with_an_error_that_names_the_file_and_changes_nothing(alone: Place) -> None:
    run_id = await alone.deploy(job=one_stage())
    disk, query, _ = await cut_off(alone, run_id)
    file = disk.directory(query.start) / "commits" / "2"
    file.write_bytes(b"")
    reason = await again(alone, run_id).ending()
    assert reason.exit_code == EXIT_FAILED
    assert f"{file} is empty: the machine has probably lost power" in reason.reason
    assert file.read_bytes() == b""
    assert disk_of(alone.incarnations[-1]).outputs == {}
