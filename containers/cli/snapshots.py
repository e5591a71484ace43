"""`sluice snapshots restore --into DIRECTORY`: copy a snapshot to a directory. It restores as a container does, so it is in this
package."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from containers.state.restore import Restored, Restorer, RestoreSettings
from sluice.blobs.counted import Requests
from sluice.blobs.locations import open_blob_store, wrapped
from sluice.cli.client import BackupClient
from sluice.cli.console.bars import bar
from sluice.cli.console.tables import Screen
from sluice.cli.runner import find_job
from sluice.cli.snapshots import asked
from sluice.core.errors import BadSettings, UnknownSnapshot
from sluice.core.ids import JobName, RunId, StageKey, StageName, TaskName
from sluice.core.snapshot import BlobId
from sluice.wire import snapshots as wire_snapshots

HELD_FOR = timedelta(days=1)
"""How long a copy keeps its snapshot from being retired, should this process die."""


def copy_snapshot(url: str, job: str, task: str, stage: str, checkpoint: str, into: Path, blob_store: str | None) -> None:
    """Raises BadSettings for a directory that is there, and what a restore raises."""
    if into.exists():
        raise BadSettings(f"{into} is there already: name a directory that is not")
    restored = asked(url, lambda client: _copied(client, job, task, stage, checkpoint, into.absolute(), blob_store))
    Screen(sys.stdout).say(f"{into}: {restored}")


async def _copied(client: BackupClient, job: str, task: str, stage: str, checkpoint: str, into: Path, blob_store: str | None) -> Restored:
    """Pinned meanwhile, lest it be retired and collected under our hands."""
    found = await client.snapshot(job, task, stage, checkpoint)
    places = (await client.run(RunId((await find_job(client, job)).current_run))).blob_stores
    name = next((each for each in found.markers if blob_store in (None, each) and each in places), None)
    if name is None:
        raise UnknownSnapshot(
            f"{found.checkpoint_id} is in {', '.join(found.markers)}, and not in {blob_store or 'a store of the settings'}"
        )
    pinned = await client.pin(
        job,
        wire_snapshots.PinRequest(
            task=task,
            stage=stage,
            checkpoint_id=found.checkpoint_id,
            reason=f"copied to {into}"[:1000],
            expires_seconds=HELD_FOR.total_seconds(),
        ),
    )
    blobs = wrapped(open_blob_store(places[name]), Requests())
    try:
        await blobs.open(create=False)
        into.parent.mkdir(parents=True, exist_ok=True)
        with bar("restoring", unit="bytes", quiet=False) as shown_by:
            key = StageKey(JobName(job), TaskName(task), StageName(stage))
            return await Restorer(blobs, key, RestoreSettings(), shown_by).restore(BlobId(found.markers[name].index), into, None)
    finally:
        await blobs.close()
        await client.unpin(job, pinned.pin_id)
