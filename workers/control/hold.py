"""`Hold`: the reason why a decider (controller, planner or dispatcher) takes no further decision.

A hold names one rule, with its numbers and a text. It is true of the state at the decision, together with the events
returned beside it, and may be missing only beside events: the next rule is known once they are folded. `rftd why`
prints the texts of holds, and reads nothing else.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from rftd.ops import limits
from rftd.ops.errors import (
    CodecError,
    ConfigError,
    DataError,
    DeviceMemoryError,
    LogCorruptError,
    NonFiniteLossError,
    NotFoundError,
    NotInstalledError,
    RftdError,
    RowError,
    TrainError,
    UsageError,
    explain,
)
from rftd.ops.words import Level, Words
from rftd.streams.events.experiment import ExperimentFailed
from rftd.streams.events.registry import Event
from rftd.streams.folds.scoreboard import RULE
from rftd.streams.folds.spending import BUDGET, UNSEEN
from rftd.streams.folds.spine import Spine

if TYPE_CHECKING:  # deciders of few folds import this module
    from rftd.streams.folds.roster import Gone
    from rftd.streams.folds.run_state import RunState

DISK_FULL: Final = "disk_full"
"""The disk has too little free space."""
DISK_BUDGET: Final = "disk_budget"
"""The experiments use more space than their budget."""
PART_MISSING: Final = "part_missing"
"""A plug-in named by the experiment is not installed where the workers start."""
NOT_ALLOWED: Final = "not_allowed"
"""The daemon's configuration no longer allows something granted at the submission."""
WORKER_FAILS: Final = "worker_fails"
"""A worker ended repeatedly without progress; it is restarted after a pause."""
REFUSED: Final = "refused"
"""The workers refuse the experiment: a model, dataset or artifact is missing, damaged, or changed since acceptance."""
ERROR: Final = "error"
"""A decider in the daemon raised an error, in a plug-in or in this project."""
SIGNAL_LOST: Final = "signal_lost"
"""Too many consecutive batches had no learning signal; only a person ends this pause."""

RETRIED_CAUSES: Final = frozenset((REFUSED, ERROR))
"""Causes of pauses that end by a retry: the experiment resumes by itself after a delay, longer with each pause since
the last new step, up to a limit.
"""

PERSONS: Final = frozenset((SIGNAL_LOST, RULE, BUDGET, UNSEEN))
"""Causes of pauses ended only by a command of a person."""

RESUMABLE: Final = RETRIED_CAUSES | PERSONS
"""Causes of pauses that `rftd resume` may end."""

_MENDED_BY_A_PERSON: Final = frozenset(
    kind.code for kind in (DataError, NotFoundError, NotInstalledError, LogCorruptError, DeviceMemoryError)
)
"""Codes of errors of a worker whose cause only a person can remove."""
_HOPELESS: Final = frozenset(kind.code for kind in (NonFiniteLossError, RowError, TrainError))
"""Codes of errors of a worker caused by the training itself: a restart repeats them."""
_UNFIT: Final = frozenset(kind.code for kind in (ConfigError, UsageError))
"""Codes of errors of a worker caused by the specification, which is fixed: a restart repeats them."""
REFUSALS: Final = _MENDED_BY_A_PERSON | _HOPELESS | _UNFIT
"""Codes of worker errors that a restarted worker would meet again."""


_WANTED: Final = {
    PART_MISSING: "a part that is not installed",
    NOT_ALLOWED: "a permission that was withdrawn",
    WORKER_FAILS: "a worker that ends again and again",
    REFUSED: "a valid model, dataset or artifact",
    ERROR: "an error in the daemon",
    SIGNAL_LOST: "something to learn from",
    RULE: "a decision about its evaluations",
    BUDGET: "a further budget",
    UNSEEN: "somebody to look at it",
}
"""Needs named by the message of a paused experiment, by the cause of the pause; free space for other causes."""


def wanted(cause: str) -> str:
    """Returns, as the words after "waits for", what an experiment paused for this cause needs."""
    return _WANTED.get(cause, "space")


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to pause an experiment, with a fix; the experiment resumes by itself once the obstacle has
    disappeared.
    """

    cause: str
    """One of the constants above, such as `DISK_FULL`."""
    reason: str
    """Explanation of the pause for the owner."""
    fix: str
    """Advice to the owner."""


Trouble: TypeAlias = Obstacle | ExperimentFailed
"""An obstacle pausing an experiment, or the event ending it."""


def obstacle_of_error(role: str, error: BaseException) -> Obstacle:
    """Returns the obstacle of an unexpected error raised in the daemon by a role of an experiment."""
    reason = f"{error.code}: {error.what}" if isinstance(error, RftdError) else explain(error)
    fix = (error.fix or "") if isinstance(error, RftdError) else ""
    fix = fix or "see the daemon's log for the place of the error, and correct that part or its input"
    return Obstacle(cause=ERROR, reason=f"the {role} raised {reason}", fix=fix)


def trouble_of_decision(role: str, error: BaseException) -> Trouble:
    """Returns the trouble of an error raised by a role's decision: an obstacle, or a failure if no retry can help."""
    # A decision too large for any record would be the same the next time: trying again cannot help.
    if type(error) is not CodecError:
        return obstacle_of_error(role, error)
    return ExperimentFailed(code=error.code, reason=f"the decision of the {role}: {explain(error)}", role=role)


def trouble_of_refusal(worker_exit: Gone, *, ours: bool) -> Trouble:
    """Returns the failure or obstacle of a role whose last worker refused the work; `ours` is True for workers started
    by this daemon.
    """
    # A worker started by somebody else may be the wrong one for this experiment: another may suit it.
    if worker_exit.code in _HOPELESS or (ours and worker_exit.code in _UNFIT):
        return ExperimentFailed(code=worker_exit.code, reason=worker_exit.reason, role=worker_exit.role)
    reason, _, fix = worker_exit.reason.partition("; fix: ")
    return Obstacle(
        cause=REFUSED,
        reason=f"its {worker_exit.role} refuses: {worker_exit.code}: {reason}",
        fix=fix or "put that right",
    )


def ends_by_itself(spine: Spine) -> bool:
    """True if the experiment is paused and needs no command: the obstacle disappears, or is retried."""
    return spine.cause != "" and spine.cause not in PERSONS


def retry_at_ns(spine: Spine) -> int:
    """Returns the time of the retry that ends a `RETRIED_CAUSES` pause; the delay grows with each pause since the last
    new step.
    """
    delay_s = limits.PAUSE_BACKOFF_S[min(max(spine.pauses, 1), len(limits.PAUSE_BACKOFF_S)) - 1]
    return spine.status_ns + round(delay_s * 1e9)


class Hold(msgspec.Struct, frozen=True):
    """The rule stopping a decider, with its numbers as fields and a text for `rftd why`."""

    words: ClassVar[Words]
    """Text of the hold; braces are filled with the hold's fields, the current `stage`, and `next_step`, the next step
    to train.
    """

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the hold's text, filled with its numbers and the present state; `facts` are further values for
        braces.
        """
        spine = state.spine
        names: dict[str, object] = {**msgspec.structs.asdict(self), **facts, "next_step": spine.version + 1}
        if spine.stage >= 0:
            names["stage"] = spine.stage_spec()
        words = self.words
        return words._replace(waiting_for=words.waiting_for.format_map(names), unblock=words.unblock.format_map(names))


class NoStage(Hold, frozen=True):
    """The experiment is in no stage: not begun, ended, or between two stages."""

    words = Words("stage", "the next stage to begin", "controller", "the next stage to begin")


class Paused(Hold, frozen=True):
    """The experiment is paused, by a command or by an obstacle."""

    cause: str = ""
    """Cause of an automatic pause; empty after a pause command."""
    again_ns: int = 0
    """Time of the next retry of a `RETRIED_CAUSES` pause; 0 for other pauses."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text: a commanded pause ends by a command, an automatic one as described by its present cause."""
        if state.spine.cause and state.spine.cause not in PERSONS:
            return Words("paused", wanted(state.spine.cause), "you", "that is fixed; it then continues by itself")
        name = state.spine.spec.name if state.spine.spec is not None else state.experiment
        return Words("paused", "the experiment to be resumed", "you", f"rftd resume {shlex.quote(str(name))}")


class StagePlanned(Hold, frozen=True):
    """The stage needs no further decision: every step is planned, or every group explored."""

    words = Words("stage_planned", "every step of stage {stage.name} is planned", level=Level.DONE)


H = TypeVar("H")
"""Type of the hold in a decider's answer."""


class Decided(NamedTuple, Generic[H]):
    """Answer of a decider: events to append, and the hold against further ones."""

    events: Sequence[Event]
    """Events to append, in order."""
    hold: H | None = None
    """Rule stopping the decider; None if the events have to be folded before the next rule is known."""


class ReadsColumns(Hold, frozen=True):
    """The daemon is still reading the columns needed by a selector."""

    words = Words(
        "columns",
        "the columns {keys} of taskset {taskset}, by which its rows are drawn",
        "daemon",
        "the daemon has read them",
    )
    taskset: str
    """Name of the taskset."""
    keys: str
    """Names of the columns, as text."""


class DrawsRows(Hold, frozen=True):
    """A selector is about to draw the next rows of a taskset, as an event to be appended first."""

    words = Words("draws", "draws the next rows", level=Level.WORKS)
