"""`Obstacle` is the cause of a pause without a command; errors that end the experiment instead are told apart here."""

from __future__ import annotations

from typing import Final, TypeAlias

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
from rftd.streams.events.experiment import ExperimentFailed
from rftd.streams.folds.roster import Gone
from rftd.streams.folds.scoreboard import RULE
from rftd.streams.folds.spending import BUDGET, UNSEEN
from rftd.streams.folds.spine import Spine

DISK_FULL: Final = "disk_full"
DISK_BUDGET: Final = "disk_budget"
PART_MISSING: Final = "part_missing"
"""A third party's part named by the experiment is not installed where the workers start."""
NOT_ALLOWED: Final = "not_allowed"
"""The daemon's configuration no longer allows something granted to the submission."""
WORKER_FAILS: Final = "worker_fails"
"""A worker ended again and again without progress; it is started anew after a while."""
REFUSED: Final = "refused"
"""The experiment's workers refuse: a model, dataset or artifact is missing, damaged, or changed since acceptance."""
ERROR: Final = "error"
"""A decider in the daemon raised an error: in a part of a third party, or of this project."""
SIGNAL_LOST: Final = "signal_lost"
"""Too many batches in a row taught nothing. Only a person ends this pause: nothing changes by itself."""

TRIED_AGAIN: Final = frozenset((REFUSED, ERROR))
"""Causes whose end only a try can show: a try follows after a while, later each time."""

PERSONS: Final = frozenset((SIGNAL_LOST, RULE, BUDGET, UNSEEN))
"""Causes of a pause with no end but a person's command: nothing changes by itself."""

RESUMABLE: Final = TRIED_AGAIN | PERSONS
"""Causes whose pause a command may end."""

_MENDED_BY_A_PERSON: Final = frozenset(
    kind.code for kind in (DataError, NotFoundError, NotInstalledError, LogCorruptError, DeviceMemoryError)
)
_HOPELESS: Final = frozenset(kind.code for kind in (NonFiniteLossError, RowError, TrainError))
_UNFIT: Final = frozenset(kind.code for kind in (ConfigError, UsageError))
"""The specification never changes, and does not suit the worker."""
REFUSALS: Final = _MENDED_BY_A_PERSON | _HOPELESS | _UNFIT
"""Codes of errors that ended a worker and cannot be mended by an immediate restart."""


_WANTED: Final = {
    PART_MISSING: "a part that is not installed",
    NOT_ALLOWED: "a permission that was withdrawn",
    WORKER_FAILS: "a worker that ends again and again",
    REFUSED: "what its workers refuse to work without",
    ERROR: "an error in the daemon",
    SIGNAL_LOST: "something to learn from",
    RULE: "a decision about its evaluations",
    BUDGET: "a further budget",
    UNSEEN: "somebody to look at it",
}


def wanted(cause: str) -> str:
    """Returns the need of an experiment paused for an obstacle, in a word or two."""
    return _WANTED.get(cause, "space")


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to pause, and its remedy; the experiment continues without a command once the obstacle is gone."""

    cause: str
    """One of the names above."""
    reason: str
    fix: str


Trouble: TypeAlias = Obstacle | ExperimentFailed
"""An obstacle in the way of an experiment, or the event ending the experiment."""


def of_error(role: str, error: BaseException) -> Obstacle:
    """Returns the obstacle of an error raised in the daemon by a role of an experiment."""
    reason = f"{error.code}: {error.what}" if isinstance(error, RftdError) else explain(error)
    fix = (error.fix or "") if isinstance(error, RftdError) else ""
    fix = fix or "see the daemon's log for where it was raised, and correct that part, or what it was given"
    return Obstacle(cause=ERROR, reason=f"the {role} raised {reason}", fix=fix)


def of_decision(role: str, error: BaseException) -> Trouble:
    """Returns the trouble of an error raised by a role during a decision."""
    # A decision too large for any record would be the same the next time: trying again cannot help.
    if type(error) is not CodecError:
        return of_error(role, error)
    return ExperimentFailed(code=error.code, reason=f"what the {role} decided: {explain(error)}", role=role)


def of_refusal(worker_exit: Gone, *, ours: bool) -> Trouble:
    """Returns the trouble of a role whose only workers refuse; `ours`: they were started by this daemon."""
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
    """True for a pause without need of a person: its obstacle goes away, or is tried again."""
    return spine.cause != "" and spine.cause not in PERSONS


def over_at_ns(spine: Spine) -> int:
    """Returns the end of a `TRIED_AGAIN` pause, later with each pause since the last new step."""
    delay_s = limits.PAUSE_BACKOFF_S[min(max(spine.pauses, 1), len(limits.PAUSE_BACKOFF_S)) - 1]
    return spine.status_ns + round(delay_s * 1e9)
