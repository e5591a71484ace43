"""Sessions of browsers, and the job of each event of the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "browser_sessions",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("token_id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_browser_sessions"),
    )
    op.add_column("audit_events", sa.Column("job", sa.String(300), nullable=False, server_default=""))
    op.create_index("ix_audit_events_job", "audit_events", ["job", "seq"])


def downgrade() -> None:
    op.drop_index("ix_audit_events_job", "audit_events")
    op.drop_column("audit_events", "job")
    op.drop_table("browser_sessions")
