"""`Console`: a line of text for each point, for people watching a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rftd.streams.figures.step_figures import grad_norm_of, kl_of, loss_of, response_length_of, reward_of
from rftd.workers.tracking.kept_file import KeptFiles
from rftd.workers.tracking.point import EXPLORER, Point
from rftd.workers.tracking.tracker import Kept, Opening

_FIGURES_OF_LINE: Final[Mapping[str, Callable[[Mapping[str, float | None]], float | None]]] = {
    "reward": reward_of,
    "loss": loss_of,
    "KL": kl_of,
    "gradient": grad_norm_of,
    "response tokens": response_length_of,
}
"""Functions computing the figures of a training step's line, by label, from the point's figures."""


class Console:
    """Writes `monitor/console/points.ID.log`, all points of a run in one file."""

    sure_at_once = True
    """True: `settle` confirms storage, because the file is synchronised."""

    def __init__(self, opening: Opening) -> None:
        """Writes below the folder of `opening`."""
        self._run = opening.run
        """The tracked experiment."""
        self._files = KeptFiles({"": opening.folder / opening.file("", "log")})
        """The file of the lines."""

    def open(self, kept: Kept) -> None:
        """Continues the file from the state last returned by `settle`; a new file begins with the run's name."""
        if self._files.open(kept):
            self._files.append("", f"{self._run.project}/{self._run.name}\n".encode())

    def write(self, points: Sequence[Point]) -> None:
        """Appends a line for each point; points without a line are skipped."""
        for point in points:
            if (text := _line_of(point)) is not None:
                time = datetime.fromtimestamp(point.time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
                self._files.append("", f"{time}  step {point.step}  {text}\n".encode())

    def settle(self, *, surely: bool) -> Kept:
        """Confirms that all lines survive a kill; returns the file's state for `open`."""
        return dict(self._files.settle())

    def close(self, ended: str) -> None:
        """Closes the file."""
        self._files.close()


def _line_of(point: Point) -> str | None:
    """Returns the line of a point; None for figures already in the line of their training step."""
    if point.remark:
        return point.remark
    if point.role == EXPLORER:
        scores = {name: figure for name, figure in point.figures.items() if name.startswith("eval/")}
        return "  ".join(f"{name} {figure:.4g}" for name, figure in scores.items()) or None
    figures = {name: figure_of(point.figures) for name, figure_of in _FIGURES_OF_LINE.items()}
    return "  ".join(f"{name} {figure:.4g}" for name, figure in figures.items() if figure is not None) or "trained"
