"""The plans of a stage's batches in the blob stores: what each batch reads, durable before anybody sees what it wrote.

    jobs/<job>/<task>/<stage>/offsets/<lineage>/<batch>     {"version": 1, "batch", "plan", "generation", "strict", "code"}

`plan` is the text of Spark's `offsets/<batch>`. A plan is put only if there is none, so two that believe to hold a task can never run a
batch in two ways: the second finds the first one's plan. With several blob stores the first decides and the others copy.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from containers.state.recovery import OffsetLogEntry
from sluice.blobs.port import About, BlobStore, Purpose
from sluice.core.errors import BlobCorrupted, BlobUnavailable
from sluice.core.ids import Generation, JobName, Lineage, StageName, TaskName
from sluice.core.snapshot import BlobId, batch_of, offsets_blob_id, offsets_prefix

VERSION = 1


@dataclass(frozen=True, slots=True)
class PlanLog:
    """Of one lineage of one store, in one blob store."""

    blobs: BlobStore
    job: JobName
    task: TaskName
    stage: StageName
    lineage: Lineage

    @property
    def _about(self) -> About:
        return About(Purpose.OFFSETS, self.job, self.task, self.stage)

    def _id(self, batch: int) -> BlobId:
        return offsets_blob_id(self.job, self.task, self.stage, self.lineage, batch)

    async def settle(self, plan: OffsetLogEntry) -> OffsetLogEntry:
        """Put the plan if its batch has none; the plan that stands. Raises BlobUnavailable, BlobCorrupted."""
        if await self.blobs.put_if_absent(self._id(plan.batch), encoded(plan), self._about):
            return plan
        return await self.read(plan.batch)

    async def read(self, batch: int) -> OffsetLogEntry:
        """Raises BlobMissing, BlobUnavailable, BlobCorrupted."""
        blob, sink = self._id(batch), io.BytesIO()
        await self.blobs.get(blob, sink, self._about)
        return decoded(sink.getvalue(), blob, batch)

    async def after(self, batch: int) -> Mapping[int, OffsetLogEntry]:
        """The plans of all later batches. Raises BlobUnavailable, BlobCorrupted."""
        found: dict[int, OffsetLogEntry] = {}
        prefix = offsets_prefix(self.job, self.task, self.stage, self.lineage)
        async for page in self.blobs.list(prefix, self._about, after=self._id(batch) if batch >= 0 else ""):
            batches = [batch_of(listed.blob) for listed in page]
            found |= dict(zip(batches, await asyncio.gather(*map(self.read, batches)), strict=True))
        return found


async def settle_in_all(logs: Sequence[PlanLog], plan: OffsetLogEntry) -> OffsetLogEntry:
    """The first log decides, and the others get what it decided. Raises BlobUnavailable, BlobCorrupted; then it may be asked again."""
    stands = await logs[0].settle(plan)
    for log in logs[1:]:
        copied = await log.settle(stands)
        if copied.text != stands.text:
            raise BlobCorrupted(
                f"batch {plan.batch} of {log.task}/{log.stage} has two plans in two blob stores: restore from the first only"
            )
    return stands


def encoded(plan: OffsetLogEntry) -> bytes:
    document = {
        "version": VERSION,
        "batch": plan.batch,
        "plan": plan.text,
        "generation": plan.generation,
        "strict": plan.strict,
        "code": plan.code,
    }
    return json.dumps(document).encode()


def decoded(body: bytes, blob: BlobId, batch: int) -> OffsetLogEntry:
    """Raises BlobCorrupted, naming the blob; BlobUnavailable for one that a newer Sluice wrote, which can be read after an upgrade."""
    try:
        document = json.loads(body)
        if document["version"] > VERSION:
            raise BlobUnavailable(f"{blob} was written by a newer version of Sluice: run that version")
        plan = OffsetLogEntry(
            int(document["batch"]), document["plan"], Generation(document["generation"]), document["strict"], document["code"]
        )
        if plan.batch != batch or not isinstance(plan.text, str) or not isinstance(plan.strict, bool):
            raise ValueError("it does not hold what its name says")
    except (ValueError, KeyError, TypeError) as error:
        raise BlobCorrupted(f"{blob} is not a batch's plan: {error}") from error
    return plan
