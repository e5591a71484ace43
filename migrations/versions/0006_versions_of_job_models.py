"""The authors of job models, their adoption by containers, and the growth of inputs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0006'
down_revision = '0005'
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.add_column('job_models', sa.Column('who', sa.String(length=200), server_default='', nullable=False))
    op.add_column('containers', sa.Column('model_version', sa.Integer(), server_default=sa.text('0'), nullable=False))
    op.add_column('containers', sa.Column('adopted_at', sa.DateTime(timezone=True), nullable=True))

    op.execute('UPDATE containers SET model_version = '
    'COALESCE((SELECT runs.model_version FROM runs WHERE runs.run_id = containers.run_id), 0)')

    op.create_table('watched_streams',
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('system', sa.String(length=249), nullable=False),
    sa.Column('stream', sa.String(length=249), nullable=False),
    sa.Column('run_id', sa.String(length=300), nullable=False),
    sa.Column('name', sa.String(length=249), nullable=False),
    sa.Column('known', sa.Integer(), nullable=False),
    sa.Column('seen', sa.Integer(), nullable=True),
    sa.Column('verdict', sa.String(length=16), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('since', sa.DateTime(timezone=True), nullable=False),
    sa.Column('kept_from', sa.Integer(), nullable=True),
    sa.PrimaryKeyConstraint('job', 'system', 'stream', name=op.f('pk_watched_streams'))
    )


def downgrade() -> None:

    op.drop_table('watched_streams')
    with op.batch_alter_table('containers', schema=None) as batch_op:
        batch_op.drop_column('adopted_at')
        batch_op.drop_column('model_version')
    with op.batch_alter_table('job_models', schema=None) as batch_op:
        batch_op.drop_column('who')
