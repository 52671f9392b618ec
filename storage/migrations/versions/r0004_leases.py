"""The leases of a worker in the order in which it took them, from the index alone."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Puts the time beside the worker."""
    op.drop_index("leases_worker", "leases")
    op.create_index("leases_worker", "leases", ["worker", "leased_ns"])


def downgrade() -> None:
    """Takes it away."""
    op.drop_index("leases_worker", "leases")
    op.create_index("leases_worker", "leases", ["worker"])
