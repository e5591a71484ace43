"""An index of the pins on the snapshots of one stage of a task."""

from __future__ import annotations

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_pins_job", table_name="pins")
    op.create_index("ix_pins_stage", "pins", ["job", "task", "stage", "pin_id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_pins_stage", table_name="pins")
    op.create_index("ix_pins_job", "pins", ["job", "pin_id", "task", "stage"], unique=False)
