"""Overdue weights: the windows that explorers began without the weights that they had waited for, or still do not."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TEXT: Final = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the table."""
    op.create_table(
        "overdue_windows",
        sa.Column("experiment", sa.LargeBinary(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("stage", sa.BigInteger(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("number", sa.BigInteger(), primary_key=True, nullable=False, autoincrement=False),
        sa.Column("wanted", sa.BigInteger()),
        sa.Column("version", sa.BigInteger()),
        sa.Column("waited_s", sa.Float()),
        sa.Column("reason", _TEXT),
        sa.Column("overdue_ns", sa.BigInteger()),
        sa.Column("overdue_partition", sa.BigInteger()),
        sa.Column("overdue_offset", sa.BigInteger()),
    )


def downgrade() -> None:
    """Drops it."""
    op.drop_table("overdue_windows")
