"""A container's settings, read from its environment variables."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from stat import S_ISREG
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from containers.supervision.scratch import scratch_directory
from sluice.client import RETRY_DELAY, urls_of
from sluice.core.errors import BadSettings
from sluice.core.ids import ExecutionContainerId, ProcessorId, RunId
from sluice.disks import NEXT_TO_NOTHING, Thresholds, checked_path
from sluice.randomness import new_uuid
from sluice.streams.settings import checked_bootstrap


class ContainerSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SLUICE_", frozen=True, extra="ignore", allow_inf_nan=False)

    coordinator_url: str = Field("http://127.0.0.1:8180", description="URL of the coordinator, or several, separated by commas")
    run_id: str = Field(min_length=1, description="run that this container belongs to")
    processor_id: str = Field("0", min_length=1, max_length=100, description="slot in the job model")
    spare: bool = Field(
        False, description="wait with Spark open for a slot without a container, instead of taking the slot SLUICE_PROCESSOR_ID"
    )
    execution_container_id: str = Field(
        default_factory=lambda: f"container-{new_uuid().hex}",
        validation_alias="EXECUTION_ENV_CONTAINER_ID",
        max_length=300,
        pattern=r"^[\x21-\x7e]+$",
        description="id of this incarnation; must never be used again",
    )
    host: str = Field(
        default_factory=socket.gethostname, validation_alias="SLUICE_CONTAINER_HOST", description="name of this host; default: its hostname"
    )
    home: Path = Field(Path(".sluice"), validate_default=True, description="directory of local state and temporary files")
    state_dir: Path | None = Field(None, description="directory of the checkpoints; default: state under home")
    master: str = Field("local[2]", validation_alias="SLUICE_SPARK_MASTER", description="Spark master URL")
    sockets_dir: Path | None = Field(
        None, description="directory of the sockets between Spark and its Python workers; `sluice container` creates and deletes it"
    )
    class_archive: bool = Field(True, description="start with the AppCDS archive that `sluice class-archive` created, if there is one")
    fork_python: bool = Field(True, description="fork Python processes of Spark with modules imported; with false each imports them itself")
    java_permissions: bool = Field(True, description="set permissions of checkpoint files without a process (chmod) for each file")
    kafka_bootstrap: str = Field(
        "", max_length=2000, description="bootstrap servers of Kafka as seen from this container; default: those of the coordinator"
    )
    kafka_properties: Path | None = Field(None, description="a client.properties file with security.protocol, sasl.*, ssl.*")
    kafka_missing_marker: Literal["stop", "send", "skip"] = Field(
        "stop",
        description="a batch of which nothing says whether its records are in the topic: stop and name it, send them, or skip them",
    )
    max_rows: int = Field(50_000, ge=1, description="maximum number of rows that a source reads per batch")
    batch_target_seconds: float = Field(
        3, gt=0, le=600, description="how long batches of a stage should take while it has a backlog; they have fewer rows then, or more"
    )
    trigger_seconds: float = Field(
        0, ge=0, description="shortest time from one batch of a query to the next; 0: batches begin when there is something to read"
    )
    connect_timeout_seconds: float = Field(
        300, ge=0, description="how long a starting container waits for the coordinator and the blob stores"
    )
    stop_timeout_seconds: float = Field(120, ge=0, description="how long a stop waits for running batches before it interrupts them")
    spark_timeout_seconds: float = Field(60, gt=0, description="timeout of the liveness probe of the driver and Spark's JVM")
    executors_timeout_seconds: float = Field(
        120, gt=0, description="with remote executors: timeout for their registration, and for the check that they share our directories"
    )
    max_restarts: int = Field(5, ge=0, description="how often a failing query is restarted within ten minutes")
    restart_delay_seconds: float = Field(1.0, ge=0, description="pause before the first restart, doubled for each further one")
    report_seconds: float = Field(1.0, gt=0, description="shortest time between two reports of progress, and of watermarks")
    commit_interval_seconds: float = Field(
        10,
        ge=0,
        le=86_400,
        description="how often state is backed up; 0: after every batch, with task.write and task.foreach_batch before the next one starts",
    )
    max_replay: int = Field(8, ge=1, description="back up state after this many batches, even before the interval ends")
    commit_max_delay_seconds: float = Field(60, ge=0, description="how late a backup may be before batches wait for it")
    commit_late_seconds: float = Field(
        20, ge=0, description="how late a backup may be, while a blob store does not take it, before `sluice status` shows that"
    )
    commit_timeout_seconds: float = Field(
        1800,
        gt=0,
        description="how long batches wait for a backup of which no file is uploaded any more, before the container exits; see also the "
        "coordinator's gc_grace_seconds",
    )
    standby_seconds: float = Field(5, gt=0, description="with standby.replicas: how often the copies of other tasks' state are updated")
    backup_packing: bool = Field(True, description="pack small files into one blob; if off, Samza's own code can restore the snapshots")
    backup_concurrency: int = Field(8, ge=1, le=256, description="how many requests to a blob store run concurrently, for each stage")
    blob_ttl_days: float = Field(30, ge=1, le=3650, description="blobs that never became part of a snapshot expire after this many days")
    log_file: str = Field(
        "", max_length=1000, description="where this container's log can be read, as shown with its failures; default: its standard error"
    )
    jvm_log: Path | None = Field(
        None,
        description="file for the log of Spark's JVM, of which three older ones are kept; default: standard error. `sluice run` sets it",
    )
    disk_low_bytes: int = Field(
        1 << 30,
        ge=0,
        description="a disk with less free space is reported with failures and in metrics; standby copies leave so much free; 0: none",
    )
    metrics_host: str = Field("127.0.0.1", max_length=255, description="address on which this container serves its metrics")
    metrics_token_file: Path | None = Field(
        None, description="file with the token that requests for the metrics must send; read again when it changes. Default: they need none"
    )
    metrics_port: int = Field(0, ge=0, le=65535, description="port of the metrics; 0: a free one")
    secrets_dir: Path = Field(
        Path("/var/run/secrets/sluice"), description="where Kubernetes Secrets are mounted that a job's config refers to, as NAME/KEY"
    )
    spark_conf: dict[str, str] = Field(default_factory=dict, description="Spark settings as a JSON object; they override Sluice's")

    @field_validator("coordinator_url")
    @classmethod
    def _is_url(cls, given: str) -> str:
        try:
            urls_of(given)
        except BadSettings as error:
            raise ValueError(str(error)) from None
        return given

    @field_validator("kafka_bootstrap")
    @classmethod
    def _servers(cls, given: str) -> str:
        return checked_bootstrap(given)

    @field_validator("home", "state_dir", "sockets_dir", "jvm_log")
    @classmethod
    def _utf8(cls, given: Path | None) -> Path | None:
        return None if given is None else checked_path(given)

    @property
    def id(self) -> ExecutionContainerId:
        return ExecutionContainerId(self.execution_container_id)

    @property
    def run(self) -> RunId:
        return RunId(self.run_id)

    @property
    def processor(self) -> ProcessorId:
        return ProcessorId(self.processor_id)

    @property
    def log_fields(self) -> dict[str, str]:
        """Fields of every log record of this container. The job is added when its file has been read."""
        processor = "spare" if self.spare else self.processor_id
        return {"run": self.run_id, "processor": processor, "container": self.execution_container_id}

    @property
    def log_place(self) -> str:
        """Where to read this container's log: SLUICE_LOG_FILE, else the file that standard error goes to; "" if that is no file."""
        return self.log_file or _file_of(STANDARD_ERROR)

    @property
    def state_directory(self) -> Path:
        return (self.state_dir or self.home / "state").absolute()

    @property
    def scratch_directory(self) -> Path:
        """Spark's temporary files of this incarnation: see `containers.supervision.scratch`."""
        return scratch_directory(self.home, self.id)

    @property
    def disks(self) -> dict[str, Path]:
        """Paths on the disks that this container writes to, by names."""
        found = {"state": self.state_directory, "temporary": self.scratch_directory}
        return {**found, "log": Path(self.log_place).parent} if self.log_place else found

    @property
    def disk_thresholds(self) -> Thresholds:
        return Thresholds(self.disk_low_bytes, NEXT_TO_NOTHING)

    @property
    def batch_target(self) -> timedelta:
        return timedelta(seconds=self.batch_target_seconds)

    @property
    def trigger(self) -> timedelta:
        return timedelta(seconds=self.trigger_seconds)

    @property
    def spark_timeout(self) -> timedelta:
        return timedelta(seconds=self.spark_timeout_seconds)

    @property
    def executors_timeout(self) -> timedelta:
        return timedelta(seconds=self.executors_timeout_seconds)

    @property
    def commit_policy(self) -> CommitPolicy:
        return CommitPolicy(
            interval=timedelta(seconds=self.commit_interval_seconds),
            max_replay=self.max_replay,
            max_delay=timedelta(seconds=self.commit_max_delay_seconds),
            timeout=timedelta(seconds=self.commit_timeout_seconds),
            late=timedelta(seconds=self.commit_late_seconds),
        )

    @property
    def stop_timeout(self) -> timedelta:
        return timedelta(seconds=self.stop_timeout_seconds)


def _file_of(fd: int) -> str:
    """The path of an open file; "" for a terminal, a pipe, a deleted file, or on a system without /proc."""
    try:
        found = Path(f"/proc/self/fd/{fd}").readlink()
        return str(found) if S_ISREG(os.fstat(fd).st_mode) and found.is_file() else ""
    except OSError:
        return ""


STANDARD_ERROR = 2


def read_container_settings(**given: Any) -> ContainerSettings:
    """`given` takes precedence over the environment. Raises BadSettings, naming the variable."""
    try:
        return ContainerSettings(**given)
    except ValidationError as error:
        errors = "; ".join(f"SLUICE_{str(each['loc'][0]).upper()}: {_problem(each)}" for each in error.errors())
        raise BadSettings(errors.replace("SLUICE_EXECUTION_ENV", "EXECUTION_ENV").replace("SLUICE_SLUICE", "SLUICE")) from error
    except SettingsError as error:  # of the one variable that is JSON
        raise BadSettings(f"SLUICE_SPARK_CONF: not a JSON object: {error.__cause__}") from error


def _problem(error: ErrorDetails) -> str:
    if error["loc"] == ("run_id",) and error["type"] == "missing":
        return "set it to the id that `sluice deploy job.py` prints"
    return error["msg"]


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """When to commit: after `interval`, or after `max_replay` batches if that is sooner. With an interval of zero: after every batch, and,
    if the sink can wait, before the next one starts. A failing commit that is late by `late` is reported. Batches wait for a commit that is
    late by `max_delay`. The container exits when the commit is late by another `timeout`, and no file was uploaded in that time."""

    interval: timedelta
    max_replay: int
    max_delay: timedelta
    timeout: timedelta
    late: timedelta

    @property
    def longest(self) -> timedelta:
        """The longest time from the beginning of the upload of a snapshot to its report: a commit whose report fails, a pause, and the next
        commit, which starts with that report."""
        return 2 * (self.max_delay + self.timeout) + RETRY_DELAY

    def check(self, grace: timedelta) -> None:
        """Raises BadSettings if a commit may take longer than `grace`, after which the coordinator deletes blobs that no snapshot refers
        to."""
        if self.longest >= grace:
            raise BadSettings(
                f"a commit may take {self.longest} (twice SLUICE_COMMIT_MAX_DELAY_SECONDS and SLUICE_COMMIT_TIMEOUT_SECONDS, and a pause "
                f"of {RETRY_DELAY}), and after {grace} the coordinator deletes what no snapshot refers to: decrease one of these settings, "
                "or increase the coordinator's gc_grace_seconds"
            )
