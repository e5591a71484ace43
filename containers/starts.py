"""What an acquired task's stages start with, and whether the job file is the one that was deployed."""

from __future__ import annotations

from collections.abc import Sequence

from containers.engine import Start
from coordinator.core.recovery import Snapshot
from sluice.core.ids import Generation, Lineage, RunId, TaskName
from sluice.core.snapshot import BlobId, BlobStoreName, CheckpointId
from sluice.job import Job
from sluice.wire import agents as wire_agents
from sluice.wire import body as wire_body
from sluice.wire import runs as wire_runs


def starts_of(job: Job, run: wire_runs.RunDetail, task: TaskName, acquired: wire_agents.AcquireReply) -> Sequence[Start]:
    """In the order of the chain."""
    by_name: dict[str, wire_agents.StageStart] = {stage.stage: stage for stage in acquired.stages}
    return [
        Start(
            declared=declared,
            task=task,
            generation=Generation(acquired.generation),
            lineage=Lineage(found.lineage),
            reported=found.batch_id,
            starts=wire_body.offsets_of(found.starts),
            origin=RunId(run.origin),
            failed_drains=run.failed_drains,
        )
        for declared in job.chain()
        if (found := by_name.get(declared.stage.name)) is not None
    ]


def offered(task: TaskName, acquired: wire_agents.AcquireReply) -> dict[str, Snapshot]:
    """The snapshots that the stages of an acquired task may be restored from, by query."""
    return {
        f"{task}/{stage.stage}": Snapshot(
            CheckpointId(found.checkpoint_id),
            Lineage(found.lineage),
            -1 if found.batch_id is None else found.batch_id,
            {BlobStoreName(name): BlobId(index) for name, index in found.markers.items()},
            found.chosen,
        )
        for stage in acquired.stages
        if (found := stage.snapshot) is not None
    }
