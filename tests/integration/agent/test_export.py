"""`sluice export` of a job file's stages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from containers.cli.export import write_checkpoints
from containers.state.checkpoint import inspect
from sluice.client import OperatorClient
from sluice.core.errors import BadSettings, UnknownSnapshot
from tests.support.agents import Place, place
from tests.support.backups import BACKED_UP, NEVER, began, one_stage, start, stopped


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Place]:
    async with place(tmp_path / "home", **BACKED_UP) as made:
        yield made


async def test_each_stage_of_each_task_is_written_as_a_checkpoint_of_spark(there: Place, tmp_path: Path) -> None:
    run_id = await there.deploy(job=one_stage())
    container = start(there, run_id, "c1", "disk1", **NEVER)
    disk, query = await began(container)
    for batch in range(3):
        await disk.runs(query, batch, {0: batch + 1, 1: 0})
    await stopped(container)
    client = OperatorClient("http://c", there.app)
    try:
        reply = await write_checkpoints(client, "delays", tmp_path / "out", None, None, None, quiet=True)
        (written,) = reply.checkpoints
        directory = tmp_path / "out" / written.task.replace(" ", "_") / written.stage
        assert (written.batch_id, written.directory) == (2, str(directory))
        found = inspect(directory)
        assert found is not None
        assert (found.lineage, found.committed) == (query.start.lineage, 2)
        with pytest.raises(BadSettings, match="exists"):
            await write_checkpoints(client, "delays", tmp_path / "out", None, None, None, quiet=True)
        with pytest.raises(UnknownSnapshot, match="no snapshot of other"):
            await write_checkpoints(client, "delays", tmp_path / "more", "other", None, None, quiet=True)
    finally:
        await client.close()
