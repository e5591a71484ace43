"""The bounds of granted leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lease_bounds",
        sa.Column("name", sa.String(16), nullable=False),
        sa.Column("lease", sa.Float(), nullable=False),
        sa.Column("grace", sa.Float(), nullable=False),
        sa.Column("bare_lease", sa.Float(), nullable=False),
        sa.Column("bare_grace", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease_bounds")),
    )


def downgrade() -> None:
    op.drop_table("lease_bounds")
