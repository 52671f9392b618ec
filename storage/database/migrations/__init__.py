"""Alembic revisions, by which a database gets the tables of this release, on SQLite and on Postgres.

env       runs them on the connection that `schema` hands over
versions/ one file for each revision

From 0.1.0 on, a changed table is a new file in `versions/` (with `upgrade` and `downgrade`), `HEAD` here, and, if its
rows must be filled anew, a new `version` of its projection. A test compares the result with `storage/database/tables`.
"""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
HEAD: Final = "0.1"
"""The newest revision, which this release reads and writes."""
VERSION_TABLE: Final = "rftd_schema"
"""The table that holds a database's revision; Alembic's own name may be another program's."""
