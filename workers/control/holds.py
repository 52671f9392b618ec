"""Every hold of the controller and the dispatcher; `planner_holds` has the planner's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from rftd.ops.words import Level, Words
from rftd.streams.folds.evaluations import due_evals, eval_id
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.decision import Decision
from rftd.workers.control.hold import DrawsRows, Hold, NoStage, Paused, ReadsColumns, StagePlanned

# Of the controller: conditions for the stage's completion.


class GroupsLeft(Hold, frozen=True):
    """The stage only explores, and tasks are still to be started or finished."""

    words = Words(
        "groups",
        "{to_give_out} of {groups} tasks to be given out, and for tasks under way",
        "explorers",
        "all of them have been tried",
    )
    to_give_out: int
    """Number of tasks not leased yet."""
    groups: int
    """Number of groups explored by the stage."""


class Serves(Hold, frozen=True):
    """The stage answers clients, and ends only by a command."""

    words = Words("serves", "stage {stage.name} answers clients", "you", "rftd cancel", level=Level.WORKS)


class StepsLeft(Hold, frozen=True):
    """The stage's last step is not trained yet."""

    words = Words(
        "steps",
        "the training of stage {stage.name}: {done} of {last} steps are done",
        "trainer",
        "step {last} is executed",
    )
    done: int
    """Number of steps trained."""
    last: int
    """Number of the stage's last step."""


class NoCheckpoint(Hold, frozen=True):
    """The stage's last step is trained but has no checkpoint yet."""

    words = Words("checkpoint", "the checkpoint of step {step}", "trainer", "it is committed")
    step: int
    """Number of the stage's last step."""


class GroupsOpen(Hold, frozen=True):
    """The stage needs no more groups, but some are still open, and have to be closed before it ends."""

    words = Words("groups_close", "{groups} groups of the stage to be closed", "dispatcher", "their leases end")
    groups: int
    """Number of open groups."""


class BooksOpen(Hold, frozen=True):
    """The stage is trained, but experiences without a batch have not been retired yet."""

    words = Words("books_close", "{experiences} experiences to be retired", "planner", "the planner retires them")
    experiences: int
    """Number of experiences to be retired."""


class EvalHold(Hold, frozen=True):
    """Base of holds for an incomplete evaluation of one weight version on one held-out taskset."""

    version: int
    """Weight version to be evaluated."""
    taskset: int
    """Index of the held-out taskset in the stage."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text for the oldest incomplete evaluation, with its progress and the number of others as of this
        call.
        """
        stage = state.spine.stage_spec()
        spec = stage.evals[self.taskset]
        due = sum(1 for _ in due_evals(state, stage))
        more = f" ({due - 1} more are due)" if due > 1 else ""
        evaluation = state.evals.open.get(eval_id(state.experiment, state.spine.stage, self.version, self.taskset))
        rows = f"{evaluation.rows_scored() if evaluation is not None else 0} of {spec.rows} rows are scored"
        subject = f"weight version {self.version} on {spec.name}{more}"
        return super().told(state, now_ns, subject=subject, rows=rows, **facts)


class EvalDue(EvalHold, frozen=True):
    """An evaluation of the stage has to be completed before the stage ends."""

    words = Words("evaluations", "the evaluation of {subject}", "evaluation", "every row is scored")


# Of the dispatcher: reasons against a further group.


class TrainsDataset(Hold, frozen=True):
    """The stage trains on the rows of a dataset, and needs no rollouts."""

    words = Words("no_rollouts", "stage {stage.name} trains on a dataset", level=Level.DONE)


class ClosesGroups(GroupsOpen, frozen=True):
    """The dispatcher is closing the groups of a stage that needs no more, each once its leases have ended."""

    words = Words("closes_groups", "closes {groups} groups of the stage", level=Level.WORKS)


class NoExplorers(Hold, frozen=True):
    """No explorer can take a lease: none has joined, or none sends heartbeats."""

    words = Words("explorers", "an explorer: none has joined, or none sends heartbeats", "fleet", "one joins")


class PolicyFull(Hold, frozen=True):
    """The stage's policy admits no further group, because enough experiences are on their way."""

    words = Words(
        "policy",
        "the policy to admit a group: {planned} planned, {waiting} waiting, {in_flight} in flight "
        "({stage.policy.kind}: max_staleness {stage.policy.max_staleness_versions}, "
        "{stage.policy.max_inflight_batches} batches ahead)",
        "trainer",
        "step {next_step} is executed",
    )
    planned: int
    """Experiences of the stage planned so far."""
    waiting: int
    """Experiences waiting for a batch."""
    in_flight: int
    """Unfinished rollouts."""


class AllGivenOut(Hold, frozen=True):
    """Every task of an exploring stage is leased or done, and some groups are unfinished."""

    words = Words(
        "given_out",
        "{groups} groups under way: every task of stage {stage.name} has been given out",
        "explorers",
        "they are finished",
    )
    groups: int
    """Number of unfinished groups."""


class NoneOffered(Hold, frozen=True):
    """Every conversation committed by clients of a serving stage is already an experience; more are needed."""

    words = Words(
        "feedback",
        "more conversations: {rows} groups of them were committed, and all have been given out",
        "clients",
        "clients give feedback (POST /feedback) and commit it (POST /commit)",
    )
    rows: int
    """Number of groups of conversations committed so far."""


class NoneAdded(Hold, frozen=True):
    """Every task added to the queue is leased or done, and the queue is still open for more."""

    words = Words(
        "tasks",
        "more tasks: {rows} were added, and all have been given out",
        "you",
        "rftd tasks add, or rftd tasks end",
    )
    rows: int
    """Number of tasks added so far."""


class SyncPoint(Hold, frozen=True):
    """Explorers finish every open group before loading the weights of the next window."""

    window: int
    """Window that begins after the sync point."""
    groups: int
    """Number of open groups."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text; the first window has no sync point before it."""
        wait = f"{_before(state, self.window)}{self.groups} groups under way, before explorers load weights"
        return Words("sync_point", wait, "explorers", "they are finished")


def _before(state: RunState, window: int) -> str:
    """Returns the words "sync point before window …" that begin a hold's text; empty before the first window."""
    return f"sync point before window {window} of stage {state.spine.stage_spec().name}: " if window >= 0 else ""


class BeforeWindow(Hold, frozen=True, kw_only=True):
    """Base of holds for weights: the trainer has to act before the next group may begin."""

    window: int = -1
    """Window waiting to begin; -1 for the first one, or a schedule without windows."""
    timeout_s: float | None = None
    """The `sync_timeout` that will end the wait; None without one, or after it has passed."""
    too_old: bool = False
    """True if `sync_timeout` has passed, but the available weights are too old for the staleness bound."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text; a time-out still to come is named as a possible end of the wait."""
        words = super().told(state, now_ns)
        wait, ends = f"{_before(state, self.window)}{words.waiting_for}", words.unblock
        if self.too_old:
            bound = state.spine.stage_spec().policy.max_staleness_versions
            wait += f"; sync_timeout has passed, and older weights are not allowed (max_staleness {bound})"
        if self.timeout_s is not None:
            ends += f", or sync_timeout ({self.timeout_s:g} s) passes"
        return words._replace(waiting_for=wait, unblock=ends)


class AwaitsAnswer(BeforeWindow, frozen=True, kw_only=True):
    """The trainer has not answered a request for newer weights."""

    words = Words(
        "answer",
        "the trainer's answer to a request for newer weights",
        "trainer",
        "it answers after its current step, or at once if it has none",
    )


class AwaitsWeights(BeforeWindow, frozen=True, kw_only=True):
    """The weights needed by the next group are not published yet."""

    words = Words(
        "weights",
        "weight version {version}, with which the next group must begin",
        "trainer",
        "it is trained and published",
    )
    version: int = -1
    """The needed weight version, or the oldest sufficient one."""


class NoCredits(Hold, frozen=True):
    """No explorer has a free slot for another rollout."""

    explorers: int
    """Number of explorers."""
    rollouts: int
    """Unfinished rollouts leased to explorers."""
    kept: int = 0
    """Explorers reserved for groups during which workers died (suspects)."""
    suspects: int = 0
    """Number of groups during which workers died."""
    outdated: int = 0
    """Explorers with weights too old for new rollouts."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text, counting reserved explorers and those with too old weights separately."""
        holders = "1 explorer holds" if self.explorers == 1 else f"{self.explorers} explorers hold"
        wait = f"a free place: {holders} {self.rollouts} rollouts"
        if self.suspects:
            wait += f"; {self.kept} of them are reserved for {self.suspects} tasks during which workers died"
        if self.outdated:
            wait += f"; {self.outdated} of them have yet to load newer weights"
        return Words("credits", wait, "explorers", "rollouts end")


class NoneAlone(NoCredits, frozen=True):
    """No explorer is free of other work, as needed by groups during which workers died."""


# Of the dispatcher, about the oldest evaluation due.


class EvalAwaitsWeights(EvalHold, frozen=True):
    """The weight version to be evaluated is not published yet."""

    words = Words("weights", "{subject}: it has not been published", "trainer", "it is published")


class EvalUnderWay(EvalHold, frozen=True):
    """Rows of the evaluation are leased to explorers, and not all scored."""

    words = Words("scores", "{subject}: {rows}", "explorers", "every row is scored", Level.WORKS)


class EvalAwaitsExplorer(EvalHold, frozen=True):
    """Rows of the evaluation wait for an explorer: each one is evaluating already, or none has joined."""

    words = Words("explorer_free", "{subject}: {explorer}; {rows}", "explorers", "one is free")
    explorers: int
    """Number of explorers able to evaluate."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text: the wait is for an idle explorer, or, without any explorer, for one to join."""
        if self.explorers:
            return super().told(state, now_ns, explorer="an idle explorer")
        words = super().told(state, now_ns, explorer="an explorer")
        return words._replace(state="explorers", on_whom="fleet", unblock="one joins")


StageLacks: TypeAlias = GroupsLeft | Serves | StepsLeft | NoCheckpoint | GroupsOpen | BooksOpen | EvalDue
"""Conditions not yet met for the completion of a stage."""
ControllerHold: TypeAlias = NoStage | Paused | StageLacks
"""Holds of the controller."""
WindowHold: TypeAlias = SyncPoint | AwaitsAnswer | AwaitsWeights
"""Holds of a schedule: the weights of the next group or window are not ready."""
LeaseHold: TypeAlias = (
    PolicyFull | AllGivenOut | NoneOffered | NoneAdded | WindowHold | NoCredits | NoneAlone | ReadsColumns | DrawsRows
)
"""Holds against a further lease."""
DispatcherHold: TypeAlias = NoStage | Paused | TrainsDataset | StagePlanned | ClosesGroups | NoExplorers | LeaseHold
"""Holds of the dispatcher."""


class Dispatched(NamedTuple):
    """Answer of the dispatcher: decisions to append, and the holds against further leases."""

    decisions: Sequence[Decision]
    """Decisions to append, in order."""
    hold: DispatcherHold | None = None
    """Rule against further leases; None if the decisions have to be folded before the next rule is known."""
    evaluation: EvalHold | None = None
    """Hold of the oldest incomplete evaluation; None without one, or if the decisions have to be folded first."""
