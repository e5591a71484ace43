"""The claim on the database as a lease with terms."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("claims", sa.Column("term", sa.BigInteger(), nullable=False, server_default=sa.text("0")))
    op.add_column("claims", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("claims", schema=None) as batch_op:
        batch_op.drop_column("expires_at")
        batch_op.drop_column("term")
