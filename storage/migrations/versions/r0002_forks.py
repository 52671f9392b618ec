"""Forks and archives: where an experiment comes from, and where its files are."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TEXT: Final = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_COLUMNS: Final = (
    ("parent", sa.LargeBinary()),
    ("forked_step", sa.BigInteger()),
    ("forked_ns", sa.BigInteger()),
    ("forked_partition", sa.BigInteger()),
    ("forked_offset", sa.BigInteger()),
    ("kept", _TEXT),
    ("kept_path", _TEXT),
    ("kept_reason", _TEXT),
    ("kept_ns", sa.BigInteger()),
    ("kept_partition", sa.BigInteger()),
    ("kept_offset", sa.BigInteger()),
)


def upgrade() -> None:
    """Adds the columns."""
    for name, kind in _COLUMNS:
        op.add_column("experiments", sa.Column(name, kind))
    op.create_index("experiments_parent", "experiments", ["parent"])


def downgrade() -> None:
    """Drops them."""
    op.drop_index("experiments_parent", "experiments")
    for name, _ in _COLUMNS:
        op.drop_column("experiments", name)
