"""`Trackio`: runs in trackio's own database, where row ids prevent duplicates."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from rftd.ops.errors import UnreachableError
from rftd.workers.tracking.point import COLUMNS, Point
from rftd.workers.tracking.tracker import Kept, Opening

FOLDER: Final = "TRACKIO_DIR"
"""The variable with the folder of trackio's database, also used by `trackio show`."""
_DURABLE: Final = "TRACKIO_SQLITE_SYNCHRONOUS"
"""trackio's variable of SQLite's synchronisation."""


class Trackio:
    """Writes to `monitor/trackio`, or to the folder in `TRACKIO_DIR`; remarks become trackio's alerts."""

    sure_at_once = True
    """True: `settle` confirms storage, because each transaction is synchronised."""

    def __init__(self, opening: Opening) -> None:
        """Sets trackio's variables, read by trackio on import."""
        self._run = opening.run
        """The tracked experiment."""
        # trackio reads both variables on import.
        os.environ.setdefault(FOLDER, str(opening.folder))
        os.environ.setdefault(_DURABLE, "FULL")
        self._storage: Any = None
        """trackio's storage; None until it is opened."""
        self._project = self._run.project
        """Name of the project."""
        self._begun: set[str] = set()
        """Runs whose configuration was written by this process."""

    def open(self, kept: Kept) -> None:
        """Opens trackio's database; a project name reserved by trackio gets a suffix."""
        from trackio.sqlite_storage import SQLiteStorage

        self._storage = SQLiteStorage
        self._begun = set()
        try:
            SQLiteStorage.validate_project_name(self._project)
        except ValueError:  # a name reserved by trackio for its own files
            self._project = f"{self._run.project}-runs"

    def write(self, points: Sequence[Point]) -> None:
        """Stores points under row ids that exclude duplicates."""
        for role in self._run.roles:
            role_points = [point for point in points if self._run.run_of(point) == role]
            with _database():
                self._log(role, [point for point in role_points if point.figures or point.samples])
                self._alert(role, [point for point in role_points if point.remark])

    def settle(self, *, surely: bool) -> Kept:
        """Returns an empty state: every transaction is stored."""
        return {}

    def close(self, ended: str) -> None:
        """Does nothing: each write opens the database anew."""

    def _log(self, role: str, points: Sequence[Point]) -> None:
        """Stores figures and tables of a run."""
        if not points:
            return
        config = None if role in self._begun else self._config(points[0])
        self._storage.bulk_log(
            **self._names(role),
            metrics_list=[{**point.figures, **_table(point)} for point in points],
            steps=[point.step for point in points],
            timestamps=[_time(point) for point in points],
            log_ids=[f"{self._id(role)}-{point.row}" for point in points],
            config=config,
        )
        self._begun.add(role)

    def _alert(self, role: str, points: Sequence[Point]) -> None:
        """Stores remarks of a run."""
        self._storage.bulk_alert(
            **self._names(role),
            titles=[point.remark for point in points],
            texts=[None for _ in points],
            levels=["info" for _ in points],
            steps=[point.step for point in points],
            timestamps=[_time(point) for point in points],
            # Numbers change if the log is read again from the beginning; the times of the events do not.
            alert_ids=[f"{self._id(role)}-{point.step}-{point.time_ns}" for point in points],
        )

    def _names(self, role: str) -> dict[str, str]:
        """Returns trackio's names of a run."""
        return {"project": self._project, "run": self._run.title(role), "run_id": self._id(role)}

    def _id(self, role: str) -> str:
        """Returns the id of a run: the experiment's, with the role."""
        return "-".join(text for text in (self._run.experiment, role) if text)

    def _config(self, first: Point) -> dict[str, Any]:
        """Returns the configuration stored with a run."""
        origin = {"rftd_experiment": self._run.experiment, "rftd_digest": self._run.digest}
        return {**self._run.config, **origin, "_Group": self._run.group, "_Created": _time(first)}


@contextmanager
def _database() -> Iterator[None]:
    """Converts errors of a full disk or a locked database, which waiting helps to solve."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UnreachableError(f"trackio's database cannot be written: {error}", where=os.environ[FOLDER]) from None


def _time(point: Point) -> str:
    """Returns a point's time in ISO format."""
    return datetime.fromtimestamp(point.time_ns / 1e9, UTC).isoformat()


def _table(point: Point) -> dict[str, Any]:
    """Returns the table of a point, if any, in trackio's format."""
    if not point.samples:
        return {}
    rows = [dict(zip(COLUMNS, sample.cells(), strict=True)) for sample in point.samples]
    return {point.table: {"_type": "trackio.table", "_value": rows}}
