"""What one turn of a run costs once many workers have come and gone: the decisions of all roles, and a look at those
who live.

`python -P tests/bench/departed_workers.py [WORKERS]` (100,000 by default) prints one JSON object; the reference in the
same run is a run of which nobody ever left. Turns alternate. It fails if a bar is broken.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

sys.path.extend(str(Path(__file__).parents[above]) for above in (0, 1))

from figures import tell
from synthetic.worlds.desk import Desk

from rftd.streams.events.worker import WorkerStopped
from rftd.workers.control.controller import Controller
from rftd.workers.control.dispatcher import Dispatcher
from rftd.workers.control.liveness import Liveness
from rftd.workers.control.planner import Planner

TURN_BAR_MS: Final = 2.0
TURNS: Final = 400
SLOTS: Final = 16


class Departed(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    workers: int
    turn_ms: float
    """Median of the turns."""
    slowest_turn_ms: float
    """Of the 99 in 100 that were fastest."""
    turn_of_nobody_gone_ms: float


class Turns:
    """The roles of the daemon over one run, turn by turn."""

    def __init__(self, departed: int) -> None:
        self.desk = Desk()
        for number in range(departed):
            slot = number % SLOTS
            worker = self.desk.join(slot)
            self.desk.put(WorkerStopped(worker=worker, role="explorer", slot=slot, code="", reason=""))
        self.desk.join()
        self._liveness = Liveness()
        state = self.desk.state
        self._controller = Controller(state)
        self._planner, self._dispatcher = Planner(state), Dispatcher(state, self._liveness)
        self._now_s = 1.0

    def turn(self) -> float:
        """Seconds for what the roles decide; what they do is written and folded outside of that."""
        self._now_s += 0.05
        began_s = time.perf_counter()
        self._liveness.tick(self._now_s)
        decided = [
            *self._controller.decide(None, now_ns=int(self._now_s * 1e9)).events,
            *self._dispatcher.decide(self._now_s).decisions,
            *self._planner.decide(self.desk.positions, int(self._now_s * 1e9)).events,
        ]
        took_s = time.perf_counter() - began_s
        self.desk.obey(decided)
        return took_s


def main(workers: str = "100000") -> int:
    """Prints what was measured; 1 if a bar is broken."""
    many, nobody = Turns(int(workers)), Turns(0)
    assert len(many.desk.state.roster.gone) == int(workers)
    times = [(many.turn(), nobody.turn()) for _ in range(TURNS)]
    of_many = sorted(each for each, _ in times)
    found = Departed(
        workers=int(workers),
        turn_ms=round(1e3 * statistics.median(of_many), 4),
        slowest_turn_ms=round(1e3 * of_many[int(0.99 * TURNS)], 4),
        turn_of_nobody_gone_ms=round(1e3 * statistics.median(each for _, each in times), 4),
    )
    tell(found)
    return int(found.slowest_turn_ms > TURN_BAR_MS)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
