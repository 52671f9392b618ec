"""A tracker whose library stores at moments of its own is given again all that was written since the last one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from synthetic.tracking.tracked import Killed, follow, written

from rftd.streams.memory import MemoryLog
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking import process
from rftd.workers.tracking.point import Point
from rftd.workers.tracking.tracker import Kept

pytestmark = pytest.mark.anyio


class Forgetful:
    """What was written is stored at a sure moment, and is gone if the process dies before."""

    sure_at_once = False

    def __init__(self, dies: bool) -> None:
        self._dies = dies
        self._written: list[int] = []
        self.stored: list[int] = []

    def open(self, kept: Kept) -> None:
        """Has nothing to go on with."""

    def write(self, points: Sequence[Point]) -> None:
        self._written += [point.row for point in points if not point.remark]

    def settle(self, *, surely: bool) -> Kept | None:
        if not surely:
            return None
        if self._dies:
            raise Killed("before the sure moment")
        self.stored += self._written
        self._written = []
        return {}

    def close(self, ended: str) -> None:
        """Has nothing to let go of."""


async def test_what_a_killed_process_had_not_stored_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path)
    half = len(run.recorder.drafts) // 2
    log = MemoryLog()
    stored: list[int] = []
    for portion in (run.recorder.drafts[:half], run.recorder.drafts[half:]):
        await log.append(portion)
        with pytest.raises(Killed):
            await follow(log, run, tracked_by(Forgetful(dies=True), monkeypatch))
        tracker = Forgetful(dies=False)
        await follow(log, run, tracked_by(tracker, monkeypatch))
        stored += tracker.stored
    assert stored == list(range(len(stored)))
    assert len(stored) > 26, "two steps of rows, twelve of rollouts with a row for each role, and evaluations"


def tracked_by(tracker: Forgetful, monkeypatch: pytest.MonkeyPatch) -> TrackerSpec:
    """A tracker that is this one, whatever its kind says."""
    monkeypatch.setattr(process, "TRACKERS", SimpleNamespace(load=lambda kind: lambda opening: tracker))
    return TrackerSpec(kind="wandb")
