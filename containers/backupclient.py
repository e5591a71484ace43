"""The coordinator as people ask it about snapshots and garbage."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from urllib.parse import quote

from containers.client import TIMEOUT, Coordinator
from coordinator import wire_snapshots as bodies

LOOK = timedelta(seconds=0.5)
"""How long a question for an errand waits for its end: as often a bar moves."""

HEAD = "head"
"""Stands for the snapshot that a store goes on from."""


class BackupClient(Coordinator):
    """Every method raises what those of `Coordinator` raise."""

    async def snapshots(self, job: str, task: str | None, stage: str | None, before: int | None, limit: int) -> bodies.SnapshotsReply:
        query = {"task": task, "stage": stage, "before": before, "limit": limit}
        told = {name: value for name, value in query.items() if value is not None}
        return await self._read(bodies.SnapshotsReply, "GET", f"/jobs/{_part(job)}/snapshots", params=told)

    async def snapshot(self, job: str, task: str, stage: str, checkpoint: str) -> bodies.SnapshotReply:
        """`checkpoint` may be "head"."""
        if checkpoint == HEAD:
            found = (await self.snapshots(job, task, stage, None, 200)).snapshots
            checkpoint = next((each.checkpoint_id for each in found if each.head), HEAD)
        query = {"task": task, "stage": stage}
        return await self._read(bodies.SnapshotReply, "GET", f"/jobs/{_part(job)}/snapshots/{_part(checkpoint)}", params=query)

    async def pins(self, job: str) -> bodies.PinsReply:
        return await self._read(bodies.PinsReply, "GET", f"/jobs/{_part(job)}/pins")

    async def pin(self, job: str, body: bodies.PinRequest) -> bodies.PinReply:
        return await self._read(bodies.PinReply, "POST", f"/jobs/{_part(job)}/pins", body)

    async def unpin(self, job: str, pin_id: str) -> None:
        await self._ask("DELETE", f"/jobs/{_part(job)}/pins/{_part(pin_id)}")

    async def choose(self, job: str, checkpoint: str, body: bodies.StoreBody) -> bodies.RestoreReply:
        return await self._read(bodies.RestoreReply, "POST", f"/jobs/{_part(job)}/snapshots/{_part(checkpoint)}/restore", body)

    async def verify(self, job: str, checkpoint: str, body: bodies.StoreBody) -> bodies.ErrandReply:
        return await self._read(bodies.ErrandReply, "POST", f"/jobs/{_part(job)}/snapshots/{_part(checkpoint)}/verify", body)

    async def collection(self, what: str) -> bodies.ErrandReply:
        """`what`: plan, run or audit."""
        return await self._read(bodies.ErrandReply, "POST", f"/gc/{what}")

    async def explain(self, blob: str) -> bodies.ExplainsReply:
        return await self._read(bodies.ExplainsReply, "GET", "/gc/explain", params={"blob": blob}, timeout=60)

    async def done(self, errand: bodies.ErrandReply, show: Callable[[bodies.ErrandReply], None]) -> bodies.ErrandReply:
        """The errand when it is over; `show` is called with it as it goes on."""
        while errand.state == "RUNNING":
            query = {"wait": LOOK.total_seconds()}
            timeout = (LOOK + TIMEOUT).total_seconds()
            errand = await self._read(bodies.ErrandReply, "GET", f"/errands/{_part(errand.errand)}", params=query, timeout=timeout)
            show(errand)
        return errand


def _part(name: str) -> str:
    return quote(name, safe="")
