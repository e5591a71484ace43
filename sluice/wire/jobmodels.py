"""The HTTP bodies about versions of job models, in the manner of `sluice.wire.runs`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from sluice.core.expansion import Verdict
from sluice.wire.agents import StageSnapshot
from sluice.wire.body import NO_NUL, Body, Count, Name, Reply

WHO_HEADER = "Sluice-Who"
"""Who asks, in his own words: kept with a version of a job model."""

Why = Annotated[str, Field(max_length=1000, pattern=NO_NUL)]


class PlanRequest(Body):
    """`streams`: partition counts to suppose, by the job's names of its inputs. `containers`: how many to suppose."""

    job: Name
    streams: Annotated[dict[Name, Count], Field(max_length=1000)] = Field(default_factory=dict)
    containers: Annotated[int, Field(le=100_000)] | None = None


class ChangeRequest(Body):
    """`containers`: how many slots the run is to have. `grow`: look at the partition counts of its inputs now, and grow as far as
    is safe, also to a count that was rolled back."""

    containers: Annotated[int, Field(le=100_000)] | None = None
    grow: bool = False
    why: Why = ""


class RollbackRequest(Body):
    why: Why = ""


class AdoptedRequest(Body):
    """The container runs that version: nothing of it runs otherwise than the version says. Tasks that it still waits for do not count."""

    version: Annotated[int, Field(ge=1, lt=2**31)]
    epoch: Annotated[int, Field(ge=1, lt=2**31)]


class AdoptedReply(Reply):
    """`version`: the newest that the container has told. `current`: the run's. `allOn`: the version that all live containers run, null
    while they differ."""

    version: int
    current: int
    all_on: int | None


class StandbyCopy(Reply):
    """A store of a task that another slot runs: the snapshot that it would be restored from now."""

    task: str
    stage: str
    snapshot: StageSnapshot


class StandbyReply(Reply):
    """What a container keeps copies of, by task and stage; `own`: the tasks that the job model gives its slot, with copies from before."""

    copies: tuple[StandbyCopy, ...]
    own: tuple[str, ...]


class StreamVerdict(Reply):
    """`before`: partitions by the job model; `after`: as seen or supposed, null where that cannot be found out. `baseline`: how many the
    stream began with, null for broadcast streams."""

    name: str
    system: str
    stream: str
    before: int
    after: int | None
    baseline: int | None
    verdict: Verdict
    reason: str


class NewPartition(Reply):
    """`task`: who reads it; null when all tasks do."""

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
    """What a version changes. The queries of `tasksAffected` start again with more partitions; `tasksNew` begin; `tasksGone` are of another
    deployment; `moves` go from one slot to another."""

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
    """What was done: the run is at `version` now and was at `former`, which are the same when there was nothing to do."""

    former: int


class VersionSummary(Reply):
    """`who` is empty where nobody said. `current`: it is in force."""

    version: int
    run_id: str
    at: datetime
    who: str
    why: str
    content_hash: str
    current: bool


class VersionsReply(Reply):
    """Newest first. `next` is the `before` of the following page, null on the last."""

    job: str
    models: tuple[VersionSummary, ...]
    next: int | None


class VersionDetail(VersionSummary):
    """With the job model as Apache Samza spells it."""

    model: dict[str, Any]


class DifferenceReply(EffectReply):
    job: str
    former: int
    later: int
