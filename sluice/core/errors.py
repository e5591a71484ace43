"""Errors that cross the wire, sorted by who must act.

* `ClientError`: the caller must change the request; repeating it cannot succeed (4xx).
* `LeaseLost`: the caller no longer owns what it acts on; it must stop and must not retry (409, type `lease-lost`).
* `Unavailable`: a dependency does not respond; retry after a pause (503).
* `CorruptData`: stored bytes differ from what was written; stop and alert an operator (500).
* `Bug`: an illegal transition or a broken invariant (500).

Each class is one problem type of RFC 9457 (`application/problem+json`):

* type: `urn:sluice:` and the slug, which is the class name in kebab case (`UnknownRun` is `unknown-run`) unless the class sets `slug`
* status: inherited from the family, from `NotFound` (404) or from `Conflict` (409)
* title: the first line of the class's docstring

Slugs, statuses and titles are part of the wire format; tests/unit/core/test_errors.py lists them all. `coordinator/api/errors.py` builds
the responses. Errors of containers, which never become responses, are in `containers/errors.py` and next to the code that raises them. If a
container is not valid, `/containerHeartbeat` gives a normal answer and not an error.
"""

from __future__ import annotations

import re
from typing import ClassVar


class SluiceError(Exception):
    """Something went wrong."""

    slug: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "slug" not in cls.__dict__:
            cls.slug = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @classmethod
    def title(cls) -> str:
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0]


class RetryAfter(SluiceError):
    """The caller may repeat the request after a pause."""

    def __init__(self, detail: str = "", retry_after: float = 1) -> None:
        super().__init__(detail)
        self.retry_after = retry_after
        """Seconds; the `Retry-After` header of the response."""


# --- the caller must change the request ------------------------------------------------------------------------------


class ClientError(SluiceError):
    """The request cannot be carried out."""

    slug = "bad-request"
    status = 422


class NotFound(ClientError):
    """The requested object does not exist."""

    status = 404


class Conflict(ClientError):
    """The current state of the object does not allow the request."""

    status = 409


class InvalidRequest(ClientError):
    """The request does not have the form that the API documents."""


class UnreadableBody(ClientError):
    """The body of the request cannot be read."""

    slug = "http-400"
    status = 400


class UnknownPath(NotFound):
    """The API has no such path."""

    slug = "http-404"


class MethodNotAllowed(ClientError):
    """The path does not have the method of the request."""

    slug = "http-405"
    status = 405


class BadName(ClientError):
    """A name has characters that Sluice does not accept."""

    def __init__(self, kind: str, name: str, rule: str = "starting with a letter or digit") -> None:
        super().__init__(f"invalid {kind} name {name[:80]!r}: use 1 to 249 letters, digits, '.', '_' and '-', {rule}")


class UnstorableText(ClientError):
    """A text has NUL or lone surrogates, which cannot be stored."""


class UnknownJob(NotFound):
    """There is no such job."""


class UnknownRun(NotFound):
    """There is no such run."""


class UnknownContainer(NotFound):
    """There is no such container."""


class UnknownSlot(NotFound):
    """The run has no slot with that processor id."""


class UnknownTask(NotFound):
    """The job model has no such task."""


class NoJobModel(NotFound):
    """The job has no job model yet."""


class UnknownSystem(ClientError):
    """No such system is configured."""


class UnknownStream(ClientError):
    """The system has no such stream."""


class StreamConflict(ClientError):
    """The stream exists with another partition count."""


class BadGraph(ClientError):
    """The stage graph is not a chain of stages that can run."""


class BadConfig(ClientError):
    """The job's configuration has an invalid value."""


class BadGrouping(ClientError):
    """The inputs cannot be grouped into tasks this way."""


class NotCoPartitioned(ClientError):
    """A stage reads streams whose partitions do not match."""


class IncompatibleExpansion(ClientError):
    """The new partition count of a stream would separate keys of a stateful job from their state."""


class BadPlacement(ClientError):
    """The tasks cannot be distributed over that many containers."""


class StaleRun(Conflict):
    """The run is not the job's current one, or has ended."""


class SlotInUse(Conflict):
    """Another container has the slot, and the request does not replace it."""


class JobNotFinished(Conflict):
    """The job's current run has not ended, or a container of the job may still be running."""


class RunIsDraining(Conflict):
    """The job's current run is draining."""


class VersionConflict(ClientError):
    """The job model has changed since it was read."""

    status = 412


class VersionAdopted(Conflict):
    """A container runs a later version of the job model."""


class UnknownVersion(NotFound):
    """The job has no such version of its model."""


class NotTheCurrentRun(ClientError):
    """The run to replace is not the job's current run."""

    status = 412


class UnknownDrain(NotFound):
    """There is no such drain."""


class ForeignDrain(UnknownDrain):
    """The run has another drain."""

    slug = "unknown-drain"
    status = 409


class DrainTooEarly(Conflict):
    """The drain has not reached the phase of this step."""


class NotCancellable(Conflict):
    """The drain can no longer be cancelled."""


class NotAttached(Conflict):
    """The job is run from a job file."""


class AttachedJob(Conflict):
    """The job is an existing script, which cannot be drained in this way."""


class QueriesNotDrainable(Conflict):
    """A query of a script cannot be drained."""


class NotEmptied(Conflict):
    """A flush would leave rows in the run's state."""


class OtherDrainMode(Conflict):
    """The run has a drain in progress with the other mode."""


class OutdatedContainers(Conflict):
    """A container of the run belongs to a release that does not support the request."""


class IncompatibleState(Conflict):
    """The new version cannot continue with the state that the drain kept."""


class NeverDrained(ClientError):
    """The job was never drained."""


class CheckpointNeeded(ClientError):
    """The report must name a checkpoint, because the stage is backed up."""


class IdInUse(Conflict):
    """The execution container id belongs to another slot."""


class DrainIdInUse(Conflict):
    """Another run's drain has that id."""


class TaskNotYours(Conflict):
    """The job model assigns the task to another slot."""


class BodyTooLarge(ClientError):
    """The request body is too large."""

    status = 413


class UrlTooLong(ClientError):
    """The URL of the request is too long."""

    status = 414


class RequestHeadTooLarge(ClientError):
    """The request line and headers are too large."""

    status = 431


class NotAuthenticated(ClientError):
    """The request has no valid token."""

    status = 401


class Forbidden(ClientError):
    """The token does not allow the request."""

    status = 403


class TokenInUrl(ClientError):
    """The URL contains a token, which logs and browser histories would keep."""

    status = 400


class TooManyBadTokens(RetryAfter, ClientError):
    """Too many invalid tokens were sent."""

    status = 429


class UnknownToken(NotFound):
    """There is no such token."""


class HostNotAllowed(ClientError):
    """The Host header names a host that the coordinator does not serve."""

    status = 421


class CrossSiteRequest(ClientError):
    """The request comes from a web page of another site."""

    status = 403


class RequestTimeout(ClientError):
    """The request did not arrive in time."""

    status = 408


class BadSettings(ClientError):
    """The settings cannot be used."""


class BadOption(BadSettings):
    """An option or argument of the command cannot be used."""


class HomeInUse(ClientError):
    """Another coordinator uses this home directory."""


class DatabaseInUse(ClientError):
    """Another coordinator uses this database."""


class NotASqliteDatabase(ClientError):
    """The command supports only SQLite databases in files."""


class FileExists(ClientError):
    """The file already exists."""


class UnusableCopy(ClientError):
    """The file is not a copy of a coordinator's database that this version can use."""


class UnknownSchema(ClientError):
    """This version cannot use the schema of the database."""


class BlobStoreUnusable(ClientError):
    """The blob store is not there, is not ours, or may not be written."""


class NoStoreRole(Conflict):
    """The coordinator hands out no credentials for the blob store."""


class UnknownBlobStore(NotFound):
    """No such blob store is configured."""


class UnknownSnapshot(NotFound):
    """There is no such snapshot."""


class UnknownPage(NotFound):
    """There is no such page."""


class UnknownPin(NotFound):
    """There is no such pin."""


class UnknownOperation(NotFound):
    """There is no such operation."""

    slug = "unknown-errand"


class TaskHeld(Conflict):
    """A container owns the task."""


class StateUnregistered(Conflict):
    """A blob store has snapshots of the job that are not in the catalog."""


class CatalogNotEmpty(ClientError):
    """The catalog already has snapshots."""

    slug = "registry-not-empty"


class FalseReport(ClientError):
    """The report cannot be true."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{detail}: nothing was recorded; read the run and acquire the task again")
        self.reason = reason
        """One of `sluice.core.leases.ownership.FALSE`."""


class SnapshotConflict(Conflict):
    """The snapshot does not follow the stage's newest snapshot."""


class BadJobFile(ClientError):
    """The job file does not describe a job."""


# --- the caller must stop --------------------------------------------------------------------------------------------


class LeaseLost(SluiceError):
    """Another container has taken over: stop now, and do not retry."""

    status = 409


# --- the caller retries later ----------------------------------------------------------------------------------------


class Unavailable(RetryAfter):
    """A part of Sluice is not available."""

    status = 503


class CrashLoopBackoff(Unavailable):
    """The slot's containers failed repeatedly right after starting."""

    slug = "held-back"


class StoreUnavailable(Unavailable):
    """The coordinator's database cannot be read or written."""


class StoreCredentialsUnavailable(Unavailable):
    """The credentials of a blob store cannot be issued now."""


class AuditUnavailable(Unavailable):
    """The audit log cannot be written."""


class IdentityProviderUnavailable(Unavailable):
    """An identity provider does not answer, or not sensibly."""


class StreamUnavailable(Unavailable):
    """A stream's system cannot be reached."""


class BlobUnavailable(Unavailable):
    """A blob store does not answer, or its answer is not valid."""


class NumbersNotReserved(Unavailable):
    """No blob store can be written, so no further generation can be issued."""


class CatalogIncomplete(Unavailable):
    """The database may be older than the blob stores, and is being compared with them."""


class TooManyRequests(Unavailable):
    """The coordinator already processes the maximum number of requests."""


class CannotListen(Unavailable):
    """The coordinator cannot listen on its address."""


class CoordinatorUnreachable(Unavailable):
    """The coordinator does not answer."""


class CoordinatorUnavailable(CoordinatorUnreachable):
    """The coordinator answers, but cannot carry out the request now."""


# --- stored data -----------------------------------------------------------------------------------------------------


class CorruptData(SluiceError):
    """Stored data differs from what was written."""

    slug = "bad-data"


class BlobMissing(CorruptData):
    """The blob store has no such blob."""


class BlobDeleted(BlobMissing):
    """The blob was deleted."""


class BlobCorrupted(CorruptData):
    """A blob differs from what was written."""


class IndexUnreadable(CorruptData):
    """A snapshot's index cannot be read."""


class LedgerUnreadable(CorruptData):
    """The ledger of issued numbers in a blob store cannot be read."""


# --- bugs ------------------------------------------------------------------------------------------------------------


class Bug(SluiceError):
    """Sluice has a bug; please report it."""


class IllegalTransition(Bug):
    """The life cycle of a run does not have this transition."""
