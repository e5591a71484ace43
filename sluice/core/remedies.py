"""What to do about each error.

The coordinator's answers contain it, the command line prints it below an error, and `sluice doctor` beside a problem.
docs/reference/errors.md has all. The message of an error
has more details, such as names and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from sluice.core import errors
from sluice.core.errors import SluiceError

REMEDIES: Mapping[str, str] = {
    "SluiceError": "Look at the message, and report it with the log if that does not help.",
    # --- sluice/core/errors.py: names and requests
    "ClientError": "Correct the request as the message says.",
    "NotFound": "Check the name, and the coordinator that was asked.",
    "Conflict": "Read the state of what the request names, and decide again.",
    "InvalidRequest": "Correct the request as the message says. `/docs` of the coordinator describes all requests.",
    "UnreadableBody": "Send the whole body, as valid JSON.",
    "UnknownPath": "Check the path, and the coordinator that was asked: its `/docs` lists all requests.",
    "MethodNotAllowed": "Check the method and the path: `/docs` of the coordinator lists all requests.",
    "BadName": "Use letters, digits, `.`, `_` and `-`.",
    "UnstorableText": "Remove NUL and lone surrogates from the text.",
    "UnknownJob": "List jobs with `sluice jobs`. A job exists from its first deployment on.",
    "UnknownRun": "List runs with `sluice jobs runs JOB`. Ended runs are deleted after `keep_history_seconds`.",
    "UnknownContainer": "List containers with `sluice jobs containers RUN`. The container has to register again.",
    "UnknownSlot": "Use a processor id below the run's number of containers.",
    "UnknownTask": "List tasks with `sluice jobs tasks RUN`.",
    "NoJobModel": "Deploy the job first.",
    "UnknownSystem": "Set `kafka_bootstrap` in the coordinator, or choose another system with `--system` or `--bind`.",
    "UnknownStream": "Create the stream: `sluice streams create NAME --partitions N`, or the tools of Kafka.",
    "StreamConflict": "Declare the stream with the count that it has, or use another name.",
    "BadGraph": "Correct the stages in the job file: the message names the stage or stream at fault.",
    "BadConfig": "Correct the value that the message names.",
    "BadGrouping": "Choose a grouper that fits, or correct your own: see [groupers](../howto/groupers.md).",
    "NotCoPartitioned": "Route one of the streams by the join key into an intermediate stream with the same count.",
    "IncompatibleExpansion": "Grow the stream to the multiple that the message names, or drain the job: see "
    "[grow a topic](../howto/grow-a-topic.md).",
    "BadPlacement": "Deploy with as many containers as the message allows.",
    "StaleRun": "Nothing, if the container belongs to an old run. Otherwise use the job's current run.",
    "SlotInUse": "End the container that has the slot, or replace it.",
    "JobNotFinished": "Stop the job, and wait until the leases of its containers have ended.",
    "RunIsDraining": "Wait for the drain, or cancel it with `sluice drain JOB --cancel`.",
    "VersionConflict": "Read the job model again, and repeat the change.",
    "VersionAdopted": "Change the model forwards: a version that containers have adopted is not rolled back.",
    "UnknownVersion": "List versions with `sluice models ls JOB`.",
    "NotTheCurrentRun": "Another run was deployed. Read the job again, and decide again.",
    "UnknownDrain": "List drains with `GET /drains?job=JOB`.",
    "ForeignDrain": "Nothing: the container has taken part in an earlier drain.",
    "DrainTooEarly": "Nothing: the container repeats the step.",
    "NotCancellable": "Wait for the end of the drain. After FLUSHING only a drain that keeps state can be cancelled.",
    "AttachedJob": "Stop the job with `sluice stop`: with `sluice.attach` its queries end between two batches.",
    "QueriesNotDrainable": "Stop the job with `sluice stop`, which keeps the state, or change the queries that are named.",
    "NotAttached": "Use the request that fits the kind of the job: `sluice status JOB` shows it.",
    "NotEmptied": "Drain without `--require-empty` (upgrade with `--allow-leftover-state`), with `--keep-state`, or change the operators.",
    "OtherDrainMode": "Wait for the drain, or cancel it and request the other mode.",
    "OutdatedContainers": "Update the containers first.",
    "IncompatibleState": "Deploy the version that was drained, and drain it without `--keep-state`.",
    "NeverDrained": "Drain the job first, or choose another start.",
    "CheckpointNeeded": "Update the container.",
    "IdInUse": "Start the container with another `EXECUTION_ENV_CONTAINER_ID`.",
    "DrainIdInUse": "Choose another uuid.",
    "TaskNotYours": "Nothing: the container reads its job model again.",
    "BodyTooLarge": "Send less, or raise `max_body_bytes`.",
    "UrlTooLong": "Shorten the URL.",
    "RequestHeadTooLarge": "Send fewer or shorter headers.",
    "NotAuthenticated": "Give a token: `SLUICE_TOKEN` or `SLUICE_TOKEN_FILE`. See [security](../security.md).",
    "Forbidden": "Use a token with the role that the message names: see [roles](../roles.md).",
    "TokenInUrl": "Revoke the token, because logs have it now, and send the new one in the header `Authorization`.",
    "TooManyBadTokens": "Correct the token, and wait for the time in `Retry-After`.",
    "UnknownToken": "List tokens with `sluice token ls`.",
    "HostNotAllowed": "Add the name to `allowed_hosts`.",
    "CrossSiteRequest": "Send the request from a program, or from the coordinator's own pages.",
    "RequestTimeout": "Repeat the request. Look at the network if it happens again.",
    "BadSettings": "Correct the setting that the message names. `sluice config show` prints where each comes from.",
    "BadOption": "Correct the option or argument that the message names.",
    "HomeInUse": "Stop the other coordinator, or choose another `--home`.",
    "DatabaseInUse": "Stop the other coordinator, or choose another database.",
    "NotASqliteDatabase": "Use the tools of PostgreSQL: see [operating](../operating.md#lost-databases).",
    "FileExists": "Give another file, or `--force`.",
    "UnusableCopy": "Use a copy that this version or an older one has made.",
    "UnknownSchema": "See [upgrade to a new release](../howto/coordinator.md#upgrade-to-a-new-release).",
    "BlobStoreUnusable": "Correct the URL, the rights, or the marker that the message names.",
    "NoStoreRole": "Set a role for the store in `blob_store_roles`, or give the containers credentials of their own: see "
    "[security](../security.md#rights-in-blob-stores).",
    "UnknownBlobStore": "Add the store to `blob_stores`, or use one of those that the message names.",
    "UnknownSnapshot": "List snapshots with `sluice snapshots ls JOB`.",
    "UnknownPage": "Follow a link of the pages under `/ui/`.",
    "UnknownPin": "List pins with `sluice snapshots pins JOB`.",
    "UnknownOperation": "Start the operation again: they are lost when the coordinator restarts.",
    "TaskHeld": "Stop the job before the restore.",
    "StateUnregistered": "Run `sluice rebuild`, or deploy with an explicit start.",
    "CatalogNotEmpty": "Use `--force` if the database is to be rebuilt all the same.",
    "FalseReport": "Restart the container: see [SluiceFalseReports](../alerts.md#sluicefalsereports).",
    "SnapshotConflict": "Nothing: the container uploads the whole state next time.",
    "NoBatch": "Call `batch_context()` in the function that `foreachBatch` calls, on the driver.",
    "BadJobFile": "Correct the job file at the line that the message names.",
    # --- stop, retry, data, bugs
    "LeaseLost": "Nothing: the container ends, and its launcher starts another one.",
    "Unavailable": "Nothing at first: it is tried again. Repair the part that the message names.",
    "RetryAfter": "Wait for the time in `Retry-After`, and repeat the request.",
    "CrashLoopBackoff": "Correct what ended the former containers of the slot: `sluice jobs containers RUN`.",
    "StoreUnavailable": "Repair the database: space, connection, permissions.",
    "StreamUnavailable": "Make the system reachable: see `/readyz?verbose`.",
    "BlobUnavailable": "Make the blob store reachable: see `/readyz?verbose`.",
    "NumbersNotReserved": "Make a blob store writable.",
    "CatalogIncomplete": "Make the blob store available that `/readyz?verbose` names: see [lost databases](../howto/lost-database.md).",
    "StoreCredentialsUnavailable": "Make STS reachable for the coordinator: see [security](../security.md#rights-in-blob-stores).",
    "AuditUnavailable": "Make the database, or the audit file, writable: a change that cannot be recorded is not made.",
    "IdentityProviderUnavailable": "Make the identity provider reachable for the coordinator: see [security](../security.md).",
    "TooManyRequests": "Wait for the time in `Retry-After`. Find clients that send many requests at a time.",
    "CannotListen": "Choose another `--host` or `--port`, or end the process that has it.",
    "CoordinatorUnreachable": "Check `SLUICE_COORDINATOR_URL`, the coordinator, its certificate and the network.",
    "CoordinatorUnavailable": "Look at the coordinator's log and at `/readyz?verbose`.",
    "CorruptData": "Keep the files, and restore an older snapshot: see [restore](../howto/restore.md).",
    "BlobMissing": "Find out what deleted it. `sluice gc audit` lists all that are missing.",
    "BlobDeleted": "Find out what deleted it: a lifecycle rule, or another program.",
    "BlobCorrupted": "Run `sluice snapshots verify --job JOB`; another blob store or an older snapshot is used.",
    "IndexUnreadable": "Run `sluice snapshots verify --job JOB`; an older snapshot is used.",
    "LedgerUnreadable": "Look at the blob store: the file was written by something else, or by a later version.",
    "Bug": "Report it with the coordinator's log.",
    "IllegalTransition": "Report it with the coordinator's log.",
    # --- containers/errors.py
    "StateNotLocal": "Start the container on the disk that has the state, configure a blob store, or deploy with an explicit start.",
    "OperatorsDiffer": "Deploy the version that was drained: see [drains](../concepts/drains.md).",
    "StateIncompatible": "Upgrade with `sluice upgrade`, which drains the job first.",
    "PathNotShared": "Put `SLUICE_STATE_DIR` on a path that driver and executors share.",
    "JavaMissing": "Install Java 17 or 21, or set `JAVA_HOME`.",
    "CoordinatorNotStarted": "Correct what the message names. The coordinator's log has more: `sluice logs --coordinator`.",
    "JarsUnavailable": "Run `sluice kafka jars` where a repository can be reached, and copy `SLUICE_JARS_DIR`.",
    "ClassArchiveUnavailable": "Containers start without it. Free space in `SLUICE_JARS_DIR`, and run `sluice class-archive` again.",
    "BrokerUnavailable": "Read the broker's log in the home's directory `kafka`.",
    "DiskUnwritable": "Free space, correct the owner, or change `SLUICE_STATE_DIR` or `SLUICE_HOME`.",
    "DiskFull": "Free space. The container continues by itself.",
    "SparkNotStarted": "Check Java, the master's address and the Spark settings: `sluice doctor`.",
    "ExecutorsMissing": "Free cores in the cluster, or lower `spark.cores.max`.",
    "ConnectionLost": "Read the container's log: the agent or the driver has ended, or was killed. The container is started again.",
    "OtherVersion": "Install the same version of Sluice for the agent and for the driver, and start the container again.",
    "SparkStopped": "Read the container's log: out of memory, a killed JVM, a lost master.",
    "OffsetsTrimmed": "Raise the retention of the stream, and deploy with an explicit start.",
    "CheckpointUnreadable": "Restore a snapshot: see [restore](../howto/restore.md).",
    # --- next to the code that raises them
    "NoJobFile": "Give the path of an existing Python file that declares the job.",
    "Refused": "Correct the request as the message says.",
    "AlreadyRunning": "Stop or drain the job first, or replace its run with `sluice upgrade`.",
    "MustWait": "Wait until the present run has ended, or start the command with `--replace` or without `--no-wait`.",
    "CannotAttach": "Start the script as [attaching](../attach.md) says.",
    "CannotWrite": "Select the columns and options that [attaching](../attach.md#kafka-exactly-once) names.",
    "CheckpointRefused": "Correct what the message names: the directory `SLUICE_STATE_DIR`, the blob store, or the snapshot.",
    "PlanNotKept": "Make the blob store reachable that the message names, and start the script again.",
    "DrainUnfinished": "Give the query another name, and set `startingOffsets`; see [attaching](../attach.md#drain).",
    "BadPartition": "Write to partitions that the topic has, or leave the column `partition` out.",
    "DrainInterrupted": "Start the script again: the drain then continues.",
    "NotGranted": "End the process that runs the job, or use another name for this job.",
    "ClusterDeployMode": "Start spark-submit with `--deploy-mode client`.",
    "JarsNotFound": "Name a Maven mirror that has them: `SLUICE_IVY_SETTINGS`.",
    "PySparkMissing": "Install it: `pip install 'sluice-spark[spark]'`, or set `SPARK_HOME`.",
    "SparkUnsupported": "Install a version in the range of the extra: `pip install 'sluice-spark[spark]'`.",
    "TransferFailed": "Nothing: the batch runs again.",
    "MarkerMissing": "Find out whether the topic has the batch, and choose what happens with it: see [sinks](../sinks.md).",
    "BadHeader": "Give each header of the column `headers` a key.",
    "TransactionTimedOut": "Write smaller batches (`maxOffsetsPerTrigger`), or raise `transaction.timeout.ms`.",
    "RecordTooLarge": "Write smaller records, or raise the limits of the topic and of the producer.",
    "ProducerFenced": "Nothing: the batch runs again, unless another container has the task.",
    "CommitOverdue": "Make the blob store or the coordinator reachable that the message names.",
    "PlanReplaced": "Nothing: the batch runs again.",
    "BatchInterrupted": "Nothing: the batch runs again.",
    "FreezeFailed": "Nothing: it is tried again. Look for another program that writes in the directory.",
    "FileChanged": "Nothing: the next commit reads the directory again.",
    "FileUnreadable": "Correct the rights of the file, and check the disk.",
}
"""By the name of the class, as Markdown. Links are relative to docs/reference."""

NO_REMEDY_KNOWN = REMEDIES[SluiceError.__name__]


def remedy_of(kind: type[BaseException]) -> str:
    """What to do about an error of this class: its own entry, or that of the nearest base class that has one; as Markdown."""
    return next((REMEDIES[each.__name__] for each in kind.__mro__ if each.__name__ in REMEDIES), NO_REMEDY_KNOWN)


def _by_slug() -> Mapping[str, type[SluiceError]]:
    """The first class of each slug: `UnknownDrain` stands for its subclass with the same slug."""
    found: dict[str, type[SluiceError]] = {}
    for each in vars(errors).values():
        if isinstance(each, type) and issubclass(each, SluiceError):
            found.setdefault(each.slug, each)
    return MappingProxyType(found)


KIND_OF = _by_slug()
"""The class of each problem type that a coordinator of this version answers with."""


def remedy_of_slug(slug: str) -> str:
    """What to do about a problem that a coordinator has answered with. For a slug that this version does not know: what is to be done about
    any refusal."""
    return REMEDIES[KIND_OF[slug].__name__] if slug in KIND_OF else REMEDIES["Refused"]


def remedy_of_error(error: SluiceError) -> str:
    """What to do about an error. Of a refusal (`sluice.client.Refused`) the slug decides."""
    slug = getattr(error, "refused_as", None)
    return remedy_of(type(error)) if slug is None else remedy_of_slug(slug)


OF_USER_CODE = "Correct the line of the job that the message names, or the records that it cannot read, and start the job again."

_USER_CODE = re.compile(r"^\S.*\.py:\d+ in ")
"""How the reason begins if the job's own code has failed: file, line and function."""


def remedy_of_reason(reason: str) -> str:
    """What to do about the reason that a container or run has ended with; "" if that is not known. Such a text begins with the title of an
    error, or with a line of the job's code."""
    titles = {each.title(): each for each in _all_kinds(SluiceError)}
    named = max((title for title in titles if reason.startswith(title)), key=len, default=None)
    if named is not None:
        return remedy_of(titles[named])
    return OF_USER_CODE if _USER_CODE.match(reason) else ""


def _all_kinds(kind: type[SluiceError]) -> Iterator[type[SluiceError]]:
    """All classes of errors that are imported, below this one."""
    for each in kind.__subclasses__():
        yield each
        yield from _all_kinds(each)


def plain(remedy: str) -> str:
    """The remedy for a terminal: links become the names of files below docs."""
    return re.sub(r"\[([^]]+)\]\(\.\./([^)]+)\)", r"\1 (docs/\2)", remedy)
