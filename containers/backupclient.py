"""The coordinator as people ask it about snapshots and garbage."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from urllib.parse import quote

from containers.client import TIMEOUT, Coordinator
from sluice.wire import snapshots as wire_snapshots

LOOK = timedelta(seconds=0.5)
"""How long a question for an errand waits for its end: as often a bar moves."""

HEAD = "head"
"""Stands for the snapshot that a store goes on from."""


class BackupClient(Coordinator):
    """Every method raises what those of `Coordinator` raise."""

    async def snapshots(
        self, job: str, task: str | None, stage: str | None, before: int | None, limit: int
    ) -> wire_snapshots.SnapshotsReply:
        query = {"task": task, "stage": stage, "before": before, "limit": limit}
        told = {name: value for name, value in query.items() if value is not None}
        return await self._read(wire_snapshots.SnapshotsReply, "GET", f"/jobs/{_part(job)}/snapshots", params=told)

    async def snapshot(self, job: str, task: str, stage: str, checkpoint: str) -> wire_snapshots.SnapshotReply:
        """`checkpoint` may be "head"."""
        if checkpoint == HEAD:
            found = (await self.snapshots(job, task, stage, None, 200)).snapshots
            checkpoint = next((each.checkpoint_id for each in found if each.head), HEAD)
        query = {"task": task, "stage": stage}
        return await self._read(wire_snapshots.SnapshotReply, "GET", f"/jobs/{_part(job)}/snapshots/{_part(checkpoint)}", params=query)

    async def pins(self, job: str) -> wire_snapshots.PinsReply:
        return await self._read(wire_snapshots.PinsReply, "GET", f"/jobs/{_part(job)}/pins")

    async def pin(self, job: str, body: wire_snapshots.PinRequest) -> wire_snapshots.PinReply:
        return await self._read(wire_snapshots.PinReply, "POST", f"/jobs/{_part(job)}/pins", body)

    async def unpin(self, job: str, pin_id: str) -> None:
        await self._ask("DELETE", f"/jobs/{_part(job)}/pins/{_part(pin_id)}")

    async def choose(self, job: str, checkpoint: str, body: wire_snapshots.StoreBody) -> wire_snapshots.RestoreReply:
        return await self._read(wire_snapshots.RestoreReply, "POST", f"/jobs/{_part(job)}/snapshots/{_part(checkpoint)}/restore", body)

    async def verify(self, job: str, checkpoint: str, body: wire_snapshots.StoreBody) -> wire_snapshots.ErrandReply:
        return await self._read(wire_snapshots.ErrandReply, "POST", f"/jobs/{_part(job)}/snapshots/{_part(checkpoint)}/verify", body)

    async def collection(self, what: str) -> wire_snapshots.ErrandReply:
        """`what`: plan, run or audit."""
        return await self._read(wire_snapshots.ErrandReply, "POST", f"/gc/{what}")

    async def explain(self, blob: str) -> wire_snapshots.ExplainsReply:
        return await self._read(wire_snapshots.ExplainsReply, "GET", "/gc/explain", params={"blob": blob}, timeout=60)

    async def done(
        self, errand: wire_snapshots.ErrandReply, show: Callable[[wire_snapshots.ErrandReply], None]
    ) -> wire_snapshots.ErrandReply:
        """The errand when it is over; `show` is called with it as it goes on."""
        while errand.state == "RUNNING":
            query = {"wait": LOOK.total_seconds()}
            timeout = (LOOK + TIMEOUT).total_seconds()
            errand = await self._read(wire_snapshots.ErrandReply, "GET", f"/errands/{_part(errand.errand)}", params=query, timeout=timeout)
            show(errand)
        return errand


def _part(name: str) -> str:
    return quote(name, safe="")
