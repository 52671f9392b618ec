"""Retirements without an index that no query used."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drops it."""
    op.drop_index("retirements_experiment", table_name="retirements")


def downgrade() -> None:
    """Makes it again."""
    op.create_index("retirements_experiment", "retirements", ["experiment"])
