"""`Progress`: the state of the demo's experiment, in one line fitting the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rftd.daemon.cli.output.quantity import sparkline
from rftd.daemon.cli.output.terminal import cells
from rftd.storage.queries.experiments import ExperimentSummary
from rftd.storage.queries.steps import EvalRow

EVERY_S: Final = 5.0
IN_PLACE_EVERY_S: Final = 1.0
COLUMNS: Final = 80
"""Width of a line without a terminal."""
_CURVE: Final = 32
_LEAST_CURVE: Final = 4


class DemoReading(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a progress line, with a cost to the daemon independent of the history's length."""

    summary: ExperimentSummary
    rewards: Sequence[float]
    """Mean rewards of the newest rollouts, one per reading."""
    evals: Sequence[EvalRow]


class Progress:
    """Prints the experiment's state; in place on a terminal, otherwise as a line every few seconds."""

    def __init__(
        self, write: Callable[[str], None], *, width: Callable[[], int | None], monotonic_s: Callable[[], float]
    ) -> None:
        """`width` returns the terminal's columns for each line, because it may be resized; None without a terminal."""
        self._write = write
        self._width = width
        self._monotonic_s = monotonic_s
        self._in_place = width() is not None
        self._began_s = monotonic_s()
        self._shown_s = -EVERY_S
        self._line_open = False
        """True while a line on the terminal is to be replaced by the next one."""

    def begin(self) -> None:
        """Restarts the clock shown in the progress line, excluding the time for starting servers."""
        self._began_s = self._monotonic_s()

    def due(self) -> bool:
        """True if it is time for another reading: every second on a terminal, otherwise every five seconds."""
        passed_s = self._monotonic_s() - self._began_s - self._shown_s
        return passed_s >= (IN_PLACE_EVERY_S if self._in_place else EVERY_S)

    def show(self, reading: DemoReading) -> None:
        """Shows one reading: in place on a terminal, otherwise as a new line."""
        now_s = self._monotonic_s() - self._began_s
        self._shown_s = now_s
        # One column less than available: the cursor stands behind the line, and would otherwise wrap to the next line.
        text = line_of(reading, now_s, (self._width() or COLUMNS) - 1)
        self._write(f"\r\x1b[2K{text}" if self._in_place else f"{text}\n")
        self._line_open = self._in_place

    def end(self) -> None:
        """Ends the line shown in place, so that further output begins on a new line; idempotent."""
        if self._line_open:
            self._write("\n")
        self._line_open = False


def line_of(reading: DemoReading, passed_s: float, width: int) -> str:
    """Returns the reading in at most `width` columns: the curve fills the available space, and trailing parts are
    dropped.
    """
    summary = reading.summary
    line = f"{passed_s:5.1f} s  {summary.stage or summary.state:8} step {summary.step}/{summary.total_steps}"
    more = [f"  held-out {reading.evals[-1].score or 0.0:.2f}"] if reading.evals else []
    if reading.rewards:
        more.insert(0, f"  reward {reading.rewards[-1]:.2f} ")
        room = width - cells(line + "".join(more))
        if room >= _LEAST_CURVE:
            more.insert(1, sparkline(reading.rewards, width=min(_CURVE, room), low=0.0, high=1.0))
    for section in more:
        if cells(line + section.rstrip()) <= width:
            line += section
    return line.rstrip()[:width]
