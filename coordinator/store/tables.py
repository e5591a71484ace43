"""The tables. Alembic's migrations create the same tables; `tests/integration/store/test_migrations.py` compares them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    text,
)


class Utc(TypeDecorator[datetime]):
    """An aware time. SQLite stores no time zone, so values without one are UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored")
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

_NOT_ENDED = text("ended_at IS NULL")
"""Partial indexes for the few active rows, in tables that keep rows for months."""

NAME = String(249)
"""The name of a job, stage, system, stream or blob store."""
TASK = String(600)
RUN_ID = String(300)
EXECUTION_ID = String(300)
"""The id of a container."""
COMMIT_ID = String(64)
LINEAGE = String(100)
DIGEST = String(64)
"""A SHA-256 in hexadecimal digits."""


def _key(*names: str) -> Iterator[Column[str]]:
    """Columns of a primary key that other tables have, too."""
    for name in names:
        kind = {"task": TASK, "run_id": RUN_ID}.get(name, NAME)
        yield Column(name, kind, primary_key=True)


claims = Table(
    "claims",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("holder", String(300), nullable=False),
    Column("term", BigInteger, nullable=False, server_default=text("0")),
    Column("expires_at", Utc),
)
"""The coordinator that uses the database, or was the last to use it. `term` increases with each; see `coordinator/store/claim.py`."""

ONLY = "coordinator"
"""The key of tables that have one row."""

lease_bounds = Table(
    "lease_bounds",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("lease", Float, nullable=False),
    Column("grace", Float, nullable=False),
    Column("bare_lease", Float, nullable=False),
    Column("bare_grace", Float, nullable=False),
    Column("outage", Float, nullable=False, server_default=text("0")),
)
"""One row: the longest leases that containers may have, and how long a coordinator without the claim renews them; see
`sluice.core.leases.lease.LeaseBounds`. Durations are in seconds."""

issued = Table(
    "issued",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("origin", String(64), nullable=False),
    Column("timeline", String(64), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("highest", BigInteger, nullable=False),
    Column("floor", BigInteger, nullable=False),
    Column("reserved", BigInteger),
    Column("restored_at", Utc),
)
"""One row: the numbers that this database has issued; see `sluice/core/leases/issued.py`."""

jobs = Table(
    "jobs",
    metadata,
    *_key("job"),
    Column("current_run", RUN_ID, nullable=False),
    Column("grouping", Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    *_key("run_id"),
    Column("job", NAME, nullable=False),
    Column("state", String(16), nullable=False),
    Column("origin", RUN_ID, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("streams", JSON, nullable=False),
    Column("model_version", Integer, nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("started_at", Utc),
    Column("stop_requested_at", Utc),
    Column("ended_at", Utc),
    Column("reason", Text, nullable=False),
    Column("failing", Boolean, nullable=False),
    Column("backup", JSON(none_as_null=True)),
    Column("kept", JSON(none_as_null=True)),
    Index("ix_runs_job_age", "job", "created_at", "run_id"),
    Index("ix_runs_age", "created_at", "run_id"),
    Index("ix_runs_active", "created_at", "run_id", sqlite_where=_NOT_ENDED, postgresql_where=_NOT_ENDED),
)

job_models = Table(
    "job_models",
    metadata,
    *_key("job"),
    Column("version", Integer, primary_key=True),
    Column("run_id", RUN_ID, nullable=False),
    Column("document", Text, nullable=False),
    Column("content_hash", DIGEST, nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("why", Text, nullable=False),
    Column("who", String(200), nullable=False, server_default=""),
)

assignments = Table(
    "assignments",
    metadata,
    *_key("job", "system", "stream"),
    Column("partition", Integer, primary_key=True),
    Column("task", Text, nullable=False),
)

baselines = Table(
    "baselines",
    metadata,
    *_key("job", "system", "stream"),
    Column("partitions", Integer, nullable=False),
)

watched_streams = Table(
    "watched_streams",
    metadata,
    *_key("job", "system", "stream"),
    Column("run_id", RUN_ID, nullable=False),
    Column("name", NAME, nullable=False),
    Column("known", Integer, nullable=False),
    Column("seen", Integer),
    Column("verdict", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("since", Utc, nullable=False),
    Column("kept_from", Integer),
)
"""The last results of the partition monitor for the inputs of jobs."""

starts = Table(
    "starts",
    metadata,
    *_key("run_id", "system", "stream"),
    Column("partition", Integer, primary_key=True),
    Column("offset", BigInteger, nullable=False),
)

containers = Table(
    "containers",
    metadata,
    Column("execution_id", EXECUTION_ID, primary_key=True),
    Column("run_id", RUN_ID, nullable=False),
    Column("job", NAME, nullable=False),
    Column("processor_id", String(100), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("host", String(300), nullable=False),
    Column("bare", Boolean, nullable=False),
    Column("state", String(16), nullable=False),
    Column("registered_at", Utc, nullable=False),
    Column("last_seen_at", Utc, nullable=False),
    Column("ended_at", Utc),
    Column("exit_code", Integer),
    Column("reason", Text, nullable=False),
    Column("metrics_address", String(300)),
    Column("model_version", Integer, nullable=False, server_default=text("0")),
    Column("adopted_at", Utc),
    Column("can_keep_state", Boolean, nullable=False, server_default=text("false")),
    Column("token", DIGEST),
    Column("principal", String(200), nullable=False, server_default=""),
    Column("chose_token", Boolean, nullable=False, server_default=text("false")),
    Index("uq_containers_slot_epoch", "run_id", "processor_id", "epoch", unique=True),
    Index("ix_containers_standing", "run_id", "execution_id", sqlite_where=_NOT_ENDED, postgresql_where=_NOT_ENDED),
)

localities = Table(
    "localities",
    metadata,
    *_key("job"),
    Column("processor_id", String(100), primary_key=True),
    Column("host", String(300), nullable=False),
)
"""The host of the last container of each slot of a job in the runs before the current one."""

holds = Table(
    "holds",
    metadata,
    *_key("job", "task"),
    Column("run_id", RUN_ID, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("holder", String(300), nullable=False, index=True),
    Column("released", Boolean, nullable=False),
    Column("acquired_at", Utc, nullable=False),
    Column("model_version", Integer, nullable=False, server_default=text("0")),
)

stores = Table(
    "stores",
    metadata,
    *_key("job", "task", "stage"),
    Column("lineage", LINEAGE, nullable=False),
    Column("batch_id", BigInteger),
    Column("offsets", JSON, nullable=False),
    Column("generation", Integer),
    Column("reported_at", Utc),
    Column("head", COMMIT_ID),
    Column("chosen", Boolean, nullable=False, server_default=text("false")),
    Column("former", LINEAGE),
    Column("starts", JSON, nullable=False, server_default=text("'[]'")),
    Column("late_rows", JSON(none_as_null=True)),
)

BYTEWISE = String(1000).with_variant(String(1000, collation="C"), "postgresql")
"""Blob ids sort by bytes, as blob stores list them."""

snapshots = Table(
    "snapshots",
    metadata,
    *_key("job"),
    Column("seq", BigInteger, primary_key=True),
    Column("task", TASK, nullable=False),
    Column("stage", NAME, nullable=False),
    Column("checkpoint", COMMIT_ID, nullable=False),
    Column("lineage", LINEAGE, nullable=False),
    Column("batch_id", BigInteger),
    Column("generation", Integer, nullable=False),
    Column("run_id", RUN_ID, nullable=False),
    Column("reported_at", Utc, nullable=False),
    Column("offsets", JSON, nullable=False),
    Column("markers", JSON, nullable=False),
    Index("uq_snapshots_checkpoint", "job", "task", "stage", "checkpoint", unique=True),
    Index("ix_snapshots_store", "job", "task", "stage", "seq"),
    Index("ix_snapshots_stage", "job", "stage", "seq"),
)

pins = Table(
    "pins",
    metadata,
    Column("pin_id", String(100), primary_key=True),
    *_key("job", "task", "stage"),
    Column("checkpoint", COMMIT_ID, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("expires_at", Utc),
    Index("ix_pins_stage", "job", "task", "stage", "pin_id"),
)

cleanups = Table(
    "cleanups",
    metadata,
    Column("kind", String(16), primary_key=True),
    *_key("blob_store"),
    Column("subject", String(1000), primary_key=True),
    Column("job", NAME, nullable=False),
    Column("task", TASK, nullable=False),
    Column("stage", NAME, nullable=False),
    Column("queued_at", Utc, nullable=False),
    Column("due_at", Utc, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Index("ix_cleanups_due", "due_at", "kind", "blob_store", "subject"),
)

condemned = Table(
    "condemned",
    metadata,
    *_key("blob_store"),
    Column("blob", BYTEWISE, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("condemned_at", Utc, nullable=False),
)

registries = Table(
    "registries",
    metadata,
    *_key("blob_store"),
    Column("registry", String(64), nullable=False),
)
"""The id that this database wrote to each blob store; see `coordinator/snapshots/inventory.py`."""

drains = Table(
    "drains",
    metadata,
    Column("drain_id", String(64), primary_key=True),
    Column("run_id", RUN_ID, nullable=False),
    Column("job", NAME, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("phase", String(16), nullable=False, index=True),
    Column("model_version", Integer, nullable=False),
    Column("requested_at", Utc, nullable=False),
    Column("soft", Float, nullable=False),
    Column("hard", Float, nullable=False),
    Column("budgets", JSON, nullable=False),
    Column("pinned", JSON, nullable=False),
    Column("catch_up", JSON, nullable=False),
    Column("drained", JSON, nullable=False),
    Column("stopping_at", Utc),
    Column("flushing_at", Utc),
    Column("committing_at", Utc),
    Column("ended_at", Utc),
    Column("reason", Text, nullable=False),
    Index("uq_drains_job_seq", "job", "seq", unique=True),
    Index("ix_drains_run", "run_id", "seq"),
    Index("ix_drains_active", "job", "seq", sqlite_where=_NOT_ENDED, postgresql_where=_NOT_ENDED),
)
"""Durations are in seconds."""

drain_stages = Table(
    "drain_stages",
    metadata,
    Column("drain_id", String(64), primary_key=True),
    *_key("task", "stage"),
    Column("step", Integer, nullable=False),
    Column("generation", Integer),
    Column("batch_id", BigInteger),
    Column("offsets", JSON, nullable=False),
    Column("pinned", COMMIT_ID),
    Column("committed", COMMIT_ID),
    Column("began_empty", Boolean, nullable=False),
    Column("rows_left", BigInteger),
    Column("operators_left", JSON, nullable=False),
    Column("note", Text, nullable=False),
    Column("reported_at", Utc),
    Column("lineage", LINEAGE),
    Column("operators", JSON),
    Index("ix_drain_stages_step", "drain_id", "step"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", String(32), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("digest", DIGEST, nullable=False),
    Column("roles", JSON, nullable=False),
    Column("jobs", JSON, nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("created_by", String(200), nullable=False),
    Column("expires_at", Utc),
    Column("revoked_at", Utc),
)
"""Static tokens. `digest` is the SHA-256 of the whole token; the token itself is not stored."""

audit_events = Table(
    "audit_events",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Utc, nullable=False),
    Column("actor", String(300), nullable=False),
    Column("authenticated", Boolean, nullable=False),
    Column("source", String(300), nullable=False),
    Column("action", String(300), nullable=False),
    Column("subject", Text, nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("status", Integer),
    Column("reason", Text, nullable=False),
    Column("job", String(300), nullable=False, server_default=""),
    Column("before", JSON(none_as_null=True)),
    Column("after", JSON(none_as_null=True)),
    Index("ix_audit_events_age", "at"),
    Index("ix_audit_events_job", "job", "seq"),
)

browser_sessions = Table(
    "browser_sessions",
    metadata,
    Column("digest", DIGEST, primary_key=True),
    Column("token_id", String(32), nullable=False),
    Column("created_at", Utc, nullable=False),
    Column("expires_at", Utc, nullable=False),
    Column("provider", String(100), nullable=False, server_default=""),
    Column("name", String(200), nullable=False, server_default=""),
    Column("subject", Text, nullable=False, server_default=""),
    Column("groups", JSON, nullable=False, server_default="[]"),
)
"""Logins on the web pages. `digest` is the SHA-256 of the session id in the browser's cookie; the id itself is not stored."""

notices = Table(
    "notices",
    metadata,
    *_key("run_id"),
    Column("seq", Integer, primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("at", Utc, nullable=False),
    Column("detail", JSON, nullable=False),
)
