"""When a paused experiment releases its workers, and thereby its memory and its slot."""

from __future__ import annotations

from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.folds.worker_state import UNFINISHED
from rftd.workers.control.hold import ends_by_itself
from rftd.workers.control.liveness import Liveness


def release_is_due(state: RunState, liveness: Liveness, now_ns: int, after_s: float) -> bool:
    """True if a pause that only a person can end has lasted `after_s` seconds, and the trainer has finished
    its step.
    """
    spine = state.spine
    if spine.status is not Status.PAUSED or ends_by_itself(spine) or now_ns - spine.status_ns < after_s * 1e9:
        return False
    live = state.roster.live
    beats = (liveness.latest[worker] for worker in live if worker in liveness.latest)
    return not any(beat.role == "trainer" and beat.state in UNFINISHED for beat in beats)
