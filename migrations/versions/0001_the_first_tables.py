"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_table('assignments',
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('system', sa.String(length=249), nullable=False),
    sa.Column('stream', sa.String(length=249), nullable=False),
    sa.Column('partition', sa.Integer(), nullable=False),
    sa.Column('task', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('job', 'system', 'stream', 'partition', name=op.f('pk_assignments'))
    )
    op.create_table('baselines',
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('system', sa.String(length=249), nullable=False),
    sa.Column('stream', sa.String(length=249), nullable=False),
    sa.Column('partitions', sa.Integer(), nullable=False),
    sa.PrimaryKeyConstraint('job', 'system', 'stream', name=op.f('pk_baselines'))
    )
    op.create_table('containers',
    sa.Column('execution_id', sa.String(length=300), nullable=False),
    sa.Column('run_id', sa.String(length=300), nullable=False),
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('processor_id', sa.String(length=100), nullable=False),
    sa.Column('epoch', sa.Integer(), nullable=False),
    sa.Column('host', sa.String(length=300), nullable=False),
    sa.Column('bare', sa.Boolean(), nullable=False),
    sa.Column('state', sa.String(length=16), nullable=False),
    sa.Column('registered_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('last_seen_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('ended_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('exit_code', sa.Integer(), nullable=True),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('execution_id', name=op.f('pk_containers'))
    )
    with op.batch_alter_table('containers', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_containers_state'), ['state'], unique=False)
        batch_op.create_index('uq_containers_slot_epoch', ['run_id', 'processor_id', 'epoch'], unique=True)

    op.create_table('holds',
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('task', sa.String(length=600), nullable=False),
    sa.Column('run_id', sa.String(length=300), nullable=False),
    sa.Column('generation', sa.Integer(), nullable=False),
    sa.Column('holder', sa.String(length=300), nullable=False),
    sa.Column('released', sa.Boolean(), nullable=False),
    sa.Column('acquired_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('job', 'task', name=op.f('pk_holds'))
    )
    with op.batch_alter_table('holds', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_holds_holder'), ['holder'], unique=False)

    op.create_table('job_models',
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('version', sa.Integer(), nullable=False),
    sa.Column('run_id', sa.String(length=300), nullable=False),
    sa.Column('document', sa.Text(), nullable=False),
    sa.Column('content_hash', sa.String(length=64), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('why', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('job', 'version', name=op.f('pk_job_models'))
    )
    op.create_table('jobs',
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('current_run', sa.String(length=300), nullable=False),
    sa.Column('grouping', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('job', name=op.f('pk_jobs'))
    )
    op.create_table('notices',
    sa.Column('run_id', sa.String(length=300), nullable=False),
    sa.Column('seq', sa.Integer(), nullable=False),
    sa.Column('kind', sa.String(length=32), nullable=False),
    sa.Column('at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('detail', sa.JSON(), nullable=False),
    sa.PrimaryKeyConstraint('run_id', 'seq', name=op.f('pk_notices'))
    )
    op.create_table('runs',
    sa.Column('run_id', sa.String(length=300), nullable=False),
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('state', sa.String(length=16), nullable=False),
    sa.Column('origin', sa.String(length=300), nullable=False),
    sa.Column('spec', sa.JSON(), nullable=False),
    sa.Column('streams', sa.JSON(), nullable=False),
    sa.Column('model_version', sa.Integer(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('started_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('stop_requested_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('ended_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('failing', sa.Boolean(), nullable=False),
    sa.PrimaryKeyConstraint('run_id', name=op.f('pk_runs'))
    )
    with op.batch_alter_table('runs', schema=None) as batch_op:
        batch_op.create_index(batch_op.f('ix_runs_job'), ['job'], unique=False)
        batch_op.create_index(batch_op.f('ix_runs_state'), ['state'], unique=False)

    op.create_table('starts',
    sa.Column('run_id', sa.String(length=300), nullable=False),
    sa.Column('system', sa.String(length=249), nullable=False),
    sa.Column('stream', sa.String(length=249), nullable=False),
    sa.Column('partition', sa.Integer(), nullable=False),
    sa.Column('offset', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('run_id', 'system', 'stream', 'partition', name=op.f('pk_starts'))
    )
    op.create_table('stores',
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('task', sa.String(length=600), nullable=False),
    sa.Column('stage', sa.String(length=249), nullable=False),
    sa.Column('lineage', sa.String(length=100), nullable=False),
    sa.Column('batch_id', sa.BigInteger(), nullable=True),
    sa.Column('offsets', sa.JSON(), nullable=False),
    sa.Column('generation', sa.Integer(), nullable=True),
    sa.Column('reported_at', sa.DateTime(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('job', 'task', 'stage', name=op.f('pk_stores'))
    )



def downgrade() -> None:

    op.drop_table('stores')
    op.drop_table('starts')
    with op.batch_alter_table('runs', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_runs_state'))
        batch_op.drop_index(batch_op.f('ix_runs_job'))

    op.drop_table('runs')
    op.drop_table('notices')
    op.drop_table('jobs')
    op.drop_table('job_models')
    with op.batch_alter_table('holds', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_holds_holder'))

    op.drop_table('holds')
    with op.batch_alter_table('containers', schema=None) as batch_op:
        batch_op.drop_index('uq_containers_slot_epoch')
        batch_op.drop_index(batch_op.f('ix_containers_state'))

    op.drop_table('containers')
    op.drop_table('baselines')
    op.drop_table('assignments')

