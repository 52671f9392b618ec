"""The progress of a stage that only collects: it gives out a number of groups, and trains on none of them."""

from __future__ import annotations

from rftd.streams.folds.run_state import RunState
from rftd.streams.spec import StageSpec


def left_to_collect(state: RunState, stage: StageSpec) -> int:
    """Groups of the stage under way that are still to be given out."""
    return max(0, stage.collect_groups - state.groups.next_sequence.get(state.spine.stage, 0))


def explored(state: RunState, stage: StageSpec) -> bool:
    """True if nothing more of the stage under way has to be explored."""
    if stage.kind != "explore":
        return state.spine.planned >= state.spine.last_version
    still_open = any(group.stage == state.spine.stage for group in state.groups.open.values())
    return not still_open and not left_to_collect(state, stage)
