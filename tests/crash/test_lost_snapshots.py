"""The newest snapshot is lost, and the process dies at each step of what takes its place; the next one ends where the first would have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from containers.state.commits.commit import CommitState, commit, open_commits
from containers.state.recovery.prepare import prepare_checkpoint
from sluice.core.ids import Lineage
from sluice.core.snapshots.snapshot import BlobId, CommitId, Snapshot
from tests.crash.test_commit import LOCAL, START, Coordinator, Scene
from tests.support.faults import Fault, Killed, Plan, at, healthy
from tests.support.memory import MemoryBlobs


@dataclass
class Catalog(Coordinator):
    """Also begins lineages at older snapshots. `dies`: "before" or "after" a lineage begins."""

    lineage: Lineage = START.lineage
    begun_at: str = ""
    dies: str = ""

    async def snapshots_of(self, job: str, task: str, stage: str) -> SimpleNamespace:
        rows = [
            SimpleNamespace(
                checkpoint_id=each.checkpoint_id,
                lineage=each.lineage,
                batch_id=each.batch_id,
                markers={name: SimpleNamespace(index=marker.index) for name, marker in each.markers.items()},
            )
            for each in reversed(self.recorded)
        ]
        return SimpleNamespace(snapshots=rows)

    async def new_lineage(self, *of: object, checkpoint: str | None = None) -> Lineage:
        assert checkpoint is not None
        if self.dies == "before":
            raise Killed
        if not self.begun_at:
            self.lineage, self.begun_at = Lineage("next"), checkpoint
            self.recorded = self.recorded[: 1 + [each.checkpoint_id for each in self.recorded].index(checkpoint)]
        if self.dies == "after":
            raise Killed
        return self.lineage

    @property
    def head(self) -> Snapshot | None:
        if not self.recorded:
            return None
        last = self.recorded[-1]
        assert last.batch_id is not None
        return Snapshot(CommitId(last.checkpoint_id), Lineage(last.lineage), last.batch_id, {LOCAL: BlobId(last.markers["local"].index)})


async def with_two_snapshots(root: Path) -> Scene:
    """Batches 0 and 1 are durable and on the disk."""
    scene = Scene(root)
    scene.coordinator = Catalog()
    stage = await scene.start()
    for batch in (0, 1):
        scene.runs(batch)
        await commit(stage, scene.state)
        await stage.wait_for_cleanup()
    await scene.start()
    return scene


def lose(scene: Scene, which: Callable[[str], bool]) -> None:
    inner = scene.blobs.inner
    assert isinstance(inner, MemoryBlobs)
    for blob in [blob for blob in inner._held if which(blob)]:
        del inner._held[blob]
    scene.blobs.operations.clear()


def index_of(scene: Scene) -> str:
    head = scene.coordinator.head
    assert head is not None
    return head.markers[LOCAL]


async def acquired(scene: Scene) -> CommitState:
    """A process acquires the task, makes the checkpoint ready and commits it."""
    catalog = scene.coordinator
    assert isinstance(catalog, Catalog)
    scene.blobs.killed = False
    await scene.start()
    start = replace(START, lineage=catalog.lineage, reported=None if catalog.begun_at else 1)
    prepared = await prepare_checkpoint(scene.state, start, catalog.head)
    stage = await open_commits(prepared.start, prepared.follows, scene.state, prepared.damaged)
    await commit(stage, scene.state)
    await stage.wait_for_cleanup()
    return stage


async def killed(scene: Scene, plan: Plan) -> None:
    """A request that is answered with an error does not die after its effect."""
    scene.blobs.plan = plan
    with suppress(Killed):
        await acquired(scene)
    scene.blobs.plan = healthy


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER])
async def test_a_process_killed_at_any_request_of_the_upload_that_replaces_a_lost_index_is_followed_by_one_that_uploads_all(
    tmp_path: Path, fault: Fault
) -> None:
    async def scene_of(name: str) -> Scene:
        scene = await with_two_snapshots(tmp_path / name)
        index = index_of(scene)
        lose(scene, lambda blob: blob == index or "/data/" in blob)
        return scene

    whole = await scene_of("whole")
    await acquired(whole)
    count = len(whole.blobs.operations)
    assert count >= 4
    assert await whole.restored() == {"0", "1"}
    for number in range(1, count + 1):
        scene = await scene_of(str(number))
        await killed(scene, at(number, fault))
        await acquired(scene)
        assert await scene.restored() == {"0", "1"}
        assert [each.batch_id for each in scene.coordinator.recorded] == [0, 1, 1]


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER])
async def test_a_process_killed_at_any_request_while_an_older_snapshot_is_restored_is_followed_by_one_that_restores_it(
    tmp_path: Path, fault: Fault
) -> None:
    async def scene_of(name: str) -> Scene:
        scene = await with_two_snapshots(tmp_path / name)
        index = index_of(scene)
        lose(scene, lambda blob: blob == index)
        scene.checkpoint.rename(scene.root / "lost")
        return scene

    async def check(scene: Scene) -> None:
        catalog = scene.coordinator
        assert isinstance(catalog, Catalog)
        assert (catalog.lineage, catalog.begun_at) == ("next", catalog.recorded[0].checkpoint_id)
        assert await scene.restored() == {"0"}
        assert {path.name for path in (scene.checkpoint / "commits").iterdir()} == {"0"}
        assert '"next"' in (scene.checkpoint / "metadata").read_text()

    whole = await scene_of("whole")
    await acquired(whole)
    count = len(whole.blobs.operations)
    assert count >= 4
    await check(whole)
    for number in range(1, count + 1):
        scene = await scene_of(str(number))
        await killed(scene, at(number, fault))
        await acquired(scene)
        await check(scene)
    for moment in ("before", "after"):
        scene = await scene_of(moment)
        catalog = scene.coordinator
        assert isinstance(catalog, Catalog)
        catalog.dies = moment
        await killed(scene, healthy)
        catalog.dies = ""
        await acquired(scene)
        await check(scene)
