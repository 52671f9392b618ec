"""`Obstacle` is what an experiment pauses for by itself; here is told, too, what is the end of it instead."""

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
"""Something of a third party that it names is not installed where the workers start."""
NOT_ALLOWED: Final = "not_allowed"
"""The daemon's configuration no longer allows something that the submission was granted."""
WORKER_FAILS: Final = "worker_fails"
"""A worker ended again and again without progress; it is tried anew after a while."""
REFUSED: Final = "refused"
"""The experiment's workers refuse: a model, dataset or artifact is missing, damaged, or not as it was accepted."""
ERROR: Final = "error"
"""A decider in the daemon raised an error: in a part of a third party, or of ours."""
SIGNAL_LOST: Final = "signal_lost"
"""Too many batches in a row taught nothing. Only a person ends this pause: nothing changes by itself."""

TRIED_AGAIN: Final = frozenset((REFUSED, ERROR))
"""Causes of which only going on shows whether they are over: that is tried after a while, later each time."""

PERSONS: Final = frozenset((SIGNAL_LOST, RULE, BUDGET, UNSEEN))
"""Causes of a pause that only a person ends: nothing changes by itself."""

RESUMABLE: Final = TRIED_AGAIN | PERSONS
"""Causes of which a command may end the pause."""

_MENDED_BY_A_PERSON: Final = frozenset(
    kind.code for kind in (DataError, NotFoundError, NotInstalledError, LogCorruptError, DeviceMemoryError)
)
_HOPELESS: Final = frozenset(kind.code for kind in (NonFiniteLossError, RowError, TrainError))
_UNFIT: Final = frozenset(kind.code for kind in (ConfigError, UsageError))
"""The specification, which never changes, does not suit the worker."""
REFUSALS: Final = _MENDED_BY_A_PERSON | _HOPELESS | _UNFIT
"""Codes of errors that ended a worker and that starting it again at once cannot mend."""


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
    """The thing that an experiment paused for an obstacle waits for, in a word or two."""
    return _WANTED.get(cause, "space")


class Obstacle(msgspec.Struct, frozen=True, kw_only=True):
    """A reason to pause, and what helps; the experiment goes on without being asked once it is gone."""

    cause: str
    """A name of those above."""
    reason: str
    fix: str


Trouble: TypeAlias = Obstacle | ExperimentFailed
"""An obstacle in the way of an experiment, or the event that ends it."""


def of_error(role: str, error: BaseException) -> Obstacle:
    """The obstacle that an error means, where a role of an experiment raised it in the daemon."""
    reason = f"{error.code}: {error.what}" if isinstance(error, RftdError) else explain(error)
    fix = (error.fix or "") if isinstance(error, RftdError) else ""
    fix = fix or "see the daemon's log for where it was raised, and correct that part, or what it was given"
    return Obstacle(cause=ERROR, reason=f"the {role} raised {reason}", fix=fix)


def of_decision(role: str, error: BaseException) -> Trouble:
    """The trouble that an error means, where a role raised it while it decided."""
    # A decision that no record can hold would be the same the next time: trying again cannot help.
    if type(error) is not CodecError:
        return of_error(role, error)
    return ExperimentFailed(code=error.code, reason=f"what the {role} decided: {explain(error)}", role=role)


def of_refusal(gone: Gone, *, ours: bool) -> Trouble:
    """The trouble that it means if the only workers of a role refuse; `ours`: they were started here."""
    # A worker that somebody else started may be the wrong one for this experiment: another may suit it.
    if gone.code in _HOPELESS or (ours and gone.code in _UNFIT):
        return ExperimentFailed(code=gone.code, reason=gone.reason, role=gone.role)
    reason, _, fix = gone.reason.partition("; fix: ")
    return Obstacle(
        cause=REFUSED, reason=f"its {gone.role} refuses: {gone.code}: {reason}", fix=fix or "put that right"
    )


def ends_by_itself(spine: Spine) -> bool:
    """True for a pause that needs nobody: its obstacle goes, or is tried again."""
    return spine.cause != "" and spine.cause not in PERSONS


def over_at_ns(spine: Spine) -> int:
    """The end of a pause that is `TRIED_AGAIN`: later the more of them there were since the last new step."""
    delay_s = limits.PAUSE_BACKOFF_S[min(max(spine.pauses, 1), len(limits.PAUSE_BACKOFF_S)) - 1]
    return spine.status_ns + round(delay_s * 1e9)
