"""The tokens of containers, and the principals that registered them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("containers", sa.Column("token", sa.String(64), nullable=True))
    op.add_column("containers", sa.Column("principal", sa.String(200), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("containers", schema=None) as batch_op:
        batch_op.drop_column("principal")
        batch_op.drop_column("token")
