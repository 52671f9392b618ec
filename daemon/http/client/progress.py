"""`WaitProgress`: an experiment's progress while a program waits for the end, in a cell, a terminal or a log."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from rftd.daemon.http.client.cards import line_of, progress_card
from rftd.storage.queries.experiments import ExperimentSummary


class WaitProgress:
    """Shows summaries: redrawn in a notebook's cell and on a terminal's line, else one line per changed state."""

    def __init__(self, *, show: bool) -> None:
        self._shows = show
        self._state = ""
        self._line = ""
        self._points: list[tuple[float, float]] = []
        self._cell: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line and self._cell is None and sys.stderr.isatty():
            sys.stderr.write("\n")

    def update(self, summary: ExperimentSummary) -> None:
        """Shows a new summary, unless nothing has changed."""
        line = line_of(summary)
        if not self._shows or line == self._line:
            return
        if summary.reward_mean is not None:
            self._points.append((summary.step, summary.reward_mean))
        if (display := cell_display()) is not None:
            self._draw(display, summary)
        elif sys.stderr.isatty():
            # Padded: a shorter line must cover the former one.
            sys.stderr.write("\r" + line.ljust(len(self._line)))
            sys.stderr.flush()
        elif summary.state != self._state:
            sys.stderr.write(line + "\n")
        self._line = line
        self._state = summary.state

    def _draw(self, display: Any, summary: ExperimentSummary) -> None:
        card = display.HTML(progress_card(summary, self._points))
        if self._cell is None:
            self._cell = display.display(card, display_id=True)
        else:
            self._cell.update(card)


def cell_display() -> Any:
    """Returns IPython's display module in a notebook; None elsewhere, without importing IPython."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    import IPython.display

    return IPython.display
