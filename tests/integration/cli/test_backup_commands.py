"""`sluice snapshots`, `sluice gc` and `sluice rebuild`, against a coordinator as a process and blobs in a directory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sluice.blobs.filesystem import FilesystemBlobs
from sluice.blobs.port import Purpose, RequestContext
from sluice.clock import SystemClock
from sluice.core.ids import Generation, JobName, Lineage, StageKey, StageName, TaskName
from sluice.core.snapshots.indexjson import encoded
from sluice.core.snapshots.snapshot import (
    BlobId,
    CommitId,
    DirIndex,
    FileBlob,
    FileIndex,
    FileMetadata,
    Kind,
    SnapshotIndex,
    SnapshotMetadata,
    fresh_blob_id,
)
from sluice.streams.log import Log
from tests.support.api import run_body
from tests.support.coordinators import Running, running
from tests.support.processes import SLUICE, completed

LONG_LEASES = ("--lease-seconds", "300")
"""Long, because no container sends heartbeats here, and a command takes seconds."""

JOB, TASK, STAGE = JobName("flight-delays"), TaskName("Partition 0"), StageName("hourly")
KEY = StageKey(JOB, TASK, STAGE)
WHERE = (str(JOB), str(TASK), str(STAGE))


def sluice(*arguments: str, code: int = 0, **environment: str) -> str:
    """The output of the command."""
    done = completed([*SLUICE, *arguments], environment={**os.environ, **environment})
    assert (done.returncode, done.stderr.count("Traceback")) == (code, 0), done.stderr + done.stdout
    return done.stdout or done.stderr


class Backed:
    """A run whose task is owned, and its blobs."""

    def __init__(self, home: Path, coordinator: Running) -> None:
        self.http = coordinator.http
        self.url = str(self.http.base_url).rstrip("/")
        self.blobs = FilesystemBlobs(home / "blobs", SystemClock())
        self.made = 0
        self.previous: BlobId | None = None
        self.run_id = str(self._post("/runs", run_body())["runId"])
        epoch = self._post(f"/runs/{self.run_id}/containers", {"processorId": "0", "executionContainerId": "c1"})["epoch"]
        reply = self._post(f"/runs/{self.run_id}/tasks/{TASK}/acquire", {"executionContainerId": "c1", "epoch": epoch})
        self.generation, self.stage = int(reply["generation"]), reply["stages"][0]

    def _post(self, path: str, body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def uploaded(self, files: Mapping[str, bytes], task: TaskName = TASK) -> SnapshotIndex:
        self.made += 1
        checkpoint = CommitId(f"17000000{self.made:05}-123456")
        found: list[FileIndex] = []
        for name, body in sorted(files.items()):
            blob = fresh_blob_id(KEY, Kind.DATA, self.made, f"{len(found):016x}")
            asyncio.run(self.blobs.put(blob, body, RequestContext(Purpose.DATA)))
            digest = hashlib.sha256(body).hexdigest()
            found.append(FileIndex(name, (FileBlob(blob, 0),), FileMetadata(0, 0, len(body), "o", "g", 0o644), zlib.crc32(body), digest))
        metadata, lineage = SnapshotMetadata(checkpoint, JOB, task, STAGE), Lineage(self.stage["lineage"])
        index = SnapshotIndex(
            self.made, metadata, DirIndex("", tuple(found)), self.previous, Generation(self.generation), lineage, self.made
        )
        asyncio.run(self.blobs.put(self.index_blob(), encoded(index), RequestContext(Purpose.INDEX)))
        return index

    def index_blob(self) -> BlobId:
        return fresh_blob_id(KEY, Kind.SNAPSHOTS, self.made, "f" * 16)

    def commit(self, files: Mapping[str, bytes]) -> CommitId:
        index = self.uploaded(files)
        marker = {"index": self.index_blob(), "previous": self.previous, "files": len(files), "bytes": index.size}
        body: dict[str, Any] = {
            "generation": self.generation,
            "lineage": index.lineage,
            "batchId": index.batch,
            "offsets": [],
            "checkpointId": index.metadata.checkpoint,
            "markers": {"local": marker},
        }
        self._post(f"/runs/{self.run_id}/tasks/{TASK}/stages/{STAGE}/snapshots", body)
        self.previous = self.index_blob()
        return index.metadata.checkpoint

    def ended(self) -> None:
        self._post("/containers/c1/exit", {"exitCode": 0})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Log(tmp_path / "home" / "log").create("flights", 1)
    return tmp_path / "home"


def test_snapshots_are_listed_pinned_verified_and_restored(home: Path, tmp_path: Path) -> None:
    with running(home, *LONG_LEASES) as coordinator:
        backed = Backed(home, coordinator)
        first = backed.commit({"a": b"first", "empty": b""})
        backed.commit({"a": b"second"})
        at = ("--coordinator", backed.url)
        listed = json.loads(sluice("snapshots", "ls", "--json", *at))
        assert [(each["batchId"], each["head"], each["retainedBy"]) for each in listed["snapshots"]] == [
            (2, True, ["head", "last"]),
            (1, False, ["last"]),
        ]
        assert first in sluice("snapshots", "ls", JOB, *at)
        assert first in sluice("snapshots", "show", *WHERE, first, *at)
        assert "2 files" in sluice("snapshots", "verify", *WHERE, first, *at)
        assert "2 snapshots" in sluice("snapshots", "verify", "--job", JOB, *at)
        assert "name a snapshot" in sluice("snapshots", "verify", JOB, *at, code=2)
        sluice("snapshots", "pin", JOB, "--task", TASK, "--stage", STAGE, "--checkpoint", first, "--name", "keep", "--hours", "2", *at)
        assert "keep" in sluice("snapshots", "pins", JOB, *at)
        assert "pin keep" in sluice("snapshots", "show", *WHERE, first, *at)
        sluice("snapshots", "restore", *WHERE, first, "--into", str(tmp_path / "copy"), *at)
        assert {each.name: each.read_bytes() for each in (tmp_path / "copy").iterdir()} == {"a": b"first", "empty": b""}
        sluice("snapshots", "unpin", JOB, "keep", *at)
        assert "c1 owns task" in sluice("snapshots", "restore", *WHERE, first, *at, code=1)
        backed.ended()
        assert first in sluice("snapshots", "restore", *WHERE, first, *at)
        chosen = json.loads(sluice("snapshots", "show", *WHERE, "head", "--json", *at))
        assert (chosen["checkpointId"], chosen["chosen"]) == (first, True)


def test_the_error_about_an_unknown_name_is_a_line_and_a_remedy(home: Path) -> None:
    with running(home, *LONG_LEASES) as coordinator:
        backed = Backed(home, coordinator)
        at = ("--coordinator", backed.url)
        for command in (
            ("snapshots", "ls", "no-job"),
            ("snapshots", "show", *WHERE, "17000000009-123456"),
            ("snapshots", "verify", *WHERE, "head"),
            ("snapshots", "restore", *WHERE, "nonsense"),
            ("snapshots", "unpin", JOB, "nothing"),
            ("snapshots", "pin", JOB),
            ("gc", "explain", "../etc/passwd"),
        ):
            reported = sluice(*command, *at, code=1).strip().splitlines()
            assert [line.partition(": ")[0] for line in reported] == ["sluice", "remedy"]


def test_garbage_is_planned_explained_and_audited(home: Path) -> None:
    with running(home, *LONG_LEASES) as coordinator:
        backed = Backed(home, coordinator)
        backed.commit({"a": b"first"})
        lost = backed.uploaded({"b": b"never reported"})
        at = ("--coordinator", backed.url)
        (planned,) = json.loads(sluice("gc", "plan", "--json", *at))["result"]["stores"]
        assert (planned["condemned"]["blobs"], planned["deleted"]["blobs"]) == (2, 0)
        (blob,) = lost.blobs
        assert "garbage" in sluice("gc", "explain", blob, *at)
        assert "2" in sluice("gc", "run", *at)
        assert "condemned" in sluice("gc", "explain", blob, *at)
        found = json.loads(sluice("gc", "audit", "--json", *at))["result"]["stores"][0]
        assert (found["good"], found["garbage"]["blobs"], found["missing"]["blobs"]) == (True, 2, 0)
        kept = backed.commit({"c": b"to be lost"})
        (gone,) = [path for path in (home / "blobs").rglob("*") if path.is_file() and path.read_bytes() == b"to be lost"]
        gone.unlink()
        assert "missing" in sluice("gc", "audit", *at, code=2)
        assert "no blob" in sluice("snapshots", "verify", *WHERE, kept, *at, code=2)
        of_job = json.loads(sluice("snapshots", "verify", "--job", JOB, "--json", *at, code=2))["result"]
        assert [each.partition(":")[0] for each in of_job["wrong"]["local"]] == [f"{TASK} {STAGE} {kept}"]
        assert "lost" in sluice("status", "--check", *at, code=2)


def test_the_catalog_is_rebuilt_from_the_blob_stores_alone(home: Path) -> None:
    with running(home, *LONG_LEASES) as coordinator:
        backed = Backed(home, coordinator)
        backed.commit({"a": b"first"})
        newest = backed.commit({"a": b"second"})
    for each in home.glob("coordinator.db*"):
        each.unlink()
    reply = json.loads(sluice("rebuild", "--home", str(home), "--dry-run", "--json"))
    assert (reply["snapshots"], reply["stores"][0]["checkpointId"], reply["leftOut"]) == (2, newest, {})
    assert not list(home.glob("coordinator.db"))
    with running(home, *LONG_LEASES) as coordinator:
        refused = coordinator.http.post("/runs", json=run_body())
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:sluice:state-unregistered")
        (planned,) = json.loads(sluice("gc", "plan", "--json", "--coordinator", str(coordinator.http.base_url)))["result"]["stores"]
        assert (planned["condemned"]["blobs"], list(planned["notJudged"])) == (0, ["jobs/"])
    assert "2 snapshots" in sluice("rebuild", "--home", str(home))
    assert "--force" in sluice("rebuild", "--home", str(home), code=1)
    assert "2 snapshots" in sluice("rebuild", "--home", str(home), "--force")
    with running(home, *LONG_LEASES) as coordinator:
        again = Backed(home, coordinator)
        assert again.generation > backed.generation
        assert again.stage["lineage"] == backed.stage["lineage"]
        assert (again.stage["batchId"], again.stage["snapshot"]["checkpointId"]) == (2, newest)
        (planned,) = json.loads(sluice("gc", "plan", "--json", "--coordinator", again.url))["result"]["stores"]
        assert (planned["condemned"]["blobs"], planned["notJudged"]) == (0, {})


def test_a_rebuild_leaves_out_incomplete_snapshots(home: Path) -> None:
    with running(home, *LONG_LEASES) as coordinator:
        backed = Backed(home, coordinator)
        backed.commit({"a": b"whole"})
        backed.commit({"a": b"to be lost"})
        backed.uploaded({"a": b"whole"}, task=TaskName("\ud800"))
    (gone,) = [path for path in (home / "blobs").rglob("*") if path.is_file() and path.read_bytes() == b"to be lost"]
    gone.unlink()
    for each in home.glob("coordinator.db*"):
        each.unlink()
    reply = json.loads(sluice("rebuild", "--home", str(home), "--json"))
    assert (reply["snapshots"], reply["stores"][0]["batchId"]) == (1, 1)
    missing, unspeakable_too = reply["leftOut"].values()
    assert "are missing" in missing
    assert r"task-name is '\ud800'" in unspeakable_too
    assert r"task-name is '\ud800'" in sluice("rebuild", "--home", str(home), "--dry-run")
