"""`Controller` decides the life of one experiment. It is pure: the folded state goes in, events come out."""

from __future__ import annotations

from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.streams.evaluations import due_evals
from rftd.streams.events import experiment
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.split_submission import ROLES
from rftd.workers.control.budgets import budget_pause
from rftd.workers.control.by_evaluation import decided_by_evaluation, demanded_pause
from rftd.workers.control.closing import explored, left_to_collect
from rftd.workers.control.hold import Decided, NoStage, Paused
from rftd.workers.control.holds import (
    BooksOpen,
    ControllerHold,
    EvalDue,
    GroupsLeft,
    GroupsOpen,
    NoCheckpoint,
    Serves,
    StageLacks,
    StepsLeft,
)
from rftd.workers.control.lost_signal import declarations, idle_trouble
from rftd.workers.control.obstacle import REFUSALS, TRIED_AGAIN, Trouble, ends_by_itself, of_refusal, over_at_ns


class Controller:
    """Decisions of one experiment's controller. The caller appends them, folds them, and asks again."""

    def __init__(self, state: RunState, *, starts: frozenset[str] = ROLES) -> None:
        """`starts`: the roles whose workers are started by a fleet, which says what their errors mean."""
        self._state = state
        self._starts = starts

    def decide(self, trouble: Trouble | None = None, *, now_ns: int = 0) -> Decided[ControllerHold]:
        """The next event of the experiment's life, or why none is due; with `trouble`, only what leads to no work."""
        spine = self._state.spine
        if spine.status is Status.QUEUED:
            return Decided([experiment.ExperimentStarted()])
        if spine.status not in (Status.RUNNING, Status.PAUSED):
            return Decided((), NoStage())
        # Before what ends it: the last batches count, too.
        if told := [*declarations(self._state), *decided_by_evaluation(self._state)]:
            return Decided(told)
        # Before the trouble: what has failed for good needs no pause, and would otherwise fail only after it.
        if (failure := self._failure()) is not None:
            return Decided([failure])
        trouble = trouble or self._refused()
        if isinstance(trouble, experiment.ExperimentFailed):
            return Decided([trouble])
        if spine.status is Status.PAUSED:
            return self._resumed(trouble, now_ns)
        trouble = trouble or idle_trouble(self._state) or demanded_pause(self._state)
        trouble = trouble or budget_pause(self._state, now_ns)
        due = self._next()
        # What is complete needs nobody any more, so a full disk or a refusing worker is no reason to pause
        # before the end.
        ends = (experiment.StageCompleted, experiment.ExperimentCompleted)
        if trouble is None or any(isinstance(event, ends) for event in due.events):
            return due
        paused = experiment.ExperimentPaused(reason=f"{trouble.reason}; fix: {trouble.fix}", cause=trouble.cause)
        return Decided([paused])

    def _resumed(self, trouble: Trouble | None, now_ns: int) -> Decided[ControllerHold]:
        """Ends a pause that no command asked for, once nothing stands in the way, or it is time to try."""
        spine = self._state.spine
        # A pause without a cause was asked for by a command, and only a command ends it; so it is with those of
        # `PERSONS`, whose reason does not go away.
        if not ends_by_itself(spine) or trouble is not None:
            return Decided((), Paused(spine.cause))
        if spine.cause not in TRIED_AGAIN:
            return Decided([experiment.ExperimentResumed(reason=f"{spine.cause} is over")])
        if now_ns < (again_ns := over_at_ns(spine)):
            return Decided((), Paused(spine.cause, again_ns))
        return Decided([experiment.ExperimentResumed(reason=f"{spine.cause}: tried again")])

    def _next(self) -> Decided[ControllerHold]:
        """The event that brings a running experiment to its next stage or its end; or what its stage lacks."""
        spine = self._state.spine
        assert spine.spec is not None
        stages = spine.spec.stages
        if spine.stage < 0:
            return Decided([experiment.StageStarted(stage=0, name=stages[0].name, first_version=0)])
        if not spine.stage_completed:
            lacks = self._lacks()
            completed = experiment.StageCompleted(stage=spine.stage, last_version=spine.last_version)
            return Decided([completed]) if lacks is None else Decided((), lacks)
        if spine.stage + 1 == len(stages):
            return Decided([experiment.ExperimentCompleted()])
        index = spine.stage + 1
        return Decided(
            [experiment.StageStarted(stage=index, name=stages[index].name, first_version=spine.last_version)]
        )

    def _lacks(self) -> StageLacks | None:
        """The first that the stage lacks: its steps, their checkpoint, closed groups, closed books, evaluations."""
        state = self._state
        spine = self._state.spine
        stage = spine.stage_spec()
        if stage.kind == "explore":
            if stage.serving is not None and left_to_collect(state, stage):
                return Serves()
            if not explored(state, stage):
                return GroupsLeft(left_to_collect(state, stage), stage.collect_groups)
        elif spine.version < spine.last_version or not explored(state, stage):
            return StepsLeft(spine.version if spine.generation >= 0 else spine.furthest, spine.last_version)
        # Before the stage completes: the next one begins on that checkpoint, and an experiment's result is its
        # last one.
        elif not any(step == spine.last_version for step, _ in state.checkpoints):
            return NoCheckpoint(spine.last_version)
        if state.groups.to_close:
            return GroupsOpen(state.groups.to_close)
        if left := len(state.replay_buffer.waiting) + len(state.replay_buffer.cooling):
            return BooksOpen(left)
        # Last, for evaluations need the last weights and free explorers; the first that is due names what is
        # waited for.
        oldest = next(due_evals(state, stage), None)
        return None if oldest is None else EvalDue(*oldest)

    def _failure(self) -> experiment.ExperimentFailed | None:
        state = self._state
        if (barren := self._barren()) is not None:
            code, reason = state.groups.last_error
            return experiment.ExperimentFailed(
                code=code or RolloutError.code, reason=f"{barren}; the last: {reason}", role="explorer"
            )
        return None

    def _refused(self) -> Trouble | None:
        """The trouble that it means if the last worker of a role that nobody starts here refused; None if it did not.

        While another one of the role is there it means nothing: an error of a worker is its own.
        """
        roster = self._state.roster
        there = {started.role for started in roster.live.values()}
        for role in sorted(ROLES - self._starts - there):
            last = roster.last_of.get(role)
            if last is not None and last.code in REFUSALS:
                return of_refusal(last, ours=False)
        return None

    def _barren(self) -> str | None:
        """The reason why rollouts will never make a batch, once enough groups in a row came to nothing; else None."""
        spine = self._state.spine
        groups = self._state.groups
        if spine.stage < 0 or (stage := spine.stage_spec()).kind == "train":
            return None
        if stage.kind != "explore" and spine.planned >= spine.last_version:  # the rest is closed without its rollouts
            return None
        empty = groups.short_in_a_row(spine.stage, 1)
        if empty >= limits.FAILED_GROUPS_IN_A_ROW:
            return f"no rollout of {empty} groups in a row succeeded"
        minimum = min(stage.policy.min_group_members, stage.algorithm.repeat_times)
        batch_groups = -(-stage.experiences_per_step // stage.algorithm.repeat_times)
        short = groups.short_in_a_row(spine.stage, minimum)
        if short < limits.INCOMPLETE_BATCHES_IN_A_ROW * batch_groups:
            return None
        return (
            f"fewer than {minimum} of {stage.algorithm.repeat_times} rollouts succeeded in each of {short} groups in a "
            f"row, and a group needs {minimum} to be trained; fix: see why rollouts fail "
            "(rftd events NAME --type rollout.failed), correct the workflow, or raise explorer.max_timeout"
        )
