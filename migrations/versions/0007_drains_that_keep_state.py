"""Drains that keep state: the containers that support them, and the operators whose state was kept."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0007'
down_revision = '0006'
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.add_column('containers', sa.Column('can_keep_state', sa.Boolean(), server_default=sa.text('false'), nullable=False))
    op.add_column('drain_stages', sa.Column('lineage', sa.String(length=100), nullable=True))
    op.add_column('drain_stages', sa.Column('operators', sa.JSON(), nullable=True))


def downgrade() -> None:

    with op.batch_alter_table('drain_stages', schema=None) as batch_op:
        batch_op.drop_column('operators')
        batch_op.drop_column('lineage')
    with op.batch_alter_table('containers', schema=None) as batch_op:
        batch_op.drop_column('can_keep_state')
