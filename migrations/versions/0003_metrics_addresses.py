"""The addresses of containers' metrics."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.add_column('containers', sa.Column('metrics_address', sa.String(length=300), nullable=True))


def downgrade() -> None:

    with op.batch_alter_table('containers', schema=None) as batch_op:
        batch_op.drop_column('metrics_address')
