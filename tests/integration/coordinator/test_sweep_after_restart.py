"""A whole coordinator that is started again after a month, with its SQLite file and a blob store on disk."""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from datetime import timedelta
from pathlib import Path

from sluice.blobs.port import Purpose, RequestContext
from sluice.core.ids import Generation, JobName, Lineage, StageName, TaskName
from sluice.core.snapshots.indexjson import encoded
from sluice.core.snapshots.snapshot import BlobId, CommitId, DirIndex, FileBlob, FileIndex, FileMetadata, SnapshotIndex, SnapshotMetadata
from tests.support.api import calling, checkpoint_id, held, index_id, report, report_body
from tests.support.fakes import FakeClock

TTL = timedelta(days=30)
ABOUT = RequestContext(Purpose.DATA)


async def test_the_last_snapshot_of_a_stopped_job_survives_a_month_in_which_no_coordinator_ran(home: Path, clock: FakeClock) -> None:
    index, data = BlobId(index_id(1)), BlobId(index_id(1).replace("/snapshots/", "/data/"))
    async with calling(home, clock) as caller:
        caller.log.create("flights", 2)
        run_id, lineage = await held(caller)
        blobs = await caller.coordinator.api.state.backups.blob_stores.opened("local")
        file = FileIndex(
            "f", (FileBlob(data, 0),), FileMetadata(0, 0, 1, "o", "g", 0o644), zlib.crc32(b"x"), hashlib.sha256(b"x").hexdigest()
        )
        of = SnapshotMetadata(CommitId(checkpoint_id(1)), JobName("flight-delays"), TaskName("Partition 0"), StageName("hourly"))
        document = SnapshotIndex(1_700_000_000_000, of, DirIndex("", (file,)), None, Generation(1), Lineage(lineage), 10)
        await blobs.put(data, b"x", ABOUT, ttl=TTL)
        await blobs.put(index, encoded(document), ABOUT, ttl=TTL)
        assert (await report(caller, run_id, report_body(1, lineage))).status_code == 200
        await caller.stop(run_id)
        await caller.exited("c1")
        assert (await caller.run(run_id))["state"] == "STOPPED"
        # shut down before `clean_up` has run: it runs once a second
    clock.advance((TTL + timedelta(days=1)).total_seconds())
    async with calling(home, clock) as caller:  # each chore runs once, in the order of coordinator/app.py
        maintenance = caller.coordinator.api.state.parts.health.maintenance
        for _ in range(1000):
            if maintenance.turns["clean_up"] and maintenance.turns["sweep_expired"]:
                break
            await asyncio.sleep(0.01)
        blobs = await caller.coordinator.api.state.backups.blob_stores.opened("local")
        there = {each.blob async for page in blobs.list("jobs/", ABOUT) for each in page}
        retained = (await caller.http.get("/jobs/flight-delays/snapshots")).json()["snapshots"]
        assert [each["checkpointId"] for each in retained] == [checkpoint_id(1)]
        assert {index, data} <= there
