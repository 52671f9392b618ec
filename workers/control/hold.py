"""`Hold`: the reason why a decider stops, as the name of one rule with numbers and texts. Returned beside events.

A hold is true of the state at the decision, with the events beside it. Only beside events may it be missing: the next
rule is known once the events are folded. `rftd why` prints the texts of holds, and reads nothing else.
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
    """The reason why a decider stops: one rule, with its numbers as fields and its text."""

    words: ClassVar[Words]
    """Text of the hold. In braces are its fields, the `stage` under way, and `next_step`, the step to be executed next.
    """

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text with the numbers of this hold and of the state now; `facts` adds more for its braces."""
        spine = state.spine
        names: dict[str, object] = {**msgspec.structs.asdict(self), **facts, "next_step": spine.version + 1}
        if spine.stage >= 0:
            names["stage"] = spine.stage_spec()
        words = self.words
        return words._replace(waiting_for=words.waiting_for.format_map(names), unblock=words.unblock.format_map(names))


class NoStage(Hold, frozen=True):
    """No stage is under way: the experiment has not begun, has ended, or is between two stages."""

    words = Words("stage", "the next stage to begin", "controller", "the next stage to begin")


class Paused(Hold, frozen=True):
    """The experiment is paused, by a command or by an obstacle."""

    cause: str = ""
    """Obstacle behind a pause without a command; empty after a command."""
    again_ns: int = 0
    """Time of the controller's next try, for obstacles only a try can test; 0: none."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text: a command ends a commanded pause; any other pause, as the state is now, ends by itself."""
        if state.spine.cause and state.spine.cause not in PERSONS:
            return Words("paused", wanted(state.spine.cause), "you", "that is fixed; it then continues by itself")
        name = state.spine.spec.name if state.spine.spec is not None else state.experiment
        return Words("paused", "the experiment to be resumed", "you", f"rftd resume {shlex.quote(str(name))}")


class StagePlanned(Hold, frozen=True):
    """The stage needs nothing more: every step is planned, or every group explored."""

    words = Words("stage_planned", "every step of stage {stage.name} is planned", level=Level.DONE)


H = TypeVar("H")


class Decided(NamedTuple, Generic[H]):
    """Answer of a decider: events, and the hold against further ones."""

    events: Sequence[Event]
    hold: H | None = None
    """Rule stopping the decider; None only beside events to be folded first."""


class ReadsColumns(Hold, frozen=True):
    """The daemon is still reading the columns needed by a selector."""

    words = Words(
        "columns",
        "the columns {keys} of taskset {taskset}, by which its rows are drawn",
        "daemon",
        "the daemon has read them",
    )
    taskset: str
    keys: str


class DrawsRows(Hold, frozen=True):
    """The next rows of a taskset are about to be drawn by a selector."""

    words = Words("draws", "draws the next rows", level=Level.WORKS)
