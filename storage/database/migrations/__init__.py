"""Alembic revisions that bring a database to the tables of this release, on SQLite and on Postgres.

env       runs the revisions on the connection passed by `schema`
versions/ one file for each revision

From 0.1.0 on, a changed table is a new file in `versions/` (with `upgrade` and `downgrade`), `HEAD` here, and, if its
rows must be filled anew, a new `version` of its projection. A test compares the outcome with `storage/database/tables`.
"""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
"""Folder with Alembic's environment and revisions."""
HEAD: Final = "0.1"
"""The newest revision: the only one read and written by this release."""
VERSION_TABLE: Final = "rftd_schema"
"""Name of the table with a database's revision; a table with Alembic's default name may belong to another program."""
