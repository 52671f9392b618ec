"""Uses: what may be planned again, from when on, and tags that were changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Adds the columns."""
    op.add_column("batches", sa.Column("max_uses", sa.BigInteger()))
    op.add_column("batches", sa.Column("eligible_at_ns", sa.BigInteger()))
    op.add_column("groups", sa.Column("tag", sa.Float()))
    op.add_column("groups", sa.Column("tagged_partition", sa.BigInteger()))
    op.add_column("groups", sa.Column("tagged_offset", sa.BigInteger()))


def downgrade() -> None:
    """Drops them."""
    for column in ("tagged_offset", "tagged_partition", "tag"):
        op.drop_column("groups", column)
    for column in ("eligible_at_ns", "max_uses"):
        op.drop_column("batches", column)
