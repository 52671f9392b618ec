"""Alembic's entry script: runs the revisions on the caller's connection, in the caller's transaction."""

from __future__ import annotations

from alembic import context

from rftd.storage.database.migrations import VERSION_TABLE
from rftd.storage.database.tables import Row

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Row.metadata,
    version_table=VERSION_TABLE,
)
# In the caller's transaction: a failing revision, or a crash in the middle, leaves the tables unchanged.
with context.begin_transaction():
    context.run_migrations()
