"""Removes finished jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coordinator.fleet.strangers import Strangers
from coordinator.jobmodels.cache import JobModels
from coordinator.store.sql import ReadTransaction, Store
from sluice.core.errors import JobNotFinished, UnknownJob
from sluice.core.ids import JobName

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Removal:
    """Removes all data of a job from the database in one transaction, except the generations of its tasks. The embedded log and blob stores
    may still have these, so a later job of that name continues to count from them. The job's blobs become garbage, and are deleted after
    the grace period. `strangers`: a restored database may lack later runs of the job, so nothing is removed until its catalog is
    complete."""

    store: Store
    models: JobModels
    forget_snapshots: Callable[[JobName], None]
    strangers: Strangers = field(default_factory=Strangers)

    async def plan(self, job: JobName) -> Mapping[str, int]:
        """The number of rows that `remove` would delete, by table. Raises UnknownJob, JobNotFinished."""
        async with self.store.read() as tx:
            await _check_finished(tx, job)
            return await tx.history.rows_of_job(job)

    async def remove(self, job: JobName, who: str) -> Mapping[str, int]:
        """Remove the job. Returns the number of deleted rows, by table. Raises UnknownJob, JobNotFinished, CatalogIncomplete."""
        async with self.store.begin() as tx:
            self.strangers.check_catalog()
            await _check_finished(tx, job)
            rows = await tx.history.rows_of_job(job)
            await tx.history.drop_job(job)
        self.models.forget(job)
        self.forget_snapshots(job)
        log.warning(
            "job %s was removed%s, with %d runs and %d snapshots", job, f" by {who}" if who else "", rows["runs"], rows["snapshots"]
        )
        return rows


async def _check_finished(tx: ReadTransaction, job: JobName) -> None:
    current = await tx.runs.current(job)
    if current is None:
        raise UnknownJob(f"there is no job {job!r}")
    if not current.state.ended:
        raise JobNotFinished(
            f"run {current.run_id} of job {job} is {current.state}: drain it (`sluice drain {job}`) or stop it "
            f"(POST /runs/{current.run_id}/stop), and try again when it has ended"
        )
    acting = [each.run_id for each in await tx.history.runs(job) if each.active]
    if acting:
        raise JobNotFinished(f"a container of run {acting[0]} of job {job} may still act: try again when its lease has ended")
