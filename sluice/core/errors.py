"""Every error of Sluice, sorted by who must act on it.

* `ClientError`: the caller must change the request; repeating it is useless (4xx).
* `LeaseLost`: the caller's time is up; it must stop, not retry (409, type `lease-lost`).
* `Unavailable`: nobody's fault and it may pass; retry with a pause (503).
* `CorruptData`: stored bytes are not what was written; stop and tell a person (500).
* `Bug`: an illegal transition or a broken invariant; the message goes to us (500).

The docstring of a class is its title in an `application/problem+json` answer (RFC 9457); its `slug` is the last part of
the problem's type. "Not a valid container" is an answer of `/containerHeartbeat`, not an error.
"""

from __future__ import annotations

from typing import ClassVar


class SluiceError(Exception):
    """Something went wrong."""

    slug: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    @classmethod
    def title(cls) -> str:
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0]


# --- the caller must act: change the request -------------------------------------------------------------------------


class ClientError(SluiceError):
    """The request cannot be carried out as it stands."""

    slug = "bad-request"
    status = 422


class BadName(ClientError):
    """A name has characters that Sluice does not accept."""

    slug = "bad-name"

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{name[:80]!r} cannot name a {kind}: use 1 to 249 letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )


class UnknownJob(ClientError):
    """There is no such job."""

    slug = "unknown-job"
    status = 404


class UnknownRun(ClientError):
    """There is no such run."""

    slug = "unknown-run"
    status = 404


class UnknownContainer(ClientError):
    """There is no such container."""

    slug = "unknown-container"
    status = 404


class UnknownSlot(ClientError):
    """The run has no such processor id."""

    slug = "unknown-slot"
    status = 404


class UnknownTask(ClientError):
    """The job model has no such task."""

    slug = "unknown-task"
    status = 404


class NoJobModel(ClientError):
    """The job has no job model yet."""

    slug = "no-job-model"
    status = 404


class UnknownSystem(ClientError):
    """No such system is configured."""

    slug = "unknown-system"


class UnknownStream(ClientError):
    """The system has no such stream."""

    slug = "unknown-stream"


class StreamConflict(ClientError):
    """The stream exists with another partition count."""

    slug = "stream-conflict"


class BadGraph(ClientError):
    """The stage graph is not a chain of stages that can run."""

    slug = "bad-graph"


class BadConfig(ClientError):
    """The job's configuration holds a value that cannot be used."""

    slug = "bad-config"


class BadGrouping(ClientError):
    """The inputs cannot be grouped into tasks this way."""

    slug = "bad-grouping"


class NotCoPartitioned(ClientError):
    """A stage reads streams whose partitions do not match."""

    slug = "not-co-partitioned"


class IncompatibleExpansion(ClientError):
    """A stateful job's stream changed its partition count in a way that would part keys from their state."""

    slug = "incompatible-expansion"


class BadPlacement(ClientError):
    """The tasks cannot be spread over that many containers."""

    slug = "bad-placement"


class StaleRun(ClientError):
    """The run is not the job's current one, or has ended."""

    slug = "stale-run"
    status = 409


class RunIsDraining(ClientError):
    """The job's current run is draining."""

    slug = "run-is-draining"
    status = 409


class VersionConflict(ClientError):
    """The job model has changed since."""

    slug = "version-conflict"
    status = 412


class VersionAdopted(ClientError):
    """A container runs a later version of the job model."""

    slug = "version-adopted"
    status = 409


class UnknownVersion(ClientError):
    """The job has no such version of its model."""

    slug = "unknown-version"
    status = 404


class NotTheCurrentRun(ClientError):
    """The run that was to be replaced is not the job's current one."""

    slug = "not-the-current-run"
    status = 412


class UnknownDrain(ClientError):
    """There is no such drain."""

    slug = "unknown-drain"
    status = 404


class ForeignDrain(UnknownDrain):
    """The run is under another drain."""

    status = 409


class DrainTooEarly(ClientError):
    """The drain has not come to the phase of this step."""

    slug = "drain-too-early"
    status = 409


class NotCancellable(ClientError):
    """The drain cannot be cancelled any more."""

    slug = "not-cancellable"
    status = 409


class NotEmptied(ClientError):
    """A flush would not empty the run's state."""

    slug = "not-emptied"
    status = 409


class NeverDrained(ClientError):
    """The job was never drained."""

    slug = "never-drained"


class CheckpointNeeded(ClientError):
    """A stage that is backed up reports its pinned checkpoint."""

    slug = "checkpoint-needed"


class NotAligned(ClientError):
    """The stage's tasks are not aligned by event time."""

    slug = "not-aligned"


class IdInUse(ClientError):
    """The execution container id belongs to another slot."""

    slug = "id-in-use"
    status = 409


class TaskNotYours(ClientError):
    """The job model gives that task to another slot."""

    slug = "task-not-yours"
    status = 409


class BodyTooLarge(ClientError):
    """The request's body is larger than Sluice reads."""

    slug = "body-too-large"
    status = 413


class BadSettings(ClientError):
    """The settings cannot be used."""

    slug = "bad-settings"


class HomeInUse(ClientError):
    """Another coordinator uses this home."""

    slug = "home-in-use"


class DatabaseInUse(ClientError):
    """Another coordinator uses this database."""

    slug = "database-in-use"


class BlobStoreUnusable(ClientError):
    """The blob store is not there, is not ours, or may not be written."""

    slug = "blob-store-unusable"


class UnknownSnapshot(ClientError):
    """There is no such snapshot."""

    slug = "unknown-snapshot"
    status = 404


class UnknownPin(ClientError):
    """There is no such pin."""

    slug = "unknown-pin"
    status = 404


class UnknownErrand(ClientError):
    """There is no such errand."""

    slug = "unknown-errand"
    status = 404


class TaskHeld(ClientError):
    """A container holds the task."""

    slug = "task-held"
    status = 409


class StateUnregistered(ClientError):
    """A blob store has snapshots of the job that the coordinator does not know."""

    slug = "state-unregistered"
    status = 409


class RegistryNotEmpty(ClientError):
    """The registry knows snapshots already."""

    slug = "registry-not-empty"


class SnapshotConflict(ClientError):
    """The snapshot does not follow the newest one of its store."""

    slug = "snapshot-conflict"
    status = 409


class BadJobFile(ClientError):
    """The job file does not describe a job."""

    slug = "bad-job-file"


# --- the caller's time is up -----------------------------------------------------------------------------------------


class LeaseLost(SluiceError):
    """Another incarnation holds what you hold: stop now, do not retry."""

    slug = "lease-lost"
    status = 409


# --- our trouble: it may pass ----------------------------------------------------------------------------------------


class Unavailable(SluiceError):
    """A part of Sluice is not available."""

    slug = "unavailable"
    status = 503
    retry_after: float = 1
    """Seconds after which asking again may help."""


class HeldBack(Unavailable):
    """The slot's containers failed again and again."""

    slug = "held-back"

    def __init__(self, told: str, retry_after: float) -> None:
        super().__init__(told)
        self.retry_after = retry_after


class StoreUnavailable(Unavailable):
    """The coordinator's database cannot be read or written."""

    slug = "store-unavailable"


class StreamUnavailable(Unavailable):
    """A stream's system cannot be reached."""

    slug = "stream-unavailable"


class BlobUnavailable(Unavailable):
    """A blob store does not answer, or not sensibly."""

    slug = "blob-unavailable"


class CannotListen(Unavailable):
    """The coordinator cannot listen on its address."""

    slug = "cannot-listen"


class CoordinatorUnreachable(Unavailable):
    """The coordinator does not answer."""

    slug = "coordinator-unreachable"


# --- the data --------------------------------------------------------------------------------------------------------


class CorruptData(SluiceError):
    """Stored data is not what was written."""

    slug = "bad-data"


class BlobMissing(CorruptData):
    """The blob store has no such blob."""

    slug = "blob-missing"


class BlobDeleted(BlobMissing):
    """The blob was deleted."""

    slug = "blob-deleted"


class BlobCorrupted(CorruptData):
    """A blob is not what was written."""

    slug = "blob-corrupted"


class IndexUnreadable(CorruptData):
    """A snapshot's index cannot be read."""

    slug = "index-unreadable"


# --- bugs ------------------------------------------------------------------------------------------------------------


class Bug(SluiceError):
    """Sluice did something that it must never do; please report it."""

    slug = "bug"


class IllegalTransition(Bug):
    """A run was moved along an arrow that its life cycle does not have."""

    slug = "illegal-transition"
