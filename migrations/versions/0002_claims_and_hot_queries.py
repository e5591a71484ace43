"""The claim on the database, and indexes of frequent queries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None

NOT_ENDED = sa.text('ended_at IS NULL')


def upgrade() -> None:

    op.create_table('claims',
    sa.Column('name', sa.String(length=16), nullable=False),
    sa.Column('holder', sa.String(length=300), nullable=False),
    sa.PrimaryKeyConstraint('name', name=op.f('pk_claims'))
    )
    with op.batch_alter_table('runs', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_runs_job'))
        batch_op.drop_index(batch_op.f('ix_runs_state'))
        batch_op.create_index('ix_runs_job_age', ['job', 'created_at', 'run_id'], unique=False)
        batch_op.create_index('ix_runs_age', ['created_at', 'run_id'], unique=False)
        batch_op.create_index('ix_runs_active', ['created_at', 'run_id'], unique=False, sqlite_where=NOT_ENDED, postgresql_where=NOT_ENDED)

    with op.batch_alter_table('containers', schema=None) as batch_op:
        batch_op.drop_index(batch_op.f('ix_containers_state'))
        batch_op.create_index('ix_containers_standing', ['run_id', 'execution_id'], unique=False, sqlite_where=NOT_ENDED, postgresql_where=NOT_ENDED)


def downgrade() -> None:

    with op.batch_alter_table('containers', schema=None) as batch_op:
        batch_op.drop_index('ix_containers_standing')
        batch_op.create_index(batch_op.f('ix_containers_state'), ['state'], unique=False)

    with op.batch_alter_table('runs', schema=None) as batch_op:
        batch_op.drop_index('ix_runs_active')
        batch_op.drop_index('ix_runs_age')
        batch_op.drop_index('ix_runs_job_age')
        batch_op.create_index(batch_op.f('ix_runs_state'), ['state'], unique=False)
        batch_op.create_index(batch_op.f('ix_runs_job'), ['job'], unique=False)

    op.drop_table('claims')
