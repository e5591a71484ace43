"""The problem types of the API: slug, status and title are part of the wire format and do not change with a class."""

from __future__ import annotations

import inspect
from types import ModuleType

import containers.errors
import sluice.core.errors
from sluice.core.errors import SluiceError

WIRE = {
    ("error", 500, "Something went wrong."),
    ("bad-request", 422, "The request cannot be carried out as it stands."),
    ("bad-name", 422, "A name has characters that Sluice does not accept."),
    ("unknown-job", 404, "There is no such job."),
    ("unknown-run", 404, "There is no such run."),
    ("unknown-container", 404, "There is no such container."),
    ("unknown-slot", 404, "The run has no such processor id."),
    ("unknown-task", 404, "The job model has no such task."),
    ("no-job-model", 404, "The job has no job model yet."),
    ("unknown-system", 422, "No such system is configured."),
    ("unknown-stream", 422, "The system has no such stream."),
    ("stream-conflict", 422, "The stream exists with another partition count."),
    ("bad-graph", 422, "The stage graph is not a chain of stages that can run."),
    ("bad-config", 422, "The job's configuration holds a value that cannot be used."),
    ("bad-grouping", 422, "The inputs cannot be grouped into tasks this way."),
    ("not-co-partitioned", 422, "A stage reads streams whose partitions do not match."),
    ("incompatible-expansion", 422, "A stateful job's stream changed its partition count in a way that would part keys from their state."),
    ("bad-placement", 422, "The tasks cannot be spread over that many containers."),
    ("stale-run", 409, "The run is not the job's current one, or has ended."),
    ("slot-in-use", 409, "Another container has the slot, and the request does not replace it."),
    ("attached-job", 409, "Sluice runs the job's command, and does not know its queries."),
    ("job-not-finished", 409, "The job's current run has not ended, or a container of the job may still act."),
    ("run-is-draining", 409, "The job's current run is draining."),
    ("version-conflict", 412, "The job model has changed since."),
    ("version-adopted", 409, "A container runs a later version of the job model."),
    ("unknown-version", 404, "The job has no such version of its model."),
    ("not-the-current-run", 412, "The run that was to be replaced is not the job's current one."),
    ("unknown-drain", 404, "There is no such drain."),
    ("unknown-drain", 409, "The run is under another drain."),
    ("drain-too-early", 409, "The drain has not come to the phase of this step."),
    ("not-cancellable", 409, "The drain cannot be cancelled any more."),
    ("not-emptied", 409, "A flush would not empty the run's state."),
    ("other-drain-mode", 409, "The run has a drain of the other mode."),
    ("outdated-containers", 409, "A container of the run is of a release that does not know this."),
    ("incompatible-state", 409, "The new version cannot continue with the state that the drain kept."),
    ("never-drained", 422, "The job was never drained."),
    ("checkpoint-needed", 422, "A stage that is backed up reports its pinned checkpoint."),
    ("not-aligned", 422, "The stage's tasks are not aligned by event time."),
    ("id-in-use", 409, "The execution container id belongs to another slot."),
    ("drain-id-in-use", 409, "Another run's drain has that id."),
    ("task-not-yours", 409, "The job model gives that task to another slot."),
    ("body-too-large", 413, "The request's body is larger than Sluice reads."),
    ("url-too-long", 414, "The request's URL is longer than Sluice reads."),
    ("request-head-too-large", 431, "The request line and headers are larger than Sluice reads."),
    ("not-authenticated", 401, "The request has no valid token."),
    ("forbidden", 403, "The token does not allow the request."),
    ("token-in-url", 400, "The URL has a token, which logs and histories keep."),
    ("too-many-bad-tokens", 429, "Too many wrong tokens were sent."),
    ("unknown-token", 404, "There is no such token."),
    ("host-not-allowed", 421, "The request is for a host that the coordinator is not known as."),
    ("cross-site-request", 403, "A web page of another site made the request."),
    ("request-timeout", 408, "The request did not arrive in time."),
    ("bad-settings", 422, "The settings cannot be used."),
    ("home-in-use", 422, "Another coordinator uses this home."),
    ("file-exists", 422, "A file would be replaced."),
    ("not-a-sqlite-database", 422, "The command works on SQLite databases in files only."),
    ("unusable-copy", 422, "The file is not a copy of a coordinator's database that this version can use."),
    ("database-in-use", 422, "Another coordinator uses this database."),
    ("blob-store-unusable", 422, "The blob store is not there, is not ours, or may not be written."),
    ("unknown-snapshot", 404, "There is no such snapshot."),
    ("unknown-page", 404, "There is no such page."),
    ("unknown-pin", 404, "There is no such pin."),
    ("unknown-errand", 404, "There is no such operation."),
    ("task-held", 409, "A container holds the task."),
    ("state-unregistered", 409, "A blob store has snapshots of the job that the coordinator does not know."),
    ("registry-not-empty", 422, "The registry knows snapshots already."),
    ("false-report", 422, "A report says what cannot be true."),
    ("snapshot-conflict", 409, "The snapshot does not follow the newest one of its store."),
    ("bad-job-file", 422, "The job file does not describe a job."),
    ("lease-lost", 409, "Another incarnation holds what you hold: stop now, do not retry."),
    ("unavailable", 503, "A part of Sluice is not available."),
    ("held-back", 503, "The slot's containers failed again and again."),
    ("store-unavailable", 503, "The coordinator's database cannot be read or written."),
    ("stream-unavailable", 503, "A stream's system cannot be reached."),
    ("numbers-not-reserved", 503, "No blob store can be written, so no further generation can be issued."),
    ("catalog-incomplete", 503, "The database may be older than the blob stores, and is being compared with them."),
    ("blob-unavailable", 503, "A blob store does not answer, or not sensibly."),
    ("too-many-requests", 503, "The coordinator answers as many requests at a time as it may."),
    ("cannot-listen", 503, "The coordinator cannot listen on its address."),
    ("coordinator-unavailable", 503, "The coordinator answers, but cannot carry out the request now."),
    ("coordinator-unreachable", 503, "The coordinator does not answer."),
    ("bad-data", 500, "Stored data is not what was written."),
    ("blob-missing", 500, "The blob store has no such blob."),
    ("blob-deleted", 500, "The blob was deleted."),
    ("blob-corrupted", 500, "A blob is not what was written."),
    ("index-unreadable", 500, "A snapshot's index cannot be read."),
    ("ledger-unreadable", 500, "The ledger of issued numbers in a blob store cannot be read."),
    ("bug", 500, "Sluice did something that it must never do; please report it."),
    ("illegal-transition", 500, "A run was moved along an arrow that its life cycle does not have."),
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
    ("not-found", 404, "What the request names does not exist."),
    ("conflict", 409, "The state of what the request names does not allow it."),
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
