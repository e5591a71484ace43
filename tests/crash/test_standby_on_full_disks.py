"""Standby copies on a disk that is too small for them: they leave it to the container's own tasks. The disk is a real one of 8 MiB."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from containers.settings import ContainerSettings
from containers.state.checkpoint import inspect
from containers.state.commits.freeze import FrozenCheckpoint
from containers.state.commits.upload import CommitSettings, Uploader
from containers.state.context import StateContext
from containers.state.copies import CopyKey
from containers.state.meters import Transfers
from containers.state.standby import PAUSE_WHEN_FULL, Standby
from containers.state.transfer import TransferContext
from sluice.blobs.port import Purpose
from sluice.client.agents import AgentClient
from sluice.core.ids import ExecutionContainerId, Generation, Lineage, StageKey, StageName, TaskName
from sluice.core.snapshots.snapshot import CommitId
from sluice.randomness import new_uuid
from sluice.wire.jobmodels import StandbyCopy, StandbyReply
from sluice.wire.runs import RunDetail
from sluice.wire.snapshots import StageSnapshot
from tests.crash.test_commit import JOB, entry
from tests.support.disks import SmallDisk, small_disk
from tests.support.fakes import FakeClock
from tests.support.faults import FaultyBlobs, Operation
from tests.support.memory import MemoryBlobs
from tests.support.trees import make, plain

MIB = 1 << 20
LINEAGE, STAGE = Lineage("theirs"), StageName("only")
LARGE, SMALL = TaskName("Partition 1"), TaskName("Partition 2")
RUN = cast(
    RunDetail,
    SimpleNamespace(blob_stores={"one": "memory://one"}, backup_to=("one",), restore_from=("one",), garbage_grace_seconds=None, streams=[]),
)


class Scene:
    """A container with standby copies of two tasks of others: one of 3 MiB, one of a few bytes. The large one is the first."""

    def __init__(self, root: Path, disk: SmallDisk, low: int) -> None:
        self.disk = disk
        self.clock = FakeClock()
        self.held = MemoryBlobs(self.clock)
        self.blobs = FaultyBlobs(self.held)
        self.wanted: dict[TaskName, StandbyCopy] = {}
        self._root = root
        settings = ContainerSettings(
            coordinator_url="http://c",
            run_id="r",
            processor_id="0",
            home=root,
            state_dir=disk.root / "state",
            execution_container_id="c1",
            disk_low_bytes=low,
        )
        self.state = StateContext(JOB, settings, cast(AgentClient, self), self.clock, lambda url: self.blobs)
        self.standby_copies = Standby(self.state, ExecutionContainerId("c1"), timedelta(seconds=5))

    async def standby(self, run_id: str, execution_id: str) -> StandbyReply:
        """The coordinator's answer."""
        return StandbyReply(copies=tuple(self.wanted[task] for task in sorted(self.wanted)), own=())

    async def begin(self) -> None:
        await self.held.open(create=True)
        await self.state.adopt(RUN)
        await self.commits(LARGE, 0, {"state/large.sst": os.urandom(3 * MIB)})
        await self.commits(SMALL, 0, {"state/small.sst": b"small"})

    async def commits(self, task: TaskName, batch: int, files: Mapping[str, bytes]) -> None:
        """Another container commits a batch of the task."""
        tree = {
            "metadata": f'{{"id":"{LINEAGE}"}}'.encode(),
            f"offsets/{batch}": entry(batch).encode(),
            f"commits/{batch}": b"v1\n{}",
            **files,
        }
        directory = make(self._root / "theirs" / task, plain(tree))
        context = TransferContext(self.held, StageKey(JOB.name, task, STAGE), Transfers())
        uploader = Uploader(context, CommitSettings(), self.clock, lambda: new_uuid().hex)
        checkpoint = CommitId(f"170000000000{batch}-100000")
        marker, _ = await uploader.upload(FrozenCheckpoint(directory, LINEAGE, batch), checkpoint, Generation(1))
        snapshot = StageSnapshot(checkpoint_id=checkpoint, lineage=LINEAGE, batch_id=batch, markers={"one": marker.index}, chosen=False)
        self.wanted[task] = StandbyCopy(task=task, stage=STAGE, snapshot=snapshot)

    async def update(self) -> None:
        await self.standby_copies.update()

    def batch_of(self, task: TaskName) -> int | None:
        """The last batch of the copy; None without one."""
        found = inspect(self.state.copies.directory((task, STAGE)))
        return None if found is None else found.committed

    def staged(self, task: TaskName) -> list[Path]:
        return list((self.state.copies.directory((task, STAGE)).parent / ".staging").rglob("*"))

    def failed(self, task: TaskName) -> int:
        return self.standby_copies.meters[task, STAGE].transfers.failed

    def asked(self, purpose: Purpose) -> int:
        """How many blobs for this purpose were requested."""
        return sum(each.name == "get" and each.about is not None and each.about.purpose is purpose for each in self.blobs.operations)

    @property
    def free(self) -> int:
        found = os.statvfs(self.disk.root)
        return found.f_bavail * found.f_frsize


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 8 * MIB) as made:
        yield made


async def test_a_copy_for_which_there_is_no_room_is_not_fetched_and_keeps_no_other_from_being_updated(
    tmp_path: Path, disk: SmallDisk
) -> None:
    scene = Scene(tmp_path, disk, low=MIB)
    await scene.begin()
    disk.fill(leave=4 * MIB - 64 * 1024)
    await scene.update()
    assert (scene.batch_of(LARGE), scene.batch_of(SMALL)) == (None, 0)
    assert (scene.failed(LARGE), scene.failed(SMALL)) == (1, 0)
    assert scene.asked(Purpose.DATA) == 0, "the small copy is in a pack"
    assert scene.staged(LARGE) == []
    assert scene.free > 3 * MIB


async def test_a_copy_that_did_not_fit_is_tried_again_after_a_pause(tmp_path: Path, disk: SmallDisk) -> None:
    scene = Scene(tmp_path, disk, low=MIB)
    await scene.begin()
    disk.fill(leave=2 * MIB)
    await scene.update()
    disk.make_room()
    for elapsed in (0, PAUSE_WHEN_FULL.total_seconds() / 2):
        scene.clock.advance(elapsed)
        await scene.update()
        assert scene.batch_of(LARGE) is None
    assert scene.asked(Purpose.INDEX) == 2
    scene.clock.advance(PAUSE_WHEN_FULL.total_seconds() / 2)
    await scene.update()
    assert (scene.batch_of(LARGE), scene.failed(LARGE)) == (0, 1)
    assert scene.staged(LARGE) == []


@pytest.mark.parametrize("before", [None, 0])
async def test_what_was_fetched_is_removed_when_the_disk_becomes_full_and_the_former_copy_stays(
    tmp_path: Path, disk: SmallDisk, before: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path, disk, low=0)
    await scene.begin()
    if before is not None:
        await scene.commits(LARGE, 0, {"state/first.sst": b"first"})
        await scene.update()
        await scene.commits(LARGE, 1, {"state/first.sst": b"first", "state/large.sst": os.urandom(3 * MIB)})
        await scene.commits(SMALL, 1, {"state/small.sst": b"larger"})
    scene.blobs.plan = once(Purpose.DATA, lambda: disk.fill(leave=MIB))
    await scene.update()
    assert disk.is_filled
    assert (scene.batch_of(LARGE), scene.batch_of(SMALL)) == (before, 0 if before is None else 1)
    assert scene.staged(LARGE) == []
    assert scene.free > MIB / 2
    assert "what was fetched is removed" in caplog.text
    assert "is kept" not in caplog.text


def once(purpose: Purpose, act: Callable[[], None]) -> Callable[[Operation], None]:
    """Act before the first request for this purpose."""
    left = [act]

    def plan(operation: Operation) -> None:
        if operation.about is not None and operation.about.purpose is purpose and operation.name == "get" and left:
            left.pop()()

    return plan


async def test_what_an_interrupted_copy_has_staged_is_removed_when_its_task_is_assigned_to_the_slot(
    tmp_path: Path, disk: SmallDisk
) -> None:
    scene = Scene(tmp_path, disk, low=0)
    await scene.begin()
    of: CopyKey = LARGE, STAGE
    staged = scene.state.copies.directory(of).parent / ".staging" / STAGE / "state"
    staged.mkdir(parents=True)
    (staged / "large.sst").write_bytes(bytes(MIB))
    await scene.state.copies.take(LARGE, STAGE, LINEAGE)
    assert scene.staged(LARGE) == []
