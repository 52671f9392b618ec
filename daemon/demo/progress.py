"""What the demo shows while it runs: one line for each second on a terminal, fewer elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rftd.daemon.output.sparkline import sparkline
from rftd.daemon.views.experiments import ExperimentPage

EVERY_S = 5.0
IN_PLACE_EVERY_S = 1.0


class Progress:
    """Prints where the experiment stands; on a terminal in place, else a line every few seconds."""

    def __init__(self, echo: Callable[..., None], *, monotonic_s: Callable[[], float]) -> None:
        self._echo = echo
        self._monotonic_s = monotonic_s
        self._in_place = sys.stdout.isatty()
        self._began_s = monotonic_s()
        self._shown_s = -EVERY_S

    def due(self) -> bool:
        """True if it is time for another reading."""
        passed_s = self._monotonic_s() - self._began_s - self._shown_s
        return passed_s >= (IN_PLACE_EVERY_S if self._in_place else EVERY_S)

    def show(self, page: ExperimentPage) -> None:
        """Shows one reading."""
        now_s = self._monotonic_s() - self._began_s
        self._shown_s = now_s
        summary = page.experiment.summary
        curve = [point.reward_mean for point in page.reward_curve]
        text = f"  {now_s:5.1f} s  {summary.stage or summary.state:8} step {summary.step}/{summary.total_steps}"
        if curve:
            text += f"  reward {sparkline(curve, low=0.0, high=1.0)} {curve[-1]:.2f}"
        if page.evals:
            text += f"  held-out {page.evals[-1].score or 0.0:.2f} at version {page.evals[-1].version}"
        self._echo("\r\x1b[2K" + text if self._in_place else text, nl=not self._in_place)

    def end(self) -> None:
        """Leaves the line that was shown in place."""
        if self._in_place:
            self._echo("")
