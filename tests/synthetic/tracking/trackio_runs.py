"""The runs of trackio's database, by trackio's own reader."""

from __future__ import annotations

from synthetic.tracking.tracked import Shown, as_shown

from rftd.workers.tracking.points import SAMPLES

ADDED = ("step", "timestamp")
"""What the reader adds to the figures of a row."""


def shown_in(project: str, name: str, experiment: str, roles: tuple[str, ...] = ("explorer", "trainer")) -> list[Shown]:
    """Every figure of an experiment of ours, as often as the database has it."""
    from trackio.sqlite_storage import SQLiteStorage

    shown = []
    for role in roles:
        rows = SQLiteStorage.get_logs(project, f"{name}_{role}", run_id=f"{experiment}-{role}")
        shown += [
            as_shown("trackio", role, row["step"], figure, float(value))
            for row in rows
            for figure, value in row.items()
            if figure not in ADDED and not figure.startswith(f"{SAMPLES}/")
        ]
    return sorted(shown, key=lambda figure: (figure.run, figure.step, figure.name))
