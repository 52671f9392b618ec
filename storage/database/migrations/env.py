"""Run by Alembic: the revisions, on the connection and in the transaction that the caller handed over."""

from __future__ import annotations

from alembic import context

from rftd.storage.database.migrations import VERSION_TABLE
from rftd.storage.database.tables import Row

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Row.metadata,
    version_table=VERSION_TABLE,
)
# In the caller's transaction: a revision that fails, or a crash in it, leaves the tables as they were.
with context.begin_transaction():
    context.run_migrations()
