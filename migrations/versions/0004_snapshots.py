"""Snapshots, pins, the clean-up queue, and condemned blobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0004'
down_revision = '0003'
branch_labels = None
depends_on = None

BYTEWISE = sa.String(length=1000).with_variant(sa.String(length=1000, collation='C'), 'postgresql')


def upgrade() -> None:

    op.add_column('runs', sa.Column('backup', sa.JSON(none_as_null=True), nullable=True))
    op.add_column('stores', sa.Column('head', sa.String(length=64), nullable=True))
    op.add_column('stores', sa.Column('chosen', sa.Boolean(), server_default=sa.text('false'), nullable=False))
    op.add_column('stores', sa.Column('former', sa.String(length=100), nullable=True))

    op.create_table('snapshots',
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('seq', sa.BigInteger(), nullable=False),
    sa.Column('task', sa.String(length=600), nullable=False),
    sa.Column('stage', sa.String(length=249), nullable=False),
    sa.Column('checkpoint', sa.String(length=64), nullable=False),
    sa.Column('lineage', sa.String(length=100), nullable=False),
    sa.Column('batch_id', sa.BigInteger(), nullable=True),
    sa.Column('generation', sa.Integer(), nullable=False),
    sa.Column('run_id', sa.String(length=300), nullable=False),
    sa.Column('reported_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('offsets', sa.JSON(), nullable=False),
    sa.Column('markers', sa.JSON(), nullable=False),
    sa.PrimaryKeyConstraint('job', 'seq', name=op.f('pk_snapshots'))
    )
    op.create_index('uq_snapshots_checkpoint', 'snapshots', ['job', 'task', 'stage', 'checkpoint'], unique=True)
    op.create_index('ix_snapshots_store', 'snapshots', ['job', 'task', 'stage', 'seq'], unique=False)
    op.create_index('ix_snapshots_stage', 'snapshots', ['job', 'stage', 'seq'], unique=False)

    op.create_table('pins',
    sa.Column('pin_id', sa.String(length=100), nullable=False),
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('task', sa.String(length=600), nullable=False),
    sa.Column('stage', sa.String(length=249), nullable=False),
    sa.Column('checkpoint', sa.String(length=64), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('expires_at', sa.DateTime(timezone=True), nullable=True),
    sa.PrimaryKeyConstraint('pin_id', 'job', 'task', 'stage', name=op.f('pk_pins'))
    )
    op.create_index('ix_pins_job', 'pins', ['job', 'pin_id', 'task', 'stage'], unique=False)

    op.create_table('cleanups',
    sa.Column('kind', sa.String(length=16), nullable=False),
    sa.Column('blob_store', sa.String(length=249), nullable=False),
    sa.Column('subject', sa.String(length=1000), nullable=False),
    sa.Column('job', sa.String(length=249), nullable=False),
    sa.Column('task', sa.String(length=600), nullable=False),
    sa.Column('stage', sa.String(length=249), nullable=False),
    sa.Column('queued_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('due_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('tries', sa.Integer(), nullable=False),
    sa.Column('error', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('kind', 'blob_store', 'subject', name=op.f('pk_cleanups'))
    )
    op.create_index('ix_cleanups_due', 'cleanups', ['due_at', 'kind', 'blob_store', 'subject'], unique=False)

    op.create_table('condemned',
    sa.Column('blob_store', sa.String(length=249), nullable=False),
    sa.Column('blob', BYTEWISE, nullable=False),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.Column('condemned_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('blob_store', 'blob', name=op.f('pk_condemned'))
    )

    op.create_table('registries',
    sa.Column('blob_store', sa.String(length=249), nullable=False),
    sa.Column('registry', sa.String(length=64), nullable=False),
    sa.PrimaryKeyConstraint('blob_store', name=op.f('pk_registries'))
    )


def downgrade() -> None:

    for table in ('registries', 'condemned', 'cleanups', 'pins', 'snapshots'):
        op.drop_table(table)
    with op.batch_alter_table('stores', schema=None) as batch_op:
        for column in ('former', 'chosen', 'head'):
            batch_op.drop_column(column)
    with op.batch_alter_table('runs', schema=None) as batch_op:
        batch_op.drop_column('backup')
