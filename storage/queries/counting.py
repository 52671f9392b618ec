# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""The batches and steps that count: of a step and its batch's abandonment, both on the spine, the first one does."""

from __future__ import annotations

from typing import Final

ABANDONED: Final = """(b.abandoned_offset IS NOT NULL AND NOT EXISTS (SELECT 1 FROM steps u
    WHERE u.experiment = b.experiment AND u.step = b.step AND u.batch = b.id AND u.completed_offset < b.abandoned_offset
))"""
"""True of `batches b` if it was given up before anybody executed it."""

EXECUTED: Final = f"""(SELECT s.* FROM steps s WHERE NOT EXISTS (SELECT 1 FROM batches b
    WHERE b.id = s.batch AND b.experiment = s.experiment AND {ABANDONED}))"""
"""The `steps` that count: without those of batches that were given up before. Needs a name."""
