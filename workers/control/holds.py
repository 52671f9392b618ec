"""Every hold of the controller, the planner and the dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from rftd.ops.words import Level, Words
from rftd.streams.folds.evaluations import due_evals, eval_id
from rftd.streams.folds.run_state import RunState
from rftd.streams.log.decision import Decision
from rftd.workers.control.by_evaluation import EvalDecides
from rftd.workers.control.hold import DrawsRows, Hold, NoStage, Paused, ReadsColumns, StagePlanned

# Of the controller: what the stage lacks before it is complete.


class GroupsLeft(Hold, frozen=True):
    """A stage that only explores has tasks that were not tried."""

    words = Words(
        "groups",
        "{to_give_out} of {groups} tasks to be given out, and for those under way",
        "explorers",
        "all of them have been tried",
    )
    to_give_out: int
    groups: int
    """The number of groups that the stage explores."""


class Serves(Hold, frozen=True):
    """A stage that only serves has no end of its own."""

    words = Words("serves", "stage {stage.name} answers clients", "you", "rftd cancel", level=Level.WORKS)


class StepsLeft(Hold, frozen=True):
    """The last step of the stage is not executed."""

    words = Words(
        "steps",
        "the steps of stage {stage.name}: {done} of {last} are done",
        "trainer",
        "the last step is executed",
    )
    done: int
    last: int


class NoCheckpoint(Hold, frozen=True):
    """The last step of the stage is executed, and has no checkpoint."""

    words = Words("checkpoint", "the checkpoint of step {step}", "trainer", "it is committed")
    step: int


class GroupsOpen(Hold, frozen=True):
    """Groups of a stage that needs no more of them are still to be closed."""

    words = Words("groups_close", "{groups} groups of the stage to be closed", "dispatcher", "their leases end")
    groups: int


class BooksOpen(Hold, frozen=True):
    """Experiences that no batch will hold are still to be retired."""

    words = Words("books_close", "{experiences} experiences to be retired", "planner", "the planner retires them")
    experiences: int


class EvalHold(Hold, frozen=True):
    """An evaluation is not complete."""

    version: int
    taskset: int

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """The hold names the oldest; how many wait behind it, and how far it is, is counted when somebody asks."""
        stage = state.spine.stage_spec()
        spec = stage.evals[self.taskset]
        due = sum(1 for _ in due_evals(state, stage))
        more = f" ({due - 1} more are due)" if due > 1 else ""
        open_eval = state.evals.open.get(eval_id(state.experiment, state.spine.stage, self.version, self.taskset))
        rows = f"{open_eval.rows_scored() if open_eval is not None else 0} of {spec.rows} rows are scored"
        subject = f"weight version {self.version} on {spec.name}{more}"
        return super().told(state, now_ns, subject=subject, rows=rows, **facts)


class EvalDue(EvalHold, frozen=True):
    """An evaluation of the stage is not complete; this is the oldest."""

    words = Words("evaluations", "the evaluation of {subject}", "evaluation", "every row is scored")


# Of the planner: why there is no further plan.


class Collects(Hold, frozen=True):
    """The stage keeps what is explored, and trains nothing."""

    words = Words("collects", "stage {stage.name} keeps what is explored, and trains nothing", level=Level.WORKS)


class NoTrainer(Hold, frozen=True):
    """No trainer has taken up the history."""

    words = Words("trainer_takes_up", "a trainer to load the model or the newest checkpoint", "trainer", "it is loaded")


class StepsAgain(Hold, frozen=True):
    """Steps that an earlier generation executed have to be executed again first (rule 8)."""

    words = Words("steps_again", "steps {first} to {last} to be executed again", "trainer", "step {last} is executed")
    first: int
    last: int


class PlannedAhead(Hold, frozen=True):
    """The batches of these steps are planned and not trained, and no more may be."""

    words = Words(
        "plan_ahead",
        "steps {first} to {last}, which are already planned, to be trained",
        "trainer",
        "step {first} is executed",
    )
    first: int
    last: int


_FOR_EVER_S: Final = 365 * 86400.0
"""A patience of more than a year means that none is set: a served experiment waits for its clients."""


class TooFewExperiences(Hold, frozen=True):
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

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """The state says who is at work on what the batch lacks."""
        groups = state.groups.open
        rollouts = sum(len(group.missing) for group in groups.values())
        what = f"experiences for step {self.step}: {self.have} of {self.need} are ready"
        if self.passed_over:
            what += f", and {self.passed_over} more that the policy does not choose yet"
        what += f"; {rollouts} rollouts are under way in {len(groups)} groups"
        if self.rested_ns is not None:
            rest_s = max(0.0, (self.rested_ns - now_ns) / 1e9)
            what += f"; {self.resting} used ones rest, the first for {rest_s:.1f} s more"
        left_s = max(0.0, (self.read_until_ns - now_ns) / 1e9)
        ends = "groups close"
        if left_s < _FOR_EVER_S:
            ends += f", or the batch is planned as it is in {left_s:.0f} s (max_read_timeout)"
        return Words("experiences", what, "explorers" if groups else "dispatcher", ends)


class LastChance(Hold, frozen=True):
    """Groups are under way that no batch but the next may hold, and the policy waits for them."""

    words = Words(
        "last_chance",
        "groups that began with weight version {oldest_version} or newer: step {step} is the last that may use them",
        "explorers",
        "they end (policy wait: true), or max_read_timeout",
    )
    step: int
    oldest_version: int
    """The oldest version that one of them began with."""


# Of the dispatcher: why no further group is given out.


class TrainsDataset(Hold, frozen=True):
    """The stage trains on the rows of a dataset, without rollouts."""

    words = Words("no_rollouts", "stage {stage.name} trains on a dataset", level=Level.DONE)


class ClosesGroups(GroupsOpen, frozen=True):
    """The dispatcher itself closes them, each once its leases are over."""

    words = Words("closes_groups", "closes {groups} groups of the stage", level=Level.WORKS)


class NoExplorers(Hold, frozen=True):
    """No explorer has joined, or none is heard of."""

    words = Words("explorers", "an explorer: none has joined, or none sends heartbeats", "fleet", "one joins")


class PolicyFull(Hold, frozen=True):
    """The stage's policy admits no further group."""

    words = Words(
        "policy",
        "the policy to admit a group: {planned} planned, {waiting} waiting, {in_flight} in flight "
        "({stage.policy.kind}: max_staleness {stage.policy.max_staleness_versions}, "
        "{stage.policy.max_inflight_batches} batches ahead)",
        "trainer",
        "step {next_step} is executed",
    )
    planned: int
    """Experiences of the stage that were planned."""
    waiting: int
    in_flight: int
    """Rollouts."""


class AllGivenOut(Hold, frozen=True):
    """A stage that only explores has given out every task, and some are under way."""

    words = Words(
        "given_out",
        "{groups} groups under way: every task of stage {stage.name} has been given out",
        "explorers",
        "they are finished",
    )
    groups: int


class NoneOffered(Hold, frozen=True):
    """A stage that serves has given out every conversation that was committed."""

    words = Words(
        "feedback",
        "more conversations: {rows} groups of them were committed, and all have been given out",
        "clients",
        "clients give feedback (POST /feedback) and commit it (POST /commit)",
    )
    rows: int


class NoneAdded(Hold, frozen=True):
    """Every task that was added to a queue has been given out, and its end was not told."""

    words = Words(
        "tasks",
        "more tasks: {rows} were added, and all have been given out",
        "you",
        "rftd tasks add, or rftd tasks end",
    )
    rows: int


class SyncPoint(Hold, frozen=True):
    """Explorers finish every group under way before they take the weights of the next window."""

    window: int
    groups: int

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """The first window has no sync point before it."""
        what = f"{_before(state, self.window)}{self.groups} groups under way, before explorers load weights"
        return Words("sync_point", what, "explorers", "they are finished")


def _before(state: RunState, window: int) -> str:
    return f"sync point before window {window} of stage {state.spine.stage_spec().name}: " if window >= 0 else ""


class BeforeWindow(Hold, frozen=True, kw_only=True):
    """The trainer has to do its part before the next group may begin."""

    window: int = -1
    """The one that waits to begin; -1: the first, or the style has none."""
    timeout_s: float | None = None
    """The `sync_timeout` that counts for it; None if none does, or if it has passed already."""
    too_old: bool = False
    """The time-out has passed in vain: nothing older may be trained any more."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """The time-out helps only as long as it has not passed."""
        words = super().told(state, now_ns)
        what, ends = f"{_before(state, self.window)}{words.waiting_for}", words.unblock
        if self.too_old:
            bound = state.spine.stage_spec().policy.max_staleness_versions
            what += f"; sync_timeout has passed, and nothing older may be trained on (max_staleness {bound})"
        if self.timeout_s is not None:
            ends += f", or sync_timeout ({self.timeout_s:g} s) passes"
        return words._replace(waiting_for=what, unblock=ends)


class AwaitsAnswer(BeforeWindow, frozen=True, kw_only=True):
    """The trainer was asked for newer weights, and has not answered."""

    words = Words(
        "answer",
        "the trainer's answer to a request for newer weights",
        "trainer",
        "it answers after its current step, or at once if it has none",
    )


class AwaitsWeights(BeforeWindow, frozen=True, kw_only=True):
    """The weights that the next group must begin on are not announced."""

    words = Words(
        "weights",
        "weight version {version}, with which the next group must begin",
        "trainer",
        "it is trained and published",
    )
    version: int = -1
    """The one that is missing, or the oldest that would do."""


class NoCredits(Hold, frozen=True):
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

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Explorers that could take nothing anyway are told apart."""
        holders = "1 explorer holds" if self.explorers == 1 else f"{self.explorers} explorers hold"
        what = f"a free place: {holders} {self.rollouts} rollouts"
        if self.suspects:
            what += f"; {self.kept} of them are reserved for {self.suspects} tasks during which workers died"
        if self.outdated:
            what += f"; {self.outdated} of them have yet to load newer weights"
        return Words("credits", what, "explorers", "rollouts end")


class NoneAlone(NoCredits, frozen=True):
    """Groups whose workers died wait for an explorer that has nothing else to do."""


# Of the dispatcher, about the oldest evaluation that is due.


class EvalAwaitsWeights(EvalHold, frozen=True):
    """The weights to be evaluated are not announced."""

    words = Words("weights", "{subject}: it has not been published", "trainer", "it is published")


class EvalUnderWay(EvalHold, frozen=True):
    """Rows of the evaluation are with explorers."""

    words = Words("scores", "{subject}: {rows}", "explorers", "every row is scored", Level.WORKS)


class EvalAwaitsExplorer(EvalHold, frozen=True):
    """No explorer is free for it: every one evaluates already, if there is any."""

    words = Words("explorer_free", "{subject}: {explorer}; {rows}", "explorers", "one is free")
    explorers: int
    """Explorers that may be given rows."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """The words of a wait for an idle explorer; where there is none, one has to join first."""
        if self.explorers:
            return super().told(state, now_ns, explorer="an idle explorer")
        words = super().told(state, now_ns, explorer="an explorer")
        return words._replace(state="explorers", on_whom="fleet", unblock="one joins")


StageLacks: TypeAlias = GroupsLeft | Serves | StepsLeft | NoCheckpoint | GroupsOpen | BooksOpen | EvalDue
ControllerHold: TypeAlias = NoStage | Paused | StageLacks
TooFew: TypeAlias = TooFewExperiences | LastChance
PlannerHold: TypeAlias = (
    NoStage | Paused | Collects | StagePlanned | NoTrainer | StepsAgain | EvalDecides | PlannedAhead | TooFew
)
WindowHold: TypeAlias = SyncPoint | AwaitsAnswer | AwaitsWeights
LeaseHold: TypeAlias = (
    PolicyFull | AllGivenOut | NoneOffered | NoneAdded | WindowHold | NoCredits | NoneAlone | ReadsColumns | DrawsRows
)
DispatcherHold: TypeAlias = NoStage | Paused | TrainsDataset | StagePlanned | ClosesGroups | NoExplorers | LeaseHold


class Dispatched(NamedTuple):
    """The answer of the dispatcher: decisions, and why no more is given out."""

    decisions: Sequence[Decision]
    hold: DispatcherHold | None = None
    """The rule that stops it; None only beside decisions that have to be folded first."""
    evaluation: EvalHold | None = None
    """The state of the oldest evaluation that is due; None if none is, or beside such decisions."""
