"""Lineage: the weights that drew each token, and indexes from a weight version or a worker to its experiences."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TEXT: Final = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the column and the indexes."""
    op.add_column("experiences", sa.Column("spans", _TEXT))
    op.create_index("experiences_versions", "experiences", ["experiment", "oldest_version"])
    op.create_index("leases_worker", "leases", ["worker"])


def downgrade() -> None:
    """Drops them."""
    op.drop_index("leases_worker", "leases")
    op.drop_index("experiences_versions", "experiences")
    op.drop_column("experiences", "spans")
