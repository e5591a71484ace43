"""The tables. 22 migrations made them before; this one has the number of the last of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = None
branch_labels = None
depends_on = None

UTC = sa.DateTime(timezone=True)
BYTEWISE = sa.String(1000).with_variant(sa.String(1000, collation="C"), "postgresql")
NOT_ENDED = sa.text("ended_at IS NULL")


def upgrade() -> None:
    outage = "120" if op.get_context().dialect.name == "postgresql" else "0"
    op.create_table(
        "assignments",
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("system", sa.String(249), nullable=False),
        sa.Column("stream", sa.String(249), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "system", "stream", "partition", name="pk_assignments"),
    )
    op.create_table(
        "audit_events",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", UTC, nullable=False),
        sa.Column("actor", sa.String(300), nullable=False),
        sa.Column("authenticated", sa.Boolean(), nullable=False),
        sa.Column("source", sa.String(300), nullable=False),
        sa.Column("action", sa.String(300), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(64), nullable=False),
        sa.Column("status", sa.Integer()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("job", sa.String(300), nullable=False, server_default=""),
        sa.Column("before", sa.JSON()),
        sa.Column("after", sa.JSON()),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_events"),
    )
    op.create_index("ix_audit_events_age", "audit_events", ["at"])
    op.create_index("ix_audit_events_job", "audit_events", ["job", "seq"])
    op.create_table(
        "baselines",
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("system", sa.String(249), nullable=False),
        sa.Column("stream", sa.String(249), nullable=False),
        sa.Column("partitions", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", "system", "stream", name="pk_baselines"),
    )
    op.create_table(
        "browser_sessions",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("token_id", sa.String(32), nullable=False),
        sa.Column("created_at", UTC, nullable=False),
        sa.Column("expires_at", UTC, nullable=False),
        sa.Column("provider", sa.String(100), nullable=False, server_default=""),
        sa.Column("name", sa.String(200), nullable=False, server_default=""),
        sa.Column("subject", sa.Text(), nullable=False, server_default=""),
        sa.Column("groups", sa.JSON(), nullable=False, server_default="[]"),
        sa.PrimaryKeyConstraint("digest", name="pk_browser_sessions"),
    )
    op.create_table(
        "claims",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("holder", sa.String(300), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("expires_at", UTC),
        sa.PrimaryKeyConstraint("name", name="pk_claims"),
    )
    op.create_table(
        "cleanups",
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("blob_store", sa.String(249), nullable=False),
        sa.Column("subject", sa.String(1000), nullable=False),
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("task", sa.String(600), nullable=False),
        sa.Column("stage", sa.String(249), nullable=False),
        sa.Column("queued_at", UTC, nullable=False),
        sa.Column("due_at", UTC, nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "blob_store", "subject", name="pk_cleanups"),
    )
    op.create_index("ix_cleanups_due", "cleanups", ["due_at", "kind", "blob_store", "subject"])
    op.create_table(
        "condemned",
        sa.Column("blob_store", sa.String(249), nullable=False),
        sa.Column("blob", BYTEWISE, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("condemned_at", UTC, nullable=False),
        sa.PrimaryKeyConstraint("blob_store", "blob", name="pk_condemned"),
    )
    op.create_table(
        "containers",
        sa.Column("execution_id", sa.String(300), nullable=False),
        sa.Column("run_id", sa.String(300), nullable=False),
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("processor_id", sa.String(100), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(300), nullable=False),
        sa.Column("bare", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("registered_at", UTC, nullable=False),
        sa.Column("last_seen_at", UTC, nullable=False),
        sa.Column("ended_at", UTC),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("metrics_address", sa.String(300)),
        sa.Column("model_version", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("adopted_at", UTC),
        sa.Column("can_keep_state", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.Column("token", sa.String(64)),
        sa.Column("principal", sa.String(200), nullable=False, server_default=""),
        sa.Column("chose_token", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.PrimaryKeyConstraint("execution_id", name="pk_containers"),
    )
    op.create_index("ix_containers_standing", "containers", ["run_id", "execution_id"], sqlite_where=NOT_ENDED, postgresql_where=NOT_ENDED)
    op.create_index("uq_containers_slot_epoch", "containers", ["run_id", "processor_id", "epoch"], unique=True)
    op.create_table(
        "drain_stages",
        sa.Column("drain_id", sa.String(64), nullable=False),
        sa.Column("task", sa.String(600), nullable=False),
        sa.Column("stage", sa.String(249), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer()),
        sa.Column("batch_id", sa.BigInteger()),
        sa.Column("offsets", sa.JSON(), nullable=False),
        sa.Column("pinned", sa.String(64)),
        sa.Column("committed", sa.String(64)),
        sa.Column("began_empty", sa.Boolean(), nullable=False),
        sa.Column("rows_left", sa.BigInteger()),
        sa.Column("operators_left", sa.JSON(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("reported_at", UTC),
        sa.Column("lineage", sa.String(100)),
        sa.Column("operators", sa.JSON()),
        sa.PrimaryKeyConstraint("drain_id", "task", "stage", name="pk_drain_stages"),
    )
    op.create_index("ix_drain_stages_step", "drain_stages", ["drain_id", "step"])
    op.create_table(
        "drains",
        sa.Column("drain_id", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(300), nullable=False),
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("phase", sa.String(16), nullable=False),
        sa.Column("model_version", sa.Integer(), nullable=False),
        sa.Column("requested_at", UTC, nullable=False),
        sa.Column("soft", sa.Float(), nullable=False),
        sa.Column("hard", sa.Float(), nullable=False),
        sa.Column("budgets", sa.JSON(), nullable=False),
        sa.Column("pinned", sa.JSON(), nullable=False),
        sa.Column("catch_up", sa.JSON(), nullable=False),
        sa.Column("drained", sa.JSON(), nullable=False),
        sa.Column("stopping_at", UTC),
        sa.Column("flushing_at", UTC),
        sa.Column("committing_at", UTC),
        sa.Column("ended_at", UTC),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("drain_id", name="pk_drains"),
    )
    op.create_index("ix_drains_active", "drains", ["job", "seq"], sqlite_where=NOT_ENDED, postgresql_where=NOT_ENDED)
    op.create_index("ix_drains_phase", "drains", ["phase"])
    op.create_index("ix_drains_run", "drains", ["run_id", "seq"])
    op.create_index("uq_drains_job_seq", "drains", ["job", "seq"], unique=True)
    op.create_table(
        "holds",
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("task", sa.String(600), nullable=False),
        sa.Column("run_id", sa.String(300), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(300), nullable=False),
        sa.Column("released", sa.Boolean(), nullable=False),
        sa.Column("acquired_at", UTC, nullable=False),
        sa.Column("model_version", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.PrimaryKeyConstraint("job", "task", name="pk_holds"),
    )
    op.create_index("ix_holds_holder", "holds", ["holder"])
    op.create_table(
        "issued",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("origin", sa.String(64), nullable=False),
        sa.Column("timeline", sa.String(64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("highest", sa.BigInteger(), nullable=False),
        sa.Column("floor", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger()),
        sa.Column("restored_at", UTC),
        sa.PrimaryKeyConstraint("name", name="pk_issued"),
    )
    op.create_table(
        "job_models",
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(300), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("content_hash", sa.String(64), nullable=False),
        sa.Column("created_at", UTC, nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("who", sa.String(200), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("job", "version", name="pk_job_models"),
    )
    op.create_table(
        "jobs",
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("current_run", sa.String(300), nullable=False),
        sa.Column("grouping", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", name="pk_jobs"),
    )
    op.create_table(
        "lease_bounds",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("lease", sa.Float(), nullable=False),
        sa.Column("grace", sa.Float(), nullable=False),
        sa.Column("bare_lease", sa.Float(), nullable=False),
        sa.Column("bare_grace", sa.Float(), nullable=False),
        sa.Column("outage", sa.Float(), nullable=False, server_default=sa.text(outage)),
        sa.PrimaryKeyConstraint("name", name="pk_lease_bounds"),
    )
    op.create_table(
        "localities",
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("processor_id", sa.String(100), nullable=False),
        sa.Column("host", sa.String(300), nullable=False),
        sa.PrimaryKeyConstraint("job", "processor_id", name="pk_localities"),
    )
    op.create_table(
        "notices",
        sa.Column("run_id", sa.String(300), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("at", UTC, nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "seq", name="pk_notices"),
    )
    op.create_table(
        "pins",
        sa.Column("pin_id", sa.String(100), nullable=False),
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("task", sa.String(600), nullable=False),
        sa.Column("stage", sa.String(249), nullable=False),
        sa.Column("checkpoint", sa.String(64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", UTC, nullable=False),
        sa.Column("expires_at", UTC),
        sa.PrimaryKeyConstraint("pin_id", "job", "task", "stage", name="pk_pins"),
    )
    op.create_index("ix_pins_stage", "pins", ["job", "task", "stage", "pin_id"])
    op.create_table(
        "registries",
        sa.Column("blob_store", sa.String(249), nullable=False),
        sa.Column("registry", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("blob_store", name="pk_registries"),
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(300), nullable=False),
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("origin", sa.String(300), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("streams", sa.JSON(), nullable=False),
        sa.Column("model_version", sa.Integer(), nullable=False),
        sa.Column("created_at", UTC, nullable=False),
        sa.Column("started_at", UTC),
        sa.Column("stop_requested_at", UTC),
        sa.Column("ended_at", UTC),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("failing", sa.Boolean(), nullable=False),
        sa.Column("backup", sa.JSON()),
        sa.Column("kept", sa.JSON()),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
    )
    op.create_index("ix_runs_active", "runs", ["created_at", "run_id"], sqlite_where=NOT_ENDED, postgresql_where=NOT_ENDED)
    op.create_index("ix_runs_age", "runs", ["created_at", "run_id"])
    op.create_index("ix_runs_job_age", "runs", ["job", "created_at", "run_id"])
    op.create_table(
        "snapshots",
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("task", sa.String(600), nullable=False),
        sa.Column("stage", sa.String(249), nullable=False),
        sa.Column("checkpoint", sa.String(64), nullable=False),
        sa.Column("lineage", sa.String(100), nullable=False),
        sa.Column("batch_id", sa.BigInteger()),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(300), nullable=False),
        sa.Column("reported_at", UTC, nullable=False),
        sa.Column("offsets", sa.JSON(), nullable=False),
        sa.Column("markers", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("job", "seq", name="pk_snapshots"),
    )
    op.create_index("ix_snapshots_stage", "snapshots", ["job", "stage", "seq"])
    op.create_index("ix_snapshots_store", "snapshots", ["job", "task", "stage", "seq"])
    op.create_index("uq_snapshots_checkpoint", "snapshots", ["job", "task", "stage", "checkpoint"], unique=True)
    op.create_table(
        "starts",
        sa.Column("run_id", sa.String(300), nullable=False),
        sa.Column("system", sa.String(249), nullable=False),
        sa.Column("stream", sa.String(249), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "system", "stream", "partition", name="pk_starts"),
    )
    op.create_table(
        "stores",
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("task", sa.String(600), nullable=False),
        sa.Column("stage", sa.String(249), nullable=False),
        sa.Column("lineage", sa.String(100), nullable=False),
        sa.Column("batch_id", sa.BigInteger()),
        sa.Column("offsets", sa.JSON(), nullable=False),
        sa.Column("generation", sa.Integer()),
        sa.Column("reported_at", UTC),
        sa.Column("head", sa.String(64)),
        sa.Column("chosen", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.Column("former", sa.String(100)),
        sa.Column("starts", sa.JSON(), nullable=False, server_default=sa.text("'[]'")),
        sa.Column("late_rows", sa.JSON()),
        sa.PrimaryKeyConstraint("job", "task", "stage", name="pk_stores"),
    )
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.String(32), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("roles", sa.JSON(), nullable=False),
        sa.Column("jobs", sa.JSON(), nullable=False),
        sa.Column("created_at", UTC, nullable=False),
        sa.Column("created_by", sa.String(200), nullable=False),
        sa.Column("expires_at", UTC),
        sa.Column("revoked_at", UTC),
        sa.PrimaryKeyConstraint("token_id", name="pk_tokens"),
    )
    op.create_table(
        "watched_streams",
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("system", sa.String(249), nullable=False),
        sa.Column("stream", sa.String(249), nullable=False),
        sa.Column("run_id", sa.String(300), nullable=False),
        sa.Column("name", sa.String(249), nullable=False),
        sa.Column("known", sa.Integer(), nullable=False),
        sa.Column("seen", sa.Integer()),
        sa.Column("verdict", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", UTC, nullable=False),
        sa.Column("kept_from", sa.Integer()),
        sa.PrimaryKeyConstraint("job", "system", "stream", name="pk_watched_streams"),
    )
