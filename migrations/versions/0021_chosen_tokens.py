"""Whether a container has chosen its token."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("containers", sa.Column("chose_token", sa.Boolean(), nullable=False, server_default=sa.text("false")))


def downgrade() -> None:
    with op.batch_alter_table("containers", schema=None) as batch_op:
        batch_op.drop_column("chose_token")
