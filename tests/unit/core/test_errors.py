"""The problem types of the API: slug, status and title are part of the wire format and do not change with a class."""

from __future__ import annotations

import inspect
from types import ModuleType

import containers.errors
import sluice.core.errors
from sluice.core.errors import SluiceError

WIRE = {
    ("error", 500, "Something went wrong."),
    ("bad-request", 422, "The request cannot be carried out."),
    ("invalid-request", 422, "The request does not have the form that the API documents."),
    ("http-400", 400, "The body of the request cannot be read."),
    ("http-404", 404, "The API has no such path."),
    ("http-405", 405, "The path does not have the method of the request."),
    ("bad-name", 422, "A name has characters that Sluice does not accept."),
    ("unstorable-text", 422, "A text has NUL or lone surrogates, which cannot be stored."),
    ("unknown-job", 404, "There is no such job."),
    ("unknown-run", 404, "There is no such run."),
    ("unknown-container", 404, "There is no such container."),
    ("unknown-slot", 404, "The run has no slot with that processor id."),
    ("unknown-task", 404, "The job model has no such task."),
    ("no-job-model", 404, "The job has no job model yet."),
    ("unknown-system", 422, "No such system is configured."),
    ("unknown-stream", 422, "The system has no such stream."),
    ("stream-conflict", 422, "The stream exists with another partition count."),
    ("bad-graph", 422, "The stage graph is not a chain of stages that can run."),
    ("bad-config", 422, "The job's configuration has an invalid value."),
    ("bad-grouping", 422, "The inputs cannot be grouped into tasks this way."),
    ("not-co-partitioned", 422, "A stage reads streams whose partitions do not match."),
    ("incompatible-expansion", 422, "The new partition count of a stream would separate keys of a stateful job from their state."),
    ("bad-placement", 422, "The tasks cannot be distributed over that many containers."),
    ("stale-run", 409, "The run is not the job's current one, or has ended."),
    ("slot-in-use", 409, "Another container has the slot, and the request does not replace it."),
    ("not-attached", 409, "The job is run from a job file."),
    ("attached-job", 409, "The job is an existing script, which cannot be drained in this way."),
    ("queries-not-drainable", 409, "A query of a script cannot be drained."),
    ("job-not-finished", 409, "The job's current run has not ended, or a container of the job may still be running."),
    ("run-is-draining", 409, "The job's current run is draining."),
    ("version-conflict", 412, "The job model has changed since it was read."),
    ("version-adopted", 409, "A container runs a later version of the job model."),
    ("unknown-version", 404, "The job has no such version of its model."),
    ("not-the-current-run", 412, "The run to replace is not the job's current run."),
    ("unknown-drain", 404, "There is no such drain."),
    ("unknown-drain", 409, "The run has another drain."),
    ("drain-too-early", 409, "The drain has not reached the phase of this step."),
    ("not-cancellable", 409, "The drain can no longer be cancelled."),
    ("not-emptied", 409, "A flush would leave rows in the run's state."),
    ("other-drain-mode", 409, "The run has a drain in progress with the other mode."),
    ("outdated-containers", 409, "A container of the run belongs to a release that does not support the request."),
    ("incompatible-state", 409, "The new version cannot continue with the state that the drain kept."),
    ("never-drained", 422, "The job was never drained."),
    ("checkpoint-needed", 422, "The report must name a checkpoint, because the stage is backed up."),
    ("id-in-use", 409, "The execution container id belongs to another slot."),
    ("drain-id-in-use", 409, "Another run's drain has that id."),
    ("task-not-yours", 409, "The job model assigns the task to another slot."),
    ("body-too-large", 413, "The request body is too large."),
    ("url-too-long", 414, "The URL of the request is too long."),
    ("request-head-too-large", 431, "The request line and headers are too large."),
    ("not-authenticated", 401, "The request has no valid token."),
    ("forbidden", 403, "The token does not allow the request."),
    ("token-in-url", 400, "The URL contains a token, which logs and browser histories would keep."),
    ("too-many-bad-tokens", 429, "Too many invalid tokens were sent."),
    ("unknown-token", 404, "There is no such token."),
    ("host-not-allowed", 421, "The Host header names a host that the coordinator does not serve."),
    ("cross-site-request", 403, "The request comes from a web page of another site."),
    ("request-timeout", 408, "The request did not arrive in time."),
    ("bad-settings", 422, "The settings cannot be used."),
    ("bad-option", 422, "An option or argument of the command cannot be used."),
    ("home-in-use", 422, "Another coordinator uses this home directory."),
    ("file-exists", 422, "The file already exists."),
    ("not-a-sqlite-database", 422, "The command supports only SQLite databases in files."),
    ("unusable-copy", 422, "The file is not a copy of a coordinator's database that this version can use."),
    ("unknown-schema", 422, "This version cannot use the schema of the database."),
    ("database-in-use", 422, "Another coordinator uses this database."),
    ("blob-store-unusable", 422, "The blob store is not there, is not ours, or may not be written."),
    ("no-store-role", 409, "The coordinator hands out no credentials for the blob store."),
    ("unknown-blob-store", 404, "No such blob store is configured."),
    ("unknown-snapshot", 404, "There is no such snapshot."),
    ("unknown-page", 404, "There is no such page."),
    ("unknown-pin", 404, "There is no such pin."),
    ("unknown-errand", 404, "There is no such operation."),
    ("task-held", 409, "A container owns the task."),
    ("state-unregistered", 409, "A blob store has snapshots of the job that are not in the catalog."),
    ("registry-not-empty", 422, "The catalog already has snapshots."),
    ("false-report", 422, "The report cannot be true."),
    ("snapshot-conflict", 409, "The snapshot does not follow the stage's newest snapshot."),
    ("bad-job-file", 422, "The job file does not describe a job."),
    ("lease-lost", 409, "Another container has taken over: stop now, and do not retry."),
    ("unavailable", 503, "A part of Sluice is not available."),
    ("held-back", 503, "The slot's containers failed repeatedly right after starting."),
    ("store-credentials-unavailable", 503, "The credentials of a blob store cannot be issued now."),
    ("audit-unavailable", 503, "The audit log cannot be written."),
    ("identity-provider-unavailable", 503, "An identity provider does not answer, or not sensibly."),
    ("store-unavailable", 503, "The coordinator's database cannot be read or written."),
    ("stream-unavailable", 503, "A stream's system cannot be reached."),
    ("numbers-not-reserved", 503, "No blob store can be written, so no further generation can be issued."),
    ("catalog-incomplete", 503, "The database may be older than the blob stores, and is being compared with them."),
    ("blob-unavailable", 503, "A blob store does not answer, or its answer is not valid."),
    ("too-many-requests", 503, "The coordinator already processes the maximum number of requests."),
    ("cannot-listen", 503, "The coordinator cannot listen on its address."),
    ("coordinator-unavailable", 503, "The coordinator answers, but cannot carry out the request now."),
    ("coordinator-unreachable", 503, "The coordinator does not answer."),
    ("bad-data", 500, "Stored data differs from what was written."),
    ("blob-missing", 500, "The blob store has no such blob."),
    ("blob-deleted", 500, "The blob was deleted."),
    ("blob-corrupted", 500, "A blob differs from what was written."),
    ("index-unreadable", 500, "A snapshot's index cannot be read."),
    ("ledger-unreadable", 500, "The ledger of issued numbers in a blob store cannot be read."),
    ("bug", 500, "Sluice has a bug; please report it."),
    ("illegal-transition", 500, "The life cycle of a run does not have this transition."),
}

CONTAINER = {
    ("state-elsewhere", 422, "The task's state is not on this disk."),
    ("java-missing", 422, "Java was not found."),
    (
        "state-incompatible",
        422,
        "The stage's operators or the schema of their state have changed, and the job was not drained.",
    ),
    ("path-not-shared", 422, "A directory that the executors must share with the driver is not the same one for all of them."),
    ("coordinator-not-started", 503, "The coordinator did not start."),
    ("jars-unavailable", 503, "Required jars cannot be downloaded."),
    ("class-archive-not-made", 503, "The AppCDS archive of Spark's classes, which makes containers start faster, cannot be created."),
    ("operators-differ", 422, "The version has other stateful operators than the state that a drain has kept."),
    ("broker-unavailable", 503, "The development Kafka broker on this machine cannot be used."),
    ("disk-unwritable", 503, "A directory of this machine cannot be written."),
    ("disk-full", 503, "A disk of this machine is full. The container waits for room."),
    ("spark-not-started", 503, "Spark cannot be started in the container."),
    ("executors-missing", 503, "The Spark cluster provides no executors."),
    ("spark-gone", 503, "Spark has ended in the container."),
    ("offsets-trimmed", 500, "Records that a reader needs are no longer in the stream."),
    ("checkpoint-unreadable", 500, "A checkpoint directory is incomplete, or was not written by Spark."),
}

FAMILIES = {
    ("retry-after", 500, "The caller may repeat the request after a pause."),
    ("not-found", 404, "The requested object does not exist."),
    ("conflict", 409, "The current state of the object does not allow the request."),
}
"""Bases of others, never raised themselves."""


def errors_of(module: ModuleType) -> list[tuple[str, int, str]]:
    """Of each error that is defined there, in the order of the file."""
    classes = [each for each in vars(module).values() if inspect.isclass(each) and issubclass(each, SluiceError)]
    return [(each.slug, each.status, each.title()) for each in classes if each.__module__ == module.__name__]


def test_every_problem_type_keeps_its_slug_status_and_title() -> None:
    reported = errors_of(sluice.core.errors)
    assert set(reported) == WIRE | FAMILIES
    assert len(reported) == len(WIRE | FAMILIES)


def test_the_errors_of_a_container_keep_their_names_which_logs_and_exit_reasons_show() -> None:
    assert set(errors_of(containers.errors)) == CONTAINER


def test_a_slug_is_the_name_of_the_class_unless_the_class_has_another() -> None:
    class NotTheRightTime(SluiceError):
        """Too soon."""

    class StillNot(NotTheRightTime):
        """Too soon."""

        slug = "too-soon"

    assert (NotTheRightTime.slug, StillNot.slug) == ("not-the-right-time", "too-soon")
