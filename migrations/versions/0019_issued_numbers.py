"""The numbers that the database has issued. The coordinator writes the row when it starts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "issued",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("origin", sa.String(64), nullable=False),
        sa.Column("timeline", sa.String(64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("highest", sa.BigInteger(), nullable=False),
        sa.Column("floor", sa.BigInteger(), nullable=False),
        sa.Column("reserved", sa.BigInteger(), nullable=True),
        sa.Column("restored_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name="pk_issued"),
    )


def downgrade() -> None:
    op.drop_table("issued")
