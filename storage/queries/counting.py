# ruff: noqa: S608 (only constants of this package are put into the text; values are parameters)
"""The batches and steps that count: of a step and the abandonment of the step's batch, both on the spine, the first
event counts.
"""

from __future__ import annotations

from typing import Final

ABANDONED: Final = """(b.abandoned_offset IS NOT NULL AND NOT EXISTS (SELECT 1 FROM steps u
    WHERE u.experiment = b.experiment AND u.step = b.step AND u.batch = b.id AND u.completed_offset < b.abandoned_offset
))"""
"""SQL condition on `batches b`: abandoned before any trainer executed the batch."""

EXECUTED: Final = f"""(SELECT s.* FROM steps s WHERE NOT EXISTS (SELECT 1 FROM batches b
    WHERE b.id = s.batch AND b.experiment = s.experiment AND {ABANDONED}))"""
"""SQL source of the steps that count: those of batches abandoned before are left out. Needs an alias."""
