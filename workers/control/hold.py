"""`Hold`: why a decider stops, the name of one rule with its numbers and words. Deciders return one beside events.

A hold is true of the state that was decided on, with the events beside it. Only where there are events there may be no
hold: what stops the decider is known once those are folded. `rftd why` shows the words of holds, and asks nobody else.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from rftd.ops.words import Level, Words
from rftd.streams.events.registry import Event
from rftd.streams.folds.run_state import RunState
from rftd.workers.control.obstacle import PERSONS, wanted


class Hold(msgspec.Struct, frozen=True):
    """Why a decider stops."""

    words: ClassVar[Words]
    """Its sentence. In braces are its fields, the `stage` under way, and `next_step`, which is to be executed next."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """The sentence with the numbers of this hold and of the state as it is now; `facts` are more for its braces."""
        spine = state.spine
        known: dict[str, object] = {**msgspec.structs.asdict(self), **facts, "next_step": spine.version + 1}
        if spine.stage >= 0:
            known["stage"] = spine.stage_spec()
        words = self.words
        return words._replace(waiting_for=words.waiting_for.format_map(known), unblock=words.unblock.format_map(known))


class NoStage(Hold, frozen=True):
    """No stage is under way: the experiment has not begun, has ended, or is between two stages."""

    words = Words("stage", "the next stage to begin", "controller", "the next stage to begin")


class Paused(Hold, frozen=True):
    """The experiment is paused."""

    cause: str = ""
    """The obstacle that it paused for by itself; empty if a command asked for it."""
    again_ns: int = 0
    """The time at which the controller tries to go on, where only that shows whether the obstacle is gone; 0: none."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """A command ends what a command asked for; any other pause, as the experiment is by now, ends by itself."""
        if state.spine.cause and state.spine.cause not in PERSONS:
            return Words("paused", wanted(state.spine.cause), "you", "that is fixed; it then continues by itself")
        name = state.spine.spec.name if state.spine.spec is not None else state.experiment
        return Words("paused", "the experiment to be resumed", "you", f"rftd resume {shlex.quote(str(name))}")


class StagePlanned(Hold, frozen=True):
    """The stage needs nothing more: every step of it is planned, or every group of it explored."""

    words = Words("stage_planned", "every step of stage {stage.name} is planned", level=Level.DONE)


H = TypeVar("H")


class Decided(NamedTuple, Generic[H]):
    """The answer of a decider: events, and why there are no more."""

    events: Sequence[Event]
    hold: H | None = None
    """The rule that stops it; None only beside events that have to be folded first."""


class ReadsColumns(Hold, frozen=True):
    """The daemon is still reading the columns that a selector looks at."""

    words = Words(
        "columns",
        "the columns {keys} of taskset {taskset}, by which its rows are drawn",
        "daemon",
        "the daemon has read them",
    )
    taskset: str
    keys: str


class DrawsRows(Hold, frozen=True):
    """The next rows of a taskset are about to be drawn."""

    words = Words("draws", "draws the next rows", level=Level.WORKS)
