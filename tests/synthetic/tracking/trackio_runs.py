"""The runs of trackio's database, by trackio's own reader."""

from __future__ import annotations

from synthetic.tracking.tracked import Shown, as_shown

from rftd.workers.tracking.point import ROLES
from rftd.workers.tracking.points import SAMPLES

ADDED = ("step", "timestamp")
"""What the reader adds to the figures of a row."""


def shown_in(project: str, name: str, experiment: str, roles: tuple[str, ...] = ROLES) -> list[Shown]:
    """Every figure of an experiment of ours, as often as the database has it; a single run has an empty role."""
    from trackio.sqlite_storage import SQLiteStorage

    shown = []
    for role in roles:
        of_role = (f"{name}_{role}", f"{experiment}-{role}") if role else (name, experiment)
        rows = SQLiteStorage.get_logs(project, of_role[0], run_id=of_role[1])
        shown += [
            as_shown("trackio", role, row["step"], figure, float(value))
            for row in rows
            for figure, value in row.items()
            if figure not in ADDED and not figure.startswith(f"{SAMPLES}/")
        ]
    return sorted(shown, key=lambda figure: (figure.run, figure.step, figure.name))
