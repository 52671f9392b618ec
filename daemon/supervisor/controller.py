"""`Controller`: decides the life of one experiment. Pure: the folded state in, events out."""

from __future__ import annotations

from collections.abc import Sequence

from rftd.daemon.supervisor.obstacle import REFUSALS, TRIED_AGAIN, Trouble, of_refusal, over_at_ns
from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.streams.events import experiment
from rftd.streams.events.registry import Event
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.spine import Status
from rftd.streams.halves import ROLES
from rftd.workers.dispatcher.collecting import explored
from rftd.workers.dispatcher.evaluation import due_evals


class Controller:
    """Decisions of one experiment's controller. The caller appends them, folds them, and asks again."""

    def __init__(self, state: RunState, *, starts: frozenset[str] = ROLES) -> None:
        """`starts`: the roles whose workers are started by a fleet, which says what their errors mean."""
        self._state = state
        self._starts = starts

    def decide(self, trouble: Trouble | None = None, *, now_ns: int = 0) -> Sequence[Event]:
        """The next event of the experiment's life, if one is due; with `trouble`, only what leads to no work."""
        spine = self._state.spine
        if spine.status is Status.QUEUED:
            return [experiment.ExperimentStarted()]
        if spine.status not in (Status.RUNNING, Status.PAUSED):
            return ()
        if (failure := self._failure()) is not None:
            return [failure]
        trouble = trouble or self._refused()
        if isinstance(trouble, experiment.ExperimentFailed):
            return [trouble]
        if spine.status is Status.PAUSED:
            return self._resumed(trouble, now_ns)
        due = self._next()
        if trouble is None or isinstance(due, experiment.StageCompleted | experiment.ExperimentCompleted):
            return () if due is None else [due]
        return [experiment.ExperimentPaused(reason=f"{trouble.reason}; fix: {trouble.fix}", cause=trouble.cause)]

    def _resumed(self, trouble: Trouble | None, now_ns: int) -> Sequence[Event]:
        """Ends a pause that no command asked for, once nothing stands in the way, or it is time to try."""
        spine = self._state.spine
        if not spine.cause or trouble is not None:
            return ()
        if spine.cause not in TRIED_AGAIN:
            return [experiment.ExperimentResumed(reason=f"{spine.cause} is over")]
        if now_ns < over_at_ns(spine):
            return ()
        return [experiment.ExperimentResumed(reason=f"{spine.cause}: tried again")]

    def _next(self) -> Event | None:
        """What brings a running experiment from stage to stage, and to its end."""
        spine = self._state.spine
        assert spine.spec is not None
        stages = spine.spec.stages
        if spine.stage < 0:
            return experiment.StageStarted(stage=0, name=stages[0].name, first_version=0)
        if not spine.stage_completed:
            if not self._stage_is_done():
                return None
            return experiment.StageCompleted(stage=spine.stage, last_version=spine.last_version)
        if spine.stage + 1 == len(stages):
            return experiment.ExperimentCompleted()
        index = spine.stage + 1
        return experiment.StageStarted(stage=index, name=stages[index].name, first_version=spine.last_version)

    def _stage_is_done(self) -> bool:
        """Every step executed and checkpointed, every evaluation in, every book closed."""
        state, spine = self._state, self._state.spine
        stage = spine.stage_spec()
        trained = stage.kind == "explore" or spine.version >= spine.last_version
        return (
            trained
            and (stage.kind == "explore" or any(step == spine.last_version for step, _ in state.checkpoints))
            and explored(state, stage)
            and not state.groups.to_close
            and not state.ledger.waiting
            and not state.ledger.cooling
            and next(due_evals(state, stage), None) is None
        )

    def _failure(self) -> experiment.ExperimentFailed | None:
        state = self._state
        if (barren := self._barren()) is not None:
            code, reason = state.groups.last_error
            return experiment.ExperimentFailed(
                code=code or RolloutError.code, reason=f"{barren}; the last: {reason}", role="explorer"
            )
        return None

    def _refused(self) -> Trouble | None:
        """What it means that the worker refused its work which left last, of a role that nobody starts here.

        While another one of its role is there it means nothing: an error of a worker is its own.
        """
        roster = self._state.roster
        there = {started.role for started in roster.live.values()}
        for role in sorted(ROLES - self._starts - there):
            last = roster.last_of.get(role)
            if last is not None and last.code in REFUSALS:
                return of_refusal(last, ours=False)
        return None

    def _barren(self) -> str | None:
        """Why the rollouts of the stage will never make a batch, if so many groups in a row came to nothing."""
        spine, groups = self._state.spine, self._state.groups
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
