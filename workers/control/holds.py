"""Holds: why a decider stops, each the name of one rule with its numbers. A decider returns one beside its events.

A hold is true of the state that was decided on, with the events beside it. Only where there are events there may be no
hold: what stops the decider is known once those are folded. `rftd why` puts holds into words, and asks nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from rftd.streams.decision import Decision
from rftd.streams.events.registry import Event


class NoStage(msgspec.Struct, frozen=True):
    """No stage is under way: the experiment has not begun, has ended, or is between two stages."""


class Paused(msgspec.Struct, frozen=True):
    """The experiment is paused."""

    cause: str = ""
    """The obstacle that it paused for by itself; empty if a command asked for it."""
    again_ns: int = 0
    """The time at which the controller tries to go on, where only that shows whether the obstacle is gone; 0: none."""


class StagePlanned(msgspec.Struct, frozen=True):
    """The stage needs nothing more: every step of it is planned, or every group of it explored."""


class GroupsOpen(msgspec.Struct, frozen=True):
    """Groups of a stage that needs no more of them are still to be closed."""

    groups: int


# Of the controller: what the stage lacks before it is complete.


class GroupsLeft(msgspec.Struct, frozen=True):
    """A stage that only explores has tasks that were not tried."""

    to_give_out: int
    groups: int
    """The number of groups that the stage explores."""


class StepsLeft(msgspec.Struct, frozen=True):
    """The last step of the stage is not executed."""

    done: int
    last: int


class NoCheckpoint(msgspec.Struct, frozen=True):
    """The last step of the stage is executed, and has no checkpoint."""

    step: int


class BooksOpen(msgspec.Struct, frozen=True):
    """Experiences that no batch will hold are still to be retired."""

    experiences: int


class EvalDue(msgspec.Struct, frozen=True):
    """An evaluation of the stage is not complete; this is the oldest."""

    version: int
    taskset: int


# Of the planner: why there is no further plan.


class Collects(msgspec.Struct, frozen=True):
    """The stage keeps what is explored, and trains nothing."""


class NoTrainer(msgspec.Struct, frozen=True):
    """No trainer has taken up the history."""


class StepsAgain(msgspec.Struct, frozen=True):
    """Steps that an earlier generation executed have to be executed again first (rule 8)."""

    first: int
    last: int


class PlannedAhead(msgspec.Struct, frozen=True):
    """The batches of these steps are planned and not trained, and no more may be."""

    first: int
    last: int


class TooFewExperiences(msgspec.Struct, frozen=True):
    """The next batch cannot be filled."""

    step: int
    have: int
    """Experiences that it could hold: ready, and chosen by the stage's policy."""
    need: int
    passed_over: int
    """Ready, and not chosen by the policy."""
    resting: int
    """Used before, and not rested."""
    rested_ns: int | None
    """The time at which the first of them has rested."""
    read_until_ns: int
    """The time at which `max_read_timeout` has passed: then the batch is planned as it is."""


class LastChance(msgspec.Struct, frozen=True):
    """Groups are under way that no batch but the next may hold, and the policy waits for them."""

    step: int
    oldest_version: int
    """The oldest version that one of them began with."""


# Of the dispatcher: why no further group is given out.


class TrainsDataset(msgspec.Struct, frozen=True):
    """The stage trains on the rows of a dataset, without rollouts."""


class NoExplorers(msgspec.Struct, frozen=True):
    """No explorer has joined, or none is heard of."""


class PolicyFull(msgspec.Struct, frozen=True):
    """The stage's policy admits no further group."""

    planned: int
    """Experiences of the stage that were planned."""
    waiting: int
    in_flight: int
    """Rollouts."""


class AllGivenOut(msgspec.Struct, frozen=True):
    """A stage that only explores has given out every task, and some are under way."""

    groups: int


class SyncPoint(msgspec.Struct, frozen=True):
    """Explorers finish every group under way before they take the weights of the next window."""

    window: int
    groups: int


class BeforeWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The trainer has to do its part before the next group may begin."""

    window: int = -1
    """The one that waits to begin; -1: the first, or the style has none."""
    timeout_s: float | None = None
    """The `sync_timeout` that counts for it; None if none does, or if it has passed already."""
    too_old: bool = False
    """The time-out has passed in vain: nothing older may be trained any more."""


class AwaitsAnswer(BeforeWindow, frozen=True, kw_only=True):
    """The trainer was asked for newer weights, and has not answered."""


class AwaitsWeights(BeforeWindow, frozen=True, kw_only=True):
    """The weights that the next group must begin on are not announced."""

    version: int = -1
    """The one that is missing, or the oldest that would do."""


class NoCredits(msgspec.Struct, frozen=True):
    """No explorer has a free place for what comes next."""

    explorers: int
    rollouts: int
    """Leased to them, and not ended."""
    kept: int = 0
    """Explorers that are kept for groups whose workers died."""
    suspects: int = 0
    """The number of these groups."""
    outdated: int = 0
    """Explorers whose weights are too old for what would begin now."""


class NoneAlone(NoCredits, frozen=True):
    """Groups whose workers died wait for an explorer that has nothing else to do."""


# Of the dispatcher, about the oldest evaluation that is due.


class EvalAwaitsWeights(msgspec.Struct, frozen=True):
    """The weights to be evaluated are not announced."""

    version: int
    taskset: int


class EvalUnderWay(msgspec.Struct, frozen=True):
    """Rows of the evaluation are with explorers."""

    version: int
    taskset: int


class EvalAwaitsExplorer(msgspec.Struct, frozen=True):
    """No explorer is free for it: every one evaluates already, if there is any."""

    version: int
    taskset: int
    explorers: int
    """Explorers that may be given rows."""


StageLacks: TypeAlias = GroupsLeft | StepsLeft | NoCheckpoint | GroupsOpen | BooksOpen | EvalDue
ControllerHold: TypeAlias = NoStage | Paused | StageLacks
PlannerHold: TypeAlias = (
    NoStage | Paused | Collects | StagePlanned | NoTrainer | StepsAgain | PlannedAhead | TooFewExperiences | LastChance
)
WindowHold: TypeAlias = SyncPoint | AwaitsAnswer | AwaitsWeights
LeaseHold: TypeAlias = PolicyFull | AllGivenOut | WindowHold | NoCredits | NoneAlone
DispatcherHold: TypeAlias = NoStage | Paused | TrainsDataset | StagePlanned | GroupsOpen | NoExplorers | LeaseHold
EvalHold: TypeAlias = EvalAwaitsWeights | EvalUnderWay | EvalAwaitsExplorer

H = TypeVar("H")


class Decided(NamedTuple, Generic[H]):
    """The answer of a decider: events, and why there are no more."""

    events: Sequence[Event]
    hold: H | None = None
    """The rule that stops it; None only beside events that have to be folded first."""


class Dispatched(NamedTuple):
    """The answer of the dispatcher: decisions, and why no more is given out."""

    decisions: Sequence[Decision]
    hold: DispatcherHold | None = None
    """The rule that stops it; None only beside decisions that have to be folded first."""
    evaluation: EvalHold | None = None
    """The state of the oldest evaluation that is due; None if none is, or beside such decisions."""
