"""The blob stores of a container: opened once, and closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from containers.state.context import Destinations
from sluice.blobs.port import BlobStore
from sluice.core.errors import BlobStoreUnusable, BlobUnavailable, SluiceError
from sluice.core.snapshots.snapshot import BlobStoreName
from sluice.wire.runs import BasicRun
from tests.support.fakes import FakeClock
from tests.support.faults import Fault, FaultyBlobs, every, healthy
from tests.support.memory import MemoryBlobs


class Closed(MemoryBlobs):
    """Records whether it is open. It can be used without having been created."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self._ours = True
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


def run_with(*names: str) -> BasicRun:
    places = {name: f"memory://{name}" for name in names}
    return cast(BasicRun, SimpleNamespace(blob_stores=places, backup_to=names, restore_from=names))


def opened_by(made: list[Closed], plan: Callable[[str], Fault | None]) -> Destinations:
    """Every blob store that was made is in `made`. `plan`: the fault when the blob store of that name is opened."""

    async def open_blobs(name: BlobStoreName, url: str) -> BlobStore:
        made.append(Closed())
        fault = plan(name)
        return FaultyBlobs(made[-1], healthy if fault is None else every("open", fault))

    return Destinations(open_blobs)


@pytest.mark.parametrize(("fault", "error"), [(Fault.FAIL, BlobUnavailable), (Fault.REFUSED, BlobStoreUnusable)])
async def test_a_blob_store_that_cannot_be_opened_is_closed(fault: Fault, error: type[SluiceError]) -> None:
    made: list[Closed] = []
    destinations = opened_by(made, lambda name: fault if name == "two" else None)
    for attempt in (1, 2):
        with pytest.raises(error):
            await destinations.adopt(run_with("one", "two"))
        assert [each.closed for each in made] == [0, *[1] * attempt], "the first one is used again"
    await destinations.close()
    assert [each.closed for each in made] == [1, 1, 1]


async def test_a_blob_store_whose_opening_is_cancelled_is_closed() -> None:
    made: list[Closed] = []
    opening = asyncio.Event()

    def hang(name: str) -> Fault:
        opening.set()
        return Fault.HANG

    adopting = asyncio.create_task(opened_by(made, hang).adopt(run_with("one")))
    await opening.wait()
    adopting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adopting
    assert [each.closed for each in made] == [1]
