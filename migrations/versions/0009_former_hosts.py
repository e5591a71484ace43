"""The hosts of former runs' slots, and the version of the job model under which a task was acquired."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "localities",
        sa.Column("job", sa.String(249), nullable=False),
        sa.Column("processor_id", sa.String(100), nullable=False),
        sa.Column("host", sa.String(300), nullable=False),
        sa.PrimaryKeyConstraint("job", "processor_id", name=op.f("pk_localities")),
    )
    op.add_column("holds", sa.Column("model_version", sa.Integer(), nullable=False, server_default=sa.text("0")))


def downgrade() -> None:
    with op.batch_alter_table("holds", schema=None) as batch_op:
        batch_op.drop_column("model_version")
    op.drop_table("localities")
