"""who has the database; indexes of hot queries"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:

    op.create_table('claims',
    sa.Column('name', sa.String(length=16), nullable=False),
    sa.Column('holder', sa.String(length=300), nullable=False),
    sa.PrimaryKeyConstraint('name', name=op.f('pk_claims'))
    )


def downgrade() -> None:

    op.drop_table('claims')
