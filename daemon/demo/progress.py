"""`Progress`: where the demo's experiment stands, in one line that fits the terminal."""

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
"""The width of a line where no terminal is."""
_CURVE: Final = 32
_LEAST_CURVE: Final = 4


class DemoReading(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a progress line, which cost the daemon the same however long the history is."""

    summary: ExperimentSummary
    rewards: Sequence[float]
    """The mean rewards of the newest rollouts, one for each time that they were asked for."""
    evals: Sequence[EvalRow]


class Progress:
    """Prints where the experiment stands; on a terminal in place, else a line every few seconds."""

    def __init__(
        self, write: Callable[[str], None], *, width: Callable[[], int | None], monotonic_s: Callable[[], float]
    ) -> None:
        """`width` tells the columns of the terminal at each line, for it may be resized; None if there is none."""
        self._write = write
        self._width = width
        self._monotonic_s = monotonic_s
        self._in_place = width() is not None
        self._began_s = monotonic_s()
        self._shown_s = -EVERY_S
        self._stands = False
        """True while a line stands on the terminal that the next one is to replace."""

    def begin(self) -> None:
        """Counts the time from now on."""
        self._began_s = self._monotonic_s()

    def due(self) -> bool:
        """True if it is time for another reading."""
        passed_s = self._monotonic_s() - self._began_s - self._shown_s
        return passed_s >= (IN_PLACE_EVERY_S if self._in_place else EVERY_S)

    def show(self, reading: DemoReading) -> None:
        """Shows one reading."""
        now_s = self._monotonic_s() - self._began_s
        self._shown_s = now_s
        # One column less than there are: the cursor stands behind the line, and would be in the next one.
        text = line_of(reading, now_s, (self._width() or COLUMNS) - 1)
        self._write(f"\r\x1b[2K{text}" if self._in_place else f"{text}\n")
        self._stands = self._in_place

    def end(self) -> None:
        """Leaves the line that was shown in place, so that what follows begins a line of its own; idempotent."""
        if self._stands:
            self._write("\n")
        self._stands = False


def line_of(reading: DemoReading, passed_s: float, width: int) -> str:
    """The reading in at most `width` columns: the curve is as long as there is room, and what is behind it goes."""
    summary = reading.summary
    line = f"{passed_s:5.1f} s  {summary.stage or summary.state:8} step {summary.step}/{summary.total_steps}"
    more = [f"  held-out {reading.evals[-1].score or 0.0:.2f}"] if reading.evals else []
    if reading.rewards:
        more.insert(0, f"  reward {reading.rewards[-1]:.2f} ")
        room = width - cells(line + "".join(more))
        if room >= _LEAST_CURVE:
            more.insert(1, sparkline(reading.rewards, width=min(_CURVE, room), low=0.0, high=1.0))
    for part in more:
        if cells(line + part.rstrip()) <= width:
            line += part
    return line.rstrip()[:width]
