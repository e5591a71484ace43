"""One or both of two blob stores have lost blobs, and the process dies before each of its writes in turn: to the disk, to either blob
store, to the coordinator. The next process always reaches the state that the first would have reached, and a crash loses no snapshot.
"""

from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import cast

import pytest

from containers.engine import StageStart
from containers.settings import ContainerSettings
from containers.state.commits.commit import commit, open_commits
from containers.state.context import StateContext
from containers.state.offsets.wal import encoded
from containers.state.recovery.decision import OffsetLogEntry
from containers.state.recovery.prepare import prepare_checkpoint
from sluice.blobs.indexes import read_index
from sluice.blobs.port import BlobStore, Purpose, RequestContext
from sluice.client import Refused
from sluice.client.agents import AgentClient
from sluice.core.errors import BlobMissing, SnapshotConflict
from sluice.core.ids import Lineage
from sluice.core.snapshots.fingerprint import fingerprint
from sluice.core.snapshots.indexjson import lengths
from sluice.core.snapshots.snapshot import BlobId, BlobStoreName, CommitId, Snapshot, offsets_blob_id, walk
from sluice.wire.runs import RunDetail
from sluice.wire.snapshots import IndexReplacement, SnapshotRequest
from tests.crash.test_commit import JOB, START, entry
from tests.support.disk_faults import Steps, changes_of_files
from tests.support.fakes import FakeClock
from tests.support.faults import FaultyBlobs, Killed, Operation
from tests.support.memory import MemoryBlobs

ONE, TWO = BlobStoreName("one"), BlobStoreName("two")
BOTH = (ONE, TWO)
ABOUT = RequestContext(Purpose.AUDIT)
WRITES = ("put", "put_if_absent", "delete", "remove_ttl")
RUN = cast(
    RunDetail,
    SimpleNamespace(
        blob_stores={"one": "memory://one", "two": "memory://two"},
        backup_to=BOTH,
        restore_from=BOTH,
        garbage_grace_seconds=None,
        streams=[SimpleNamespace(name="in", system="log", stream="in")],
    ),
)


@dataclass
class Catalog:
    """What the coordinator records of the stage. Every change is a step: the process dies before it or after it."""

    steps: Steps
    lineage: Lineage = START.lineage
    batch: int = -1
    recorded: list[SnapshotRequest] = field(default_factory=list)
    """The snapshots, oldest first."""

    async def report_snapshot(self, run_id: str, task: str, stage: str, report: SnapshotRequest) -> None:
        self.steps.step("report")
        if report not in self.recorded:
            assert report.lineage == self.lineage
            for name, marker in report.markers.items():
                newest = next((each.markers[name].index for each in reversed(self.recorded) if name in each.markers), None)
                assert marker.previous == newest
            self.recorded.append(report)
            self.batch = max(self.batch, report.batch_id or 0)

    async def replace_index(self, run_id: str, task: str, stage: str, checkpoint: str, body: IndexReplacement) -> None:
        self.steps.step("replace")
        (at,) = (number for number, each in enumerate(self.recorded) if each.checkpoint_id == checkpoint)
        known = self.recorded[at].markers[body.blob_store]
        if known.index not in (body.previous, body.index):
            raise Refused(SnapshotConflict.slug, "another index")
        markers = {**self.recorded[at].markers, body.blob_store: known.model_copy(update={"index": body.index})}
        self.recorded[at] = self.recorded[at].model_copy(update={"markers": markers})

    async def new_lineage(self, *of: object, checkpoint: str | None = None) -> Lineage:
        self.steps.step("lineage")
        assert checkpoint is not None
        if self.lineage == START.lineage:
            self.lineage = Lineage("next")
            self.recorded = self.recorded[: 1 + [each.checkpoint_id for each in self.recorded].index(checkpoint)]
            self.batch = self.recorded[-1].batch_id or 0
        return self.lineage

    async def snapshots_of(self, job: str, task: str, stage: str) -> SimpleNamespace:
        rows = [
            SimpleNamespace(
                checkpoint_id=each.checkpoint_id,
                lineage=each.lineage,
                batch_id=each.batch_id,
                markers={name: SimpleNamespace(index=marker.index) for name, marker in each.markers.items()},
                head=each is self.recorded[-1],
                history_ended=False,
            )
            for each in reversed(self.recorded)
        ]
        return SimpleNamespace(snapshots=rows)

    @property
    def head(self) -> Snapshot | None:
        if not self.recorded:
            return None
        last = self.recorded[-1]
        assert last.batch_id is not None
        markers = {BlobStoreName(name): BlobId(marker.index) for name, marker in last.markers.items()}
        return Snapshot(CommitId(last.checkpoint_id), Lineage(last.lineage), last.batch_id, markers)


class Machine:
    """A disk, two blob stores and the coordinator's catalog."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True)
        self.root = root
        self.disk = root / "disk"
        self.clock = FakeClock()
        self.steps = Steps()
        self.held = {name: MemoryBlobs(self.clock) for name in BOTH}
        self.catalog = Catalog(self.steps)

    def _plan(self, operation: Operation) -> None:
        if operation.name in WRITES:
            self.steps.step(f"{operation.name} {operation.blob}")

    async def process(self) -> None:
        """Start a process. It knows what the coordinator has recorded and what is on the disk."""
        settings = ContainerSettings(
            coordinator_url="http://c", run_id="r", processor_id="0", home=self.disk, execution_container_id="c1", backup_packing=False
        )
        blobs: Mapping[str, BlobStore] = {f"memory://{name}": FaultyBlobs(held, self._plan) for name, held in self.held.items()}
        for held in self.held.values():
            await held.open(create=True)
        self.state = StateContext(JOB, settings, cast(AgentClient, self.catalog), self.clock, lambda url: blobs[url])
        await self.state.adopt(RUN)

    @property
    def checkpoint(self) -> Path:
        return self.state.checkpoints.directory(START.task, "only")

    def runs(self, batch: int) -> None:
        files = {
            "metadata": json.dumps({"id": self.catalog.lineage}),
            f"offsets/{batch}": entry(batch),
            f"state/{batch}.sst": f"of {batch}",
        }
        for name, text in {**files, f"commits/{batch}": "v1\n{}"}.items():
            (self.checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (self.checkpoint / name).write_text(text)

    async def acquires(self, lost: Iterable[BlobStoreName] = ()) -> None:
        """A process acquires the task, prepares the checkpoint and commits. `lost`: the blob stores in which the coordinator has found
        missing blobs."""
        await self.process()
        reported = None if self.catalog.batch < 0 else self.catalog.batch
        prepared = await prepare_checkpoint(self.state, self.start_of(reported), self.catalog.head)
        for batch in sorted(prepared.start.replay):
            self.runs(batch)
        stage = await open_commits(prepared.start, prepared.follows, self.state, prepared.damaged)
        stage.to_repair |= set(lost)
        await commit(stage, self.state)
        await stage.wait_for_cleanup()

    def start_of(self, reported: int | None) -> StageStart:
        return replace(START, lineage=self.catalog.lineage, reported=reported)

    async def has(self, name: BlobStoreName) -> set[int | None]:
        """The batches of the retained snapshots that are complete in the blob store."""
        found: set[int | None] = set()
        there = self.held[name]._held.keys()
        for each in self.catalog.recorded:
            with suppress(BlobMissing):
                if (await read_index(self.held[name], BlobId(each.markers[name].index), ABOUT)).blobs <= there:
                    found.add(each.batch_id)
        return found

    async def files_in(self, name: BlobStoreName) -> Mapping[str, bytes]:
        """The files of the newest snapshot in the blob store, assembled from blobs. Raises BlobMissing."""
        head, found = self.catalog.head, dict[str, bytes]()
        assert head is not None
        for path, file in walk((await read_index(self.held[name], head.markers[name], ABOUT)).root):
            body = io.BytesIO()
            for part, length in lengths(file.blobs, file.metadata.size, path):
                await self.held[name].get(part.blob, body, ABOUT, start=part.at, length=length)
            assert file.matches(fingerprint(body.getvalue()))
            found[path] = body.getvalue()
        return found


async def ran(root: Path, batches: int = 2) -> Machine:
    """Each batch was committed, and is on the disk."""
    machine = Machine(root)
    await machine.process()
    stage = await open_commits(START, None, machine.state)
    for batch in range(batches):
        machine.runs(batch)
        for held in machine.held.values():
            text = encoded(OffsetLogEntry(batch, entry(batch), START.generation, strict=True, code=machine.state.code))
            await held.put(offsets_blob_id(machine.state.key(START), START.lineage, batch), text, ABOUT)
        await commit(stage, machine.state)
        await stage.wait_for_cleanup()
    machine.steps.names.clear()
    return machine


def lose(machine: Machine, name: BlobStoreName, *ends: str) -> None:
    """Delete the blobs that have one of these in their names, and the newest index for "head"."""
    head = machine.catalog.head
    assert head is not None
    wanted = [head.markers[name] if end == "head" else end for end in ends]
    held = machine.held[name]._held
    gone = [blob for blob in held if any(each in blob for each in wanted)]
    assert gone
    for blob in gone:
        del held[blob]


async def data_of(machine: Machine, name: BlobStoreName, path: str) -> BlobId:
    """The blob of a file of the newest snapshot."""
    head = machine.catalog.head
    assert head is not None
    return dict(walk((await read_index(machine.held[name], head.markers[name], ABOUT)).root))[path].blobs[0].blob


async def killed_everywhere(
    root: Path,
    scene: Callable[[Path], Awaitable[Machine]],
    check: Callable[[Machine], Awaitable[None]],
    lost: Iterable[BlobStoreName] = (),
) -> Sequence[str]:
    """Run the scene without a crash, then with a crash before each step, and return the steps. The next process reaches the same state
    after the hourly notice of lost blobs."""
    whole = await scene(root / "whole")
    with changes_of_files(whole.disk, whole.steps):
        await whole.acquires(lost)
    await check(whole)
    steps = list(whole.steps.names)
    for number in range(1, len(steps) + 1):
        machine = await scene(root / str(number))
        before = {name: await machine.has(name) for name in BOTH}
        machine.steps.dies_before = number
        with changes_of_files(machine.disk, machine.steps), suppress(Killed):
            await machine.acquires(lost)
        assert machine.steps.dead
        machine.steps.dead, machine.steps.dies_before = False, 0
        retained = {each.batch_id for each in machine.catalog.recorded}
        for name in BOTH:
            assert before[name] & retained <= await machine.has(name), steps[number - 1]
        await machine.acquires([name for name in BOTH if await machine.has(name) != retained])
        await check(machine)
        rmtree(machine.root)
    return steps


async def test_a_process_killed_at_any_write_of_a_repair_is_followed_by_one_that_repairs_all_snapshots(tmp_path: Path) -> None:
    async def scene(root: Path) -> Machine:
        machine = await ran(root)
        lose(machine, ONE, await data_of(machine, ONE, "state/0.sst"), await data_of(machine, ONE, "state/1.sst"))
        return machine

    async def check(machine: Machine) -> None:
        assert await machine.has(ONE) == await machine.has(TWO) == {0, 1}
        assert [each.batch_id for each in machine.catalog.recorded] == [0, 1], "no new snapshot"
        assert await machine.files_in(ONE) == await machine.files_in(TWO)

    steps = await killed_everywhere(tmp_path, scene, check, lost=[ONE])
    assert steps.count("replace") == 2
    assert sum("/data/" in each for each in steps) == 2


@pytest.mark.long
async def test_a_process_killed_at_any_write_after_an_index_is_lost_is_followed_by_one_that_uploads_its_disk(
    tmp_path: Path,
) -> None:
    async def scene(root: Path) -> Machine:
        machine = await ran(root)
        for name in BOTH:
            lose(machine, name, "head")
        return machine

    async def check(machine: Machine) -> None:
        assert [each.batch_id for each in machine.catalog.recorded] == [0, 1, 1]
        assert machine.catalog.lineage == START.lineage
        for name in BOTH:
            assert {"state/0.sst", "state/1.sst"} <= (await machine.files_in(name)).keys()

    steps = await killed_everywhere(tmp_path, scene, check)
    assert sum("/data/" in each for each in steps) >= 2 * 7, "everything, to both"


@pytest.mark.long
@pytest.mark.parametrize("entries", [True, False])
async def test_a_process_killed_at_any_write_while_an_older_snapshot_is_restored_is_followed_by_one_that_restores_it(
    tmp_path: Path, entries: bool
) -> None:
    """If the offset-log entry of the next batch exists, that batch runs again. Otherwise a new lineage begins."""

    async def scene(root: Path) -> Machine:
        machine = await ran(root)
        for name in BOTH:
            lose(machine, name, "head", *(() if entries else ("/offsets/ours/000000000001",)))
        rmtree(machine.disk)
        machine.disk.mkdir()
        return machine

    async def check(machine: Machine) -> None:
        last = 1 if entries else 0
        assert [each.batch_id for each in machine.catalog.recorded] == ([0, 1, 1] if entries else [0, 0])
        assert machine.catalog.lineage == (START.lineage if entries else "next")
        assert f'"{machine.catalog.lineage}"' in (machine.checkpoint / "metadata").read_text()
        assert {path.name for path in (machine.checkpoint / "commits").iterdir()} == {str(batch) for batch in range(last + 1)}
        for name in BOTH:
            assert {f"state/{batch}.sst" for batch in range(last + 1)} <= (await machine.files_in(name)).keys()

    steps = await killed_everywhere(tmp_path, scene, check)
    assert any("os.rename" in each for each in steps), "the directory is swapped in"


@pytest.mark.parametrize("lost", [pytest.param("the index", marks=pytest.mark.long), "data of each"])
async def test_a_process_killed_at_any_write_of_a_restore_from_both_blob_stores_is_followed_by_one_that_repairs_both(
    tmp_path: Path, lost: str
) -> None:
    async def scene(root: Path) -> Machine:
        machine = await ran(root)
        if lost == "the index":
            lose(machine, ONE, "head", await data_of(machine, ONE, "state/1.sst"))
        else:
            lose(machine, ONE, await data_of(machine, ONE, "state/0.sst"))
            lose(machine, TWO, await data_of(machine, TWO, "state/1.sst"))
        rmtree(machine.disk)
        machine.disk.mkdir()
        return machine

    async def check(machine: Machine) -> None:
        assert machine.catalog.lineage == START.lineage
        assert await machine.files_in(ONE) == await machine.files_in(TWO)
        assert {"state/0.sst", "state/1.sst"} <= (await machine.files_in(ONE)).keys()
        if lost == "data of each":
            assert await machine.has(ONE) == await machine.has(TWO) == {0, 1}

    await killed_everywhere(tmp_path, scene, check, lost=[] if lost == "the index" else [TWO])
