"""The start offsets of stages in partitions that another task has read before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0008'
down_revision = '0007'
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.add_column('stores', sa.Column('starts', sa.JSON(), server_default=sa.text("'[]'"), nullable=False))


def downgrade() -> None:

    with op.batch_alter_table('stores', schema=None) as batch_op:
        batch_op.drop_column('starts')
