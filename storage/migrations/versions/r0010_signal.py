"""The learning signal: since which step it is lost, and why."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TEXT: Final = sa.String().with_variant(sa.String(collation="C"), "postgresql")
_WORDS: Final = ("signal_cause", "signal_reason")
_NUMBERS: Final = ("signal_step", "signal_ns", "signal_partition", "signal_offset")


def upgrade() -> None:
    """Adds the columns."""
    for name in _WORDS:
        op.add_column("experiments", sa.Column(name, _TEXT))
    for name in _NUMBERS:
        op.add_column("experiments", sa.Column(name, sa.BigInteger()))


def downgrade() -> None:
    """Drops them."""
    for name in (*_WORDS, *_NUMBERS):
        op.drop_column("experiments", name)
