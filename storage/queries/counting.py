# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""Which batches and steps count: both are on the spine, and the first of a step and the end of its batch counts."""

from __future__ import annotations

from typing import Final

ABANDONED: Final = """(b.abandoned_offset IS NOT NULL AND NOT EXISTS (SELECT 1 FROM steps u
    WHERE u.experiment = b.experiment AND u.step = b.step AND u.batch = b.id AND u.completed_offset < b.abandoned_offset
))"""
"""Of `batches b`: it was given up before anybody executed it."""

EXECUTED: Final = f"""(SELECT s.* FROM steps s WHERE NOT EXISTS (SELECT 1 FROM batches b
    WHERE b.id = s.batch AND b.experiment = s.experiment AND {ABANDONED}))"""
"""The `steps` that count: without those of batches that were given up before. Needs a name."""
