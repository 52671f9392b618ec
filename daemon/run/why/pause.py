"""`PauseState`: how far a pause has come, in figures and in the words shown by all clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from rftd.daemon.run.why.run_snapshot import RunSnapshot

PauseStage = Literal["draining", "quiet", "released"]
"""Rollouts or a training step still end; nothing is under way, with weights on the devices; the workers have left."""
RELEASED: Final = "its workers and its slot are released"
"""Words for the last stage of a pause."""


class PauseState(msgspec.Struct, frozen=True, kw_only=True):
    """The stage of a pause, with the work still under way and the memory still in use."""

    stage: PauseStage
    """Progress of the pause: draining, quiet or released."""
    rollouts: int = 0
    """Rollouts under way."""
    trains: bool = False
    """True while the trainer finishes its step, a checkpoint or a publication."""
    memory_bytes: int = 0
    """Resident memory of the living workers at their last heartbeats."""
    words: str
    """State of the pause in words."""


RELEASED_PAUSE: Final = PauseState(stage="released", words=f"released: {RELEASED}")
"""State of a pause in its last stage: no worker lives any more."""


def pause_of(snapshot: RunSnapshot) -> PauseState | None:
    """Returns the state of a run's pause; None unless paused, or by the log alone."""
    # Late: clients import the struct, and no fold.
    from rftd.daemon.cli.output.quantity import size
    from rftd.daemon.run.why.run_snapshot import Phase
    from rftd.daemon.run.why.workers import resident_bytes
    from rftd.streams.folds.spine import Status
    from rftd.streams.folds.worker_state import UNFINISHED

    state = snapshot.state
    if state.spine.status is not Status.PAUSED:
        return None
    if state.spine.released:
        return RELEASED_PAUSE
    if snapshot.offline:
        return None
    live = state.roster.live
    beats = [beat for beat in snapshot.liveness.latest.values() if beat.worker in live]
    memory_bytes = resident_bytes(snapshot)
    rollouts = sum(unfinished for worker, unfinished in state.groups.load.items() if worker in live)
    rows = any(evaluation.leases for evaluation in state.evals.open.values())
    trains = any(beat.role == "trainer" and beat.state in UNFINISHED for beat in beats)
    ending = [
        f"{rollouts} rollouts" if rollouts else "",
        "the rows of an evaluation" if rows else "",
        "the trainer's step" if trains else "",
        "its workers" if snapshot.phase is Phase.DRAINING else "",
    ]
    memory = f", {size(memory_bytes)} of memory" if memory_bytes else ""
    if any(ending):
        work = " and ".join(filter(None, ending))
        words = f"draining: {work} end first{memory}"
    elif live:
        words = f"quiet: no work in progress; the weights stay on the devices{memory}"
    else:
        words = "quiet: no work in progress, and no workers"
    return PauseState(
        stage="draining" if any(ending) else "quiet",
        rollouts=rollouts,
        trains=trains,
        memory_bytes=memory_bytes,
        words=words,
    )
