"""`WaitProgress`: shows an experiment's progress while a program waits for the end."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

from rftd.daemon.http.client.cards import line_of, progress_card
from rftd.storage.queries.experiments import ExperimentSummary


class WaitProgress:
    """Shows summaries: redrawn in a notebook's cell and on a terminal's line, else one line per changed state."""

    def __init__(self, *, show: bool) -> None:
        """Shows nothing unless `show`."""
        self._enabled = show
        """True if progress is shown at all."""
        self._last_state = ""
        """State shown last; empty at first."""
        self._last_line = ""
        """Line shown last; empty at first."""
        self._rewards: list[tuple[float, float]] = []
        """Step and mean reward of each summary with a reward, for the curve."""
        self._card: Any = None
        """IPython's handle of the card in the notebook's cell; None before the first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the line on a terminal, so that further output begins on a new one."""
        if self._last_line and self._card is None and sys.stderr.isatty():
            sys.stderr.write("\n")

    def update(self, summary: ExperimentSummary) -> None:
        """Shows a new summary, unless nothing has changed."""
        line = line_of(summary)
        if not self._enabled or line == self._last_line:
            return
        if summary.reward_mean is not None:
            self._rewards.append((summary.step, summary.reward_mean))
        if (display := cell_display()) is not None:
            self._draw_in_cell(display, summary)
        elif sys.stderr.isatty():
            # Padded: a shorter line must cover the former one.
            sys.stderr.write("\r" + line.ljust(len(self._last_line)))
            sys.stderr.flush()
        elif summary.state != self._last_state:
            sys.stderr.write(line + "\n")
        self._last_line = line
        self._last_state = summary.state

    def _draw_in_cell(self, display: Any, summary: ExperimentSummary) -> None:
        """Draws a card of the summary in the notebook's cell, in place of the last card."""
        card = display.HTML(progress_card(summary, self._rewards))
        if self._card is None:
            self._card = display.display(card, display_id=True)
        else:
            self._card.update(card)


def cell_display() -> Any:
    """Returns IPython's display module in a notebook; None elsewhere, without importing IPython."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    import IPython.display

    return IPython.display
