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

# Of the controller: conditions for the stage's completion.


class GroupsLeft(Hold, frozen=True):
    """A stage that only explores has untried tasks."""

    words = Words(
        "groups",
        "{to_give_out} of {groups} tasks to be given out, and for tasks under way",
        "explorers",
        "all of them have been tried",
    )
    to_give_out: int
    groups: int
    """Number of groups explored by the stage."""


class Serves(Hold, frozen=True):
    """A stage that only serves never ends by itself."""

    words = Words("serves", "stage {stage.name} answers clients", "you", "rftd cancel", level=Level.WORKS)


class StepsLeft(Hold, frozen=True):
    """The last step of the stage is not executed yet; `done` of `last` steps are."""

    words = Words(
        "steps",
        "the training of stage {stage.name}: {done} of {last} steps are done",
        "trainer",
        "step {last} is executed",
    )
    done: int
    last: int


class NoCheckpoint(Hold, frozen=True):
    """The last step of the stage is executed, and has no checkpoint."""

    words = Words("checkpoint", "the checkpoint of step {step}", "trainer", "it is committed")
    step: int


class GroupsOpen(Hold, frozen=True):
    """Groups of a stage without need of more are still to be closed."""

    words = Words("groups_close", "{groups} groups of the stage to be closed", "dispatcher", "their leases end")
    groups: int


class BooksOpen(Hold, frozen=True):
    """Experiences without a batch are still to be retired."""

    words = Words("books_close", "{experiences} experiences to be retired", "planner", "the planner retires them")
    experiences: int


class EvalHold(Hold, frozen=True):
    """An evaluation is not complete: one weight version on one held-out taskset."""

    version: int
    taskset: int

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text of the oldest evaluation due; the number of due ones and the progress are counted at this
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
    """The oldest evaluation of the stage is not complete."""

    words = Words("evaluations", "the evaluation of {subject}", "evaluation", "every row is scored")


# Of the planner: reasons against a further plan.


class Collects(Hold, frozen=True):
    """The stage only explores: it keeps the experiences, and trains nothing."""

    words = Words("collects", "stage {stage.name} only collects experiences, and trains nothing", level=Level.WORKS)


class NoTrainer(Hold, frozen=True):
    """No trainer has resumed the history: none has loaded the model or a checkpoint."""

    words = Words(
        "trainer_takes_up", "a trainer to load the model or the newest checkpoint", "trainer", "the model is loaded"
    )


class StepsAgain(Hold, frozen=True):
    """Steps executed by an earlier generation have to be executed again first (rule 8)."""

    words = Words("steps_again", "steps {first} to {last} to be executed again", "trainer", "step {last} is executed")
    first: int
    last: int


class PlannedAhead(Hold, frozen=True):
    """The batches of these steps are planned and untrained, and no further one is allowed."""

    words = Words(
        "plan_ahead",
        "steps {first} to {last}, which are already planned, to be trained",
        "trainer",
        "step {first} is executed",
    )
    first: int
    last: int


_FOR_EVER_S: Final = 365 * 86400.0
"""A time-out of more than a year counts as none: a served experiment waits for its clients."""


class TooFewExperiences(Hold, frozen=True):
    """The next batch cannot be filled."""

    step: int
    have: int
    """Experiences fit for the batch: ready, and chosen by the stage's policy."""
    need: int
    passed_over: int
    """Ready experiences, not chosen by the policy."""
    resting: int
    """Used experiences in their cooldown."""
    rested_ns: int | None
    """Time at which the first cooldown ends."""
    read_until_ns: int
    """Time at which `max_read_timeout` passes: then an incomplete batch is planned."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text, with the rollouts under way for the batch as the state counts them now."""
        groups = state.groups.open
        rollouts = sum(len(group.missing) for group in groups.values())
        wait = f"experiences for step {self.step}: {self.have} of {self.need} are ready"
        if self.passed_over:
            wait += f", and {self.passed_over} more that the policy does not choose yet"
        wait += f"; {rollouts} rollouts are under way in {len(groups)} groups"
        if self.rested_ns is not None:
            cooldown_s = max(0.0, (self.rested_ns - now_ns) / 1e9)
            wait += f"; {self.resting} used ones rest, the first for {cooldown_s:.1f} s more"
        left_s = max(0.0, (self.read_until_ns - now_ns) / 1e9)
        ends = "groups close"
        if left_s < _FOR_EVER_S:
            ends += f", or an incomplete batch is planned in {left_s:.0f} s (max_read_timeout)"
        return Words("experiences", wait, "explorers" if groups else "dispatcher", ends)


class LastChance(Hold, frozen=True):
    """Groups under way fit only the next batch, and the policy waits for them."""

    words = Words(
        "last_chance",
        "groups that began with weight version {oldest_version} or newer: step {step} is the last that may use them",
        "explorers",
        "they end (policy wait: true), or max_read_timeout",
    )
    step: int
    oldest_version: int
    """Oldest weight version at the beginning of one of these groups."""


# Of the dispatcher: reasons against a further group.


class TrainsDataset(Hold, frozen=True):
    """The stage trains on the rows of a dataset, without rollouts."""

    words = Words("no_rollouts", "stage {stage.name} trains on a dataset", level=Level.DONE)


class ClosesGroups(GroupsOpen, frozen=True):
    """The dispatcher itself closes the groups, each once its leases are over."""

    words = Words("closes_groups", "closes {groups} groups of the stage", level=Level.WORKS)


class NoExplorers(Hold, frozen=True):
    """No explorer has joined, or none sends heartbeats."""

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
    """Experiences of the stage planned so far."""
    waiting: int
    in_flight: int
    """Rollouts under way."""


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
    """A serving stage has given out every committed conversation."""

    words = Words(
        "feedback",
        "more conversations: {rows} groups of them were committed, and all have been given out",
        "clients",
        "clients give feedback (POST /feedback) and commit it (POST /commit)",
    )
    rows: int


class NoneAdded(Hold, frozen=True):
    """Every task added to a queue has been given out, and the queue has not been ended."""

    words = Words(
        "tasks",
        "more tasks: {rows} were added, and all have been given out",
        "you",
        "rftd tasks add, or rftd tasks end",
    )
    rows: int


class SyncPoint(Hold, frozen=True):
    """Explorers finish every group under way before loading the weights of the next window."""

    window: int
    groups: int

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text; the first window has no sync point before it."""
        wait = f"{_before(state, self.window)}{self.groups} groups under way, before explorers load weights"
        return Words("sync_point", wait, "explorers", "they are finished")


def _before(state: RunState, window: int) -> str:
    return f"sync point before window {window} of stage {state.spine.stage_spec().name}: " if window >= 0 else ""


class BeforeWindow(Hold, frozen=True, kw_only=True):
    """The trainer has to act before the next group may begin."""

    window: int = -1
    """Window waiting to begin; -1: the first, or a style without windows."""
    timeout_s: float | None = None
    """The `sync_timeout` in force for the window; None without one, or after it has passed."""
    too_old: bool = False
    """True: the time-out has passed in vain, because older weights may not be trained any more."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text; a time-out is offered as an end only until it has passed."""
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
    """The weights required by the next group are not announced."""

    words = Words(
        "weights",
        "weight version {version}, with which the next group must begin",
        "trainer",
        "it is trained and published",
    )
    version: int = -1
    """The missing version, or the oldest sufficient one."""


class NoCredits(Hold, frozen=True):
    """No explorer has a free slot for the next lease."""

    explorers: int
    rollouts: int
    """Rollouts leased to the explorers and not ended."""
    kept: int = 0
    """Explorers reserved for groups whose workers died."""
    suspects: int = 0
    """Number of groups whose workers died."""
    outdated: int = 0
    """Explorers with weights too old for new rollouts."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text, with reserved and outdated explorers counted separately."""
        holders = "1 explorer holds" if self.explorers == 1 else f"{self.explorers} explorers hold"
        wait = f"a free place: {holders} {self.rollouts} rollouts"
        if self.suspects:
            wait += f"; {self.kept} of them are reserved for {self.suspects} tasks during which workers died"
        if self.outdated:
            wait += f"; {self.outdated} of them have yet to load newer weights"
        return Words("credits", wait, "explorers", "rollouts end")


class NoneAlone(NoCredits, frozen=True):
    """Groups whose workers died wait for an explorer without other work."""


# Of the dispatcher, about the oldest evaluation due.


class EvalAwaitsWeights(EvalHold, frozen=True):
    """The weights to be evaluated are not announced."""

    words = Words("weights", "{subject}: it has not been published", "trainer", "it is published")


class EvalUnderWay(EvalHold, frozen=True):
    """Rows of the evaluation are leased to explorers."""

    words = Words("scores", "{subject}: {rows}", "explorers", "every row is scored", Level.WORKS)


class EvalAwaitsExplorer(EvalHold, frozen=True):
    """No explorer is free for the evaluation: each one evaluates already, if there is any."""

    words = Words("explorer_free", "{subject}: {explorer}; {rows}", "explorers", "one is free")
    explorers: int
    """Explorers fit for leases of rows."""

    def told(self, state: RunState, now_ns: int, **facts: str) -> Words:
        """Returns the text of a wait for an idle explorer; without any explorer, one has to join first."""
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
    """Answer of the dispatcher: decisions, and the hold against further leases."""

    decisions: Sequence[Decision]
    hold: DispatcherHold | None = None
    """Rule stopping the dispatcher; None only beside decisions to be folded first."""
    evaluation: EvalHold | None = None
    """Hold of the oldest evaluation due; None without one, or beside decisions to be folded first."""
