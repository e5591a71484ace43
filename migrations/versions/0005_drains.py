"""Drains, and the progress of each stage of each task in them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0005'
down_revision = '0004'
branch_labels = None
depends_on = None

NOT_ENDED = sa.text('ended_at IS NULL')


def upgrade() -> None:

    op.create_table('drains',
    sa.Column('drain_id', sa.String(length=64), nullable=False),
    sa.Column('run_id', sa.String(length=300), nullable=False),
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('seq', sa.Integer(), nullable=False),
    sa.Column('mode', sa.String(length=16), nullable=False),
    sa.Column('phase', sa.String(length=16), nullable=False),
    sa.Column('model_version', sa.Integer(), nullable=False),
    sa.Column('requested_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('soft', sa.Float(), nullable=False),
    sa.Column('hard', sa.Float(), nullable=False),
    sa.Column('budgets', sa.JSON(), nullable=False),
    sa.Column('pinned', sa.JSON(), nullable=False),
    sa.Column('catch_up', sa.JSON(), nullable=False),
    sa.Column('drained', sa.JSON(), nullable=False),
    sa.Column('stopping_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('flushing_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('committing_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('ended_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('drain_id', name=op.f('pk_drains'))
    )
    op.create_index(op.f('ix_drains_phase'), 'drains', ['phase'], unique=False)
    op.create_index('uq_drains_job_seq', 'drains', ['job', 'seq'], unique=True)
    op.create_index('ix_drains_run', 'drains', ['run_id', 'seq'], unique=False)
    op.create_index('ix_drains_active', 'drains', ['job', 'seq'], unique=False, sqlite_where=NOT_ENDED, postgresql_where=NOT_ENDED)

    op.create_table('drain_stages',
    sa.Column('drain_id', sa.String(length=64), nullable=False),
    sa.Column('task', sa.String(length=600), nullable=False),
    sa.Column('stage', sa.String(length=249), nullable=False),
    sa.Column('step', sa.Integer(), nullable=False),
    sa.Column('generation', sa.Integer(), nullable=True),
    sa.Column('batch_id', sa.BigInteger(), nullable=True),
    sa.Column('offsets', sa.JSON(), nullable=False),
    sa.Column('pinned', sa.String(length=64), nullable=True),
    sa.Column('committed', sa.String(length=64), nullable=True),
    sa.Column('began_empty', sa.Boolean(), nullable=False),
    sa.Column('rows_left', sa.BigInteger(), nullable=True),
    sa.Column('operators_left', sa.JSON(), nullable=False),
    sa.Column('note', sa.Text(), nullable=False),
    sa.Column('reported_at', sa.DateTime(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('drain_id', 'task', 'stage', name=op.f('pk_drain_stages'))
    )
    op.create_index('ix_drain_stages_step', 'drain_stages', ['drain_id', 'step'], unique=False)


def downgrade() -> None:

    op.drop_table('drain_stages')
    op.drop_table('drains')
