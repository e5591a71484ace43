"""Who may speak for a task: the check that every report about one passes."""

from __future__ import annotations

from coordinator.store.port import HoldRow, Reading, RunRow
from sluice.core.errors import LeaseLost, UnknownTask
from sluice.core.ids import Generation, TaskName
from sluice.core.ownership import holds


async def held(tx: Reading, run: RunRow, task: TaskName, generation: Generation) -> HoldRow:
    """The task's hold, which must be of this generation and run. Raises UnknownTask, LeaseLost."""
    row = await tx.hold(run.job, task)
    if row is None:
        raise UnknownTask(f"nobody ever held task {task!r} of job {run.job}")
    if row.run_id != run.run_id or not holds(row.hold, generation):
        raise LeaseLost(
            f"task {task} of job {run.job} is under generation {row.hold.generation}; generation {generation} does not hold it any more"
        )
    return row
