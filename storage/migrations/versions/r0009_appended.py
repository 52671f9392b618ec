"""Experiences lie in the order of their writing (SQLite): wide rows in a tree of random keys change a page each."""

from __future__ import annotations

from alembic import op
from sqlalchemy import text

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Puts the rows beside their primary key's tree."""
    _made_again(clustered=False)


def downgrade() -> None:
    """Puts them into it."""
    _made_again(clustered=True)


def _made_again(*, clustered: bool) -> None:
    # SQLite cannot change how a table lies: a new one is filled from it. Postgres keeps all rows beside their index.
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        return
    found = connection.execute(
        text("SELECT type, name, sql FROM sqlite_master WHERE tbl_name = 'experiences' AND sql IS NOT NULL")
    ).all()
    columns = next(sql[: sql.rindex(")") + 1] for kind, _, sql in found if kind == "table")
    indexes = [(name, sql) for kind, name, sql in found if kind == "index"]
    # Dropped first: an index goes along with its renamed table and would keep its name from the new one.
    for name, _ in indexes:
        op.drop_index(name, table_name="experiences")
    op.rename_table("experiences", "experiences_before")
    op.execute(f"{columns} WITHOUT ROWID" if clustered else columns)
    op.execute("INSERT INTO experiences SELECT * FROM experiences_before")
    op.drop_table("experiences_before")
    for _, sql in indexes:
        op.execute(sql)
