"""A commit is interrupted before and after each of its requests, alone or with its process; the next one continues from what is durable."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from containers.engine import StageStart
from containers.settings import ContainerSettings
from containers.state.commits.commit import CommitState, commit, open_commits
from containers.state.context import StateContext
from sluice import Job
from sluice.client.agents import AgentClient
from sluice.core.ids import Generation, Lineage, RunId, TaskName
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, Snapshot
from sluice.wire.runs import RunDetail
from sluice.wire.snapshots import SnapshotRequest
from tests.support.fakes import FakeClock
from tests.support.faults import Fault, FaultyBlobs, Killed, at, healthy
from tests.support.memory import MemoryBlobs

LOCAL = BlobStoreName("local")
RUN = cast(
    RunDetail,
    SimpleNamespace(
        blob_stores={"local": "memory://"},
        backup_to=("local",),
        restore_from=("local",),
        garbage_grace_seconds=None,
        streams=[SimpleNamespace(name="in", system="log", stream="in")],
    ),
)


@dataclass
class Coordinator:
    """Records snapshots that name their predecessor, and a repeated report only once."""

    recorded: list[SnapshotRequest] = field(default_factory=list)
    reports: list[SnapshotRequest] = field(default_factory=list)
    fails_before: bool = False
    fails_after: bool = False

    async def report_snapshot(self, run_id: RunId, task: str, stage: str, report: SnapshotRequest) -> None:
        self.reports.append(report)
        if self.fails_before:
            raise Killed
        if report not in self.recorded:
            head = self.recorded[-1].markers["local"].index if self.recorded else None
            assert report.markers["local"].previous == head
            self.recorded.append(report)
        if self.fails_after:
            raise Killed

    @property
    def head(self) -> Snapshot | None:
        if not self.recorded:
            return None
        last = self.recorded[-1]
        assert last.batch_id is not None
        return Snapshot(CommitId(last.checkpoint_id), START.lineage, last.batch_id, {LOCAL: BlobId(last.markers["local"].index)})


def one_stage() -> Job:
    job = Job("delays", max_tasks=1)
    job.stage(reads=job.input("in"), writes=job.output("out"), name="only")(lambda task: None)  # type: ignore[arg-type, return-value]
    return job


JOB = one_stage()
START = StageStart(JOB.stages[0].stage, TaskName("Partition 0"), Generation(1), Lineage("ours"), None, {}, RunId("r"))


class Scene:
    """A stage's checkpoint on a disk, and the resources that its container shares."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.blobs = FaultyBlobs(MemoryBlobs(self.clock))
        self.coordinator = Coordinator()

    async def start(self) -> CommitState:
        """Start the process. It knows only what the coordinator has recorded."""
        settings = ContainerSettings(
            coordinator_url="http://c",
            run_id="r",
            processor_id="0",
            home=self.root,
            execution_container_id="c1",
        )
        await self.blobs.inner.open(create=True)
        coordinator = cast(AgentClient, self.coordinator)
        self.state = StateContext(JOB, settings, coordinator, self.clock, lambda url: self.blobs)
        await self.state.adopt(RUN)
        return await open_commits(START, self.coordinator.head, self.state)

    @property
    def checkpoint(self) -> Path:
        return self.state.checkpoints.directory(START.task, "only")

    def runs(self, batch: int) -> None:
        for name, text in {"metadata": json.dumps({"id": "ours"}), f"offsets/{batch}": entry(batch), f"commits/{batch}": "v1\n{}"}.items():
            (self.checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (self.checkpoint / name).write_text(text)

    async def restored(self) -> set[str]:
        """The batches in the newest recorded snapshot."""
        head = self.coordinator.head
        assert head is not None
        await self.state.restorer(self.blobs, START).restore(head.markers[LOCAL], self.root / "restored", None)
        return {path.name for path in (self.root / "restored" / "commits").iterdir()}


def entry(batch: int) -> str:
    return f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{{}}}}\n{{"in":{{"0":{batch + 1}}}}}'


async def scene_at(root: Path) -> tuple[Scene, CommitState]:
    """Batch 0 is durable, and batch 1 is on the disk."""
    scene = Scene(root)
    stage = await scene.start()
    scene.runs(0)
    await commit(stage, scene.state)
    scene.runs(1)
    scene.blobs.operations.clear()
    return scene, stage


async def goes_on(scene: Scene, stage: CommitState) -> None:
    scene.coordinator.fails_before = scene.coordinator.fails_after = False
    await commit(stage, scene.state)
    assert [each.batch_id for each in scene.coordinator.recorded] == [0, 1]
    assert stage.durable_batch == 1
    assert await scene.restored() == {"0", "1"}
    await stage.wait_for_cleanup()
    assert list(scene.state.checkpoints.frozen(START.task, "only").iterdir()) == []


@pytest.mark.parametrize("process_dies", [False, True])
@pytest.mark.parametrize("fault", [Fault.KILL, Fault.KILL_AFTER])
async def test_a_commit_interrupted_at_any_request_to_the_blob_store_is_repeated(tmp_path: Path, fault: Fault, process_dies: bool) -> None:
    scene, stage = await scene_at(tmp_path / "whole")
    await commit(stage, scene.state)
    count = len(scene.blobs.operations)
    assert count >= 2
    for number in range(1, count + 1):
        scene, stage = await scene_at(tmp_path / str(number))
        scene.blobs.plan = at(number, fault)
        with pytest.raises(Killed):
            await commit(stage, scene.state)
        assert len(scene.coordinator.recorded) == 1
        scene.blobs.plan, scene.blobs.killed = healthy, False
        await goes_on(scene, await scene.start() if process_dies else stage)


@pytest.mark.parametrize("process_dies", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
async def test_a_report_without_an_answer_is_repeated_before_anything_else(tmp_path: Path, recorded: bool, process_dies: bool) -> None:
    scene, stage = await scene_at(tmp_path)
    scene.coordinator.fails_before, scene.coordinator.fails_after = not recorded, recorded
    with pytest.raises(Killed):
        await commit(stage, scene.state)
    if process_dies:
        await goes_on(scene, await scene.start())
        return
    scene.blobs.operations.clear()
    await goes_on(scene, stage)
    assert [each.batch_id for each in scene.coordinator.reports] == [0, 1, 1]
    assert scene.coordinator.reports[1] == scene.coordinator.reports[2]


async def test_after_a_commit_cancelled_at_its_report_the_next_one_includes_later_batches(tmp_path: Path) -> None:
    scene, stage = await scene_at(tmp_path)
    scene.coordinator.fails_after = True
    with pytest.raises(Killed):
        await commit(stage, scene.state)
    scene.coordinator.fails_after = False
    scene.runs(2)
    await commit(stage, scene.state)
    assert [each.batch_id for each in scene.coordinator.recorded] == [0, 1, 2]
    assert await scene.restored() == {"0", "1", "2"}


async def test_without_a_new_batch_nothing_is_uploaded_or_reported(tmp_path: Path) -> None:
    scene, stage = await scene_at(tmp_path)
    made = await commit(stage, scene.state)
    assert made is not None
    assert made.batch == 1
    scene.blobs.operations.clear()
    assert await commit(stage, scene.state) is None
    assert await commit(stage, scene.state, up_to=1) is None
    assert scene.blobs.operations == []
    assert len(scene.coordinator.reports) == 2
