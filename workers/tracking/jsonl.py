"""`JsonLines`: one line of JSON for each point, below a line about the experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from rftd.workers.tracking.kept_file import KeptFiles
from rftd.workers.tracking.point import Point
from rftd.workers.tracking.tracker import Kept, Opening


class JsonLines:
    """Writes `monitor/jsonl/RUN.ID.jsonl`; a non-finite figure is null."""

    sure_at_once = True
    """True: `settle` confirms storage, because the files are synchronised."""

    def __init__(self, opening: Opening) -> None:
        """Writes below the folder of `opening`, a file for each run."""
        self._run = opening.run
        """The tracked experiment."""
        paths = {role: opening.folder / opening.file(role, "jsonl") for role in self._run.roles}
        self._files = KeptFiles(paths)
        """Files of the lines, by role."""

    def open(self, kept: Kept) -> None:
        """Continues the files from the state last returned by `settle`; a new file begins with the experiment."""
        for role in self._files.open(kept):
            self._files.append(role, _line({**msgspec.to_builtins(self._run), "run": self._run.title(role)}))

    def write(self, points: Sequence[Point]) -> None:
        """Appends a line for each point; tables without rows are skipped."""
        for point in points:
            fields = {"number": point.number, "run": point.role, "step": point.step, "time_ns": point.time_ns}
            if point.table:
                if not point.samples:
                    continue
                line = _line({**fields, "table": point.table, "rows": msgspec.to_builtins(point.samples)})
            elif point.remark:
                line = _line({**fields, "remark": point.remark})
            else:
                line = _line({**fields, "figures": {name: _finite(figure) for name, figure in point.figures.items()}})
            self._files.append(self._run.run_of(point), line)

    def settle(self, *, surely: bool) -> Kept:
        """Confirms that all lines survive a kill; returns the files' state for `open`."""
        return dict(self._files.settle())

    def close(self, ended: str) -> None:
        """Closes the files."""
        self._files.close()


def _finite(figure: float) -> float | None:
    """Returns the figure; None for a non-finite one, because JSON has no number for it."""
    return figure if math.isfinite(figure) else None


def _line(fields: dict[str, object]) -> bytes:
    """Returns fields as a line of JSON."""
    return msgspec.json.encode(fields) + b"\n"
