"""Priority: of the turn of an experiment that waits."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS: Final = (
    "priority",
    "prioritized",
    "prioritized_ns",
    "prioritized_partition",
    "prioritized_offset",
)


def upgrade() -> None:
    """Adds the columns."""
    for name in _COLUMNS:
        op.add_column("experiments", sa.Column(name, sa.BigInteger()))


def downgrade() -> None:
    """Drops them."""
    for name in _COLUMNS:
        op.drop_column("experiments", name)
