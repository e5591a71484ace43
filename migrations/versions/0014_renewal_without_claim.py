"""How long a coordinator without the claim may renew leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Releases that do not store this time renew leases for 120 s on PostgreSQL. On SQLite the claim cannot be lost."""
    seconds = "120" if op.get_context().dialect.name == "postgresql" else "0"
    op.add_column("lease_bounds", sa.Column("outage", sa.Float(), nullable=False, server_default=sa.text(seconds)))


def downgrade() -> None:
    with op.batch_alter_table("lease_bounds", schema=None) as batch_op:
        batch_op.drop_column("outage")
