"""HTTP bodies of job models and their versions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from sluice.core.jobmodels.expansion import Verdict
from sluice.wire.body import NO_NUL, Body, Count, Name, Reply, StreamName
from sluice.wire.snapshots import StageSnapshot

Why = Annotated[str, Field(max_length=1000, pattern=NO_NUL)]


class PlanRequest(Body):
    """`streams`: hypothetical partition counts, by the job's names of its inputs. `containers`: hypothetical number of slots."""

    job: Name
    streams: Annotated[dict[StreamName, Count], Field(max_length=1000)] = Field(default_factory=dict)
    containers: Annotated[int, Field(le=100_000)] | None = None


class ChangeRequest(Body):
    """`containers`: the new number of slots. `grow`: check the partition counts of the inputs now and grow as far as is safe, also to a
    count that was rolled back."""

    containers: Annotated[int, Field(le=100_000)] | None = None
    grow: bool = False
    why: Why = ""


class RollbackRequest(Body):
    why: Why = ""


class AdoptedRequest(Body):
    """The container runs `version`: no query of it runs by another version. Tasks that it still waits for do not count."""

    version: Annotated[int, Field(ge=1, lt=2**31)]
    epoch: Annotated[int, Field(ge=1, lt=2**31)]


class AdoptedReply(Reply):
    """`version`: the newest that the container has reported. `current`: the run's. `allOn`: the version that all live containers run, null
    if they differ."""

    version: int
    current: int
    all_on: int | None


class StandbyCopy(Reply):
    """A stage of a task that another slot runs, and the snapshot that it would be restored from now."""

    task: str
    stage: str
    snapshot: StageSnapshot


class StandbyReply(Reply):
    """`copies`: the stages that a container keeps standby copies of. `own`: tasks of its own slot, whose older copies it may still have."""

    copies: tuple[StandbyCopy, ...]
    own: tuple[str, ...]


class StreamVerdict(Reply):
    """`before`: partitions in the job model; `after`: as observed or supposed, null if unknown. `baseline`: the partition count at the
    start of the job's history, null for broadcast streams."""

    name: str
    system: str
    stream: str
    before: int
    after: int | None
    baseline: int | None
    verdict: Verdict
    reason: str


class NewPartition(Reply):
    """`task`: the task that reads it; null if all tasks do."""

    system: str
    stream: str
    partition: int
    task: str | None


class MoveReply(Reply):
    task: str
    former: str
    to: str


class Spread(Reply):
    max: int
    mean: float


class SkewReply(Reply):
    partitions_per_task: Spread
    tasks_per_container: Spread


class EffectReply(Reply):
    """What a version changes. The queries of `tasksAffected` restart with more partitions, `tasksNew` start, `tasksGone` belonged to
    another deployment, `moves` go from one slot to another."""

    partitions: tuple[NewPartition, ...]
    tasks_affected: tuple[str, ...]
    tasks_new: tuple[str, ...]
    tasks_gone: tuple[str, ...]
    moves: tuple[MoveReply, ...]
    skew_before: SkewReply
    skew_after: SkewReply


class PlanReply(EffectReply):
    """What would happen to the job's run, which is at `version`."""

    job: str
    run_id: str
    version: int
    containers: int
    verdict: Verdict
    reason: str
    streams: tuple[StreamVerdict, ...]
    warnings: tuple[str, ...]


class ChangeReply(PlanReply):
    """What was done: the run was at version `former` and is now at `version`; the two are equal if there was nothing to do."""

    former: int


class VersionSummary(Reply):
    """`actor`: the user that created the version, empty if unknown. `current`: whether it is in force."""

    version: int
    run_id: str
    at: datetime
    actor: str
    why: str
    content_hash: str
    current: bool


class VersionsReply(Reply):
    """Newest first. `next` is the `before` of the following page, null on the last."""

    job: str
    models: tuple[VersionSummary, ...]
    next: int | None


class VersionDetail(VersionSummary):
    """`model`: the job model in the format of Apache Samza."""

    model: dict[str, Any]


class DifferenceReply(EffectReply):
    job: str
    former: int
    later: int
