"""`sluice snapshots restore --into DIRECTORY`: copy a snapshot to a directory. It uses the container's restore code, so it is in this
package."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from containers.state.recovery.restore import Restored, Restorer, RestoreSettings
from containers.state.transfer import TransferContext
from sluice.blobs.counted import Requests
from sluice.blobs.locations import open_blob_store, wrapped
from sluice.cli.console.bars import Bars
from sluice.cli.documents import print_reply
from sluice.cli.runner import call, find_job
from sluice.cli.snapshots import CopiedSnapshotReply
from sluice.client import OperatorClient
from sluice.core.errors import BadOption, UnknownSnapshot
from sluice.core.ids import JobName, RunId, StageKey, StageName, TaskName
from sluice.core.snapshots.snapshot import BlobId
from sluice.wire import snapshots as wire_snapshots

PINNED_FOR = timedelta(days=1)
"""When the pin of a copy expires if this process dies."""


def copy_snapshot(url: str, job: str, task: str, stage: str, checkpoint: str, into: Path, blob_store: str | None, *, as_json: bool) -> None:
    """Raises BadOption if the directory exists, and what a restore raises."""
    if into.exists():
        raise BadOption(f"{into} exists: name a directory that does not exist")
    restored = call(url, lambda client: copied(client, job, task, stage, checkpoint, into.absolute(), blob_store, quiet=as_json))
    reply = CopiedSnapshotReply(directory=str(into), files=restored.files, bytes=restored.bytes)
    print_reply(reply, lambda _: f"{into}: {restored}", as_json=as_json)


async def copied(
    client: OperatorClient, job: str, task: str, stage: str, checkpoint: str, into: Path, blob_store: str | None, *, quiet: bool
) -> Restored:
    """The snapshot is pinned meanwhile, so that it is not deleted during the copy."""
    found = await client.snapshot(job, task, stage, checkpoint)
    urls = (await client.run(RunId((await find_job(client, job)).current_run))).blob_stores
    name = next((each for each in found.markers if blob_store in (None, each) and each in urls), None)
    if name is None:
        raise UnknownSnapshot(
            f"snapshot {found.checkpoint_id} is in {', '.join(found.markers)}, not in {blob_store or 'a blob store of the settings'}"
        )
    pin = await client.pin(
        job,
        wire_snapshots.PinRequest(
            task=task,
            stage=stage,
            checkpoint_id=found.checkpoint_id,
            reason=f"copied to {into}"[:1000],
            expires_seconds=PINNED_FOR.total_seconds(),
        ),
    )
    blobs = wrapped(open_blob_store(urls[name]), Requests())
    try:
        await blobs.open(create=False)
        into.parent.mkdir(parents=True, exist_ok=True)
        with Bars("restoring", unit="bytes", quiet=quiet) as bars:
            key = StageKey(JobName(job), TaskName(task), StageName(stage))
            restorer = Restorer(TransferContext(blobs, key, _Progress(bars)), RestoreSettings())
            return await restorer.restore(BlobId(found.markers[name].index), into, None)
    finally:
        await blobs.close()
        await client.unpin(job, pin.pin_id)


class _Progress:
    """Implements `containers.state.transfer.Progress` with one bar of bytes."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._total = self._done = 0

    def planned(self, files: int, size: int) -> None:
        self._total += size

    def retained(self, files: int, size: int) -> None:
        """Ignored: files that are already in the directory are not transferred."""

    def done(self, files: int, size: int) -> None:
        self._done += size
        self._bars.show("restoring", self._done, self._total)
