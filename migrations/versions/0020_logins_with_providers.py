"""Logins with identity providers, and the state before and after each change in the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("browser_sessions", sa.Column("provider", sa.String(100), nullable=False, server_default=""))
    op.add_column("browser_sessions", sa.Column("name", sa.String(200), nullable=False, server_default=""))
    op.add_column("browser_sessions", sa.Column("subject", sa.Text(), nullable=False, server_default=""))
    op.add_column("browser_sessions", sa.Column("groups", sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("audit_events", sa.Column("before", sa.JSON(), nullable=True))
    op.add_column("audit_events", sa.Column("after", sa.JSON(), nullable=True))


def downgrade() -> None:
    for name in ("after", "before"):
        op.drop_column("audit_events", name)
    for name in ("groups", "subject", "name", "provider"):
        op.drop_column("browser_sessions", name)
