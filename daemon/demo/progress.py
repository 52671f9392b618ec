"""`Progress`: the state of the demo's experiment, in one line fitting the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rftd.daemon.cli.output.quantity import sparkline
from rftd.daemon.cli.output.terminal import cells
from rftd.storage.queries.experiments import ExperimentSummary
from rftd.storage.queries.steps import EvalRow

LINE_EVERY_S: Final = 5.0
"""Seconds between lines without a terminal."""
IN_PLACE_EVERY_S: Final = 1.0
"""Seconds between updates of the line on a terminal."""
DEFAULT_COLUMNS: Final = 80
"""Width of a line without a terminal."""
_MAX_CURVE_COLUMNS: Final = 32
"""Maximum width of the reward curve."""
_MIN_CURVE_COLUMNS: Final = 4
"""Minimum width of the reward curve; with less room there is no curve."""


class DemoReading(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a progress line, with a cost to the daemon independent of the history's length."""

    summary: ExperimentSummary
    """State, stage and step of the demo's experiment."""
    rewards: Sequence[float]
    """Mean rewards of the newest rollouts, one per reading."""
    evals: Sequence[EvalRow]
    """Evaluations so far; the line shows the newest score."""


class Progress:
    """Prints readings of the experiment's state: in place on a terminal, otherwise as lines; the caller asks `due` when
    to read.
    """

    def __init__(
        self, write: Callable[[str], None], *, width: Callable[[], int | None], monotonic_s: Callable[[], float]
    ) -> None:
        """`write` receives the output, and `monotonic_s` is a clock in seconds.

        `width` returns the terminal's columns, asked for each line because a terminal may be resized; None without a
        terminal.
        """
        self._write = write
        self._width = width
        self._monotonic_s = monotonic_s
        self._in_place = width() is not None
        """True on a terminal: each line replaces the last one."""
        self._began_s = monotonic_s()
        """Monotonic second at which the clock of the progress line starts."""
        self._shown_s = -LINE_EVERY_S
        """Time of the last reading shown, in seconds since the beginning."""
        self._line_open = False
        """True while a line on the terminal is to be replaced by the next one."""

    def begin(self) -> None:
        """Restarts the clock shown in the progress line, excluding the time for starting servers."""
        self._began_s = self._monotonic_s()

    def due(self) -> bool:
        """True if it is time for another reading: every second on a terminal, otherwise every five seconds."""
        passed_s = self._monotonic_s() - self._began_s - self._shown_s
        return passed_s >= (IN_PLACE_EVERY_S if self._in_place else LINE_EVERY_S)

    def show(self, reading: DemoReading) -> None:
        """Shows one reading: in place on a terminal, otherwise as a new line."""
        now_s = self._monotonic_s() - self._began_s
        self._shown_s = now_s
        # One column less than available: the cursor stands behind the line, and would otherwise wrap to the next line.
        text = line_of(reading, now_s, (self._width() or DEFAULT_COLUMNS) - 1)
        self._write(f"\r\x1b[2K{text}" if self._in_place else f"{text}\n")
        self._line_open = self._in_place

    def end(self) -> None:
        """Ends the line shown in place, so that further output begins on a new line; idempotent."""
        if self._line_open:
            self._write("\n")
        self._line_open = False


def line_of(reading: DemoReading, passed_s: float, width: int) -> str:
    """Returns the reading as a line of at most `width` columns.

    Elapsed time, stage and step come first; last reward, reward curve and held-out score follow as far as each of them
    fits, and the curve fills the space left by the others.
    """
    summary = reading.summary
    line = f"{passed_s:5.1f} s  {summary.stage or summary.state:8} step {summary.step}/{summary.total_steps}"
    more = [f"  held-out {reading.evals[-1].score or 0.0:.2f}"] if reading.evals else []
    if reading.rewards:
        more.insert(0, f"  reward {reading.rewards[-1]:.2f} ")
        room = width - cells(line + "".join(more))
        if room >= _MIN_CURVE_COLUMNS:
            more.insert(1, sparkline(reading.rewards, width=min(_MAX_CURVE_COLUMNS, room), low=0.0, high=1.0))
    for section in more:
        if cells(line + section.rstrip()) <= width:
            line += section
    return line.rstrip()[:width]
