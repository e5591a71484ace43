"""The number of rows that each stage of a task has dropped as late."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("stores", sa.Column("late_rows", sa.JSON(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("stores", schema=None) as batch_op:
        batch_op.drop_column("late_rows")
