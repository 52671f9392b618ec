"""`Controller` decides the life of one experiment: begins and ends stages, pauses, fails. Pure: folded state in, events
out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.streams.events import experiment
from rftd.streams.events.experiment import SignalLost, SignalRegained
from rftd.streams.folds import signal
from rftd.streams.folds.evaluations import due_evals
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.signal import SignalChange
from rftd.streams.folds.spine import Status
from rftd.streams.spec.spec import StageSpec
from rftd.streams.spec.split_submission import ROLES
from rftd.workers.control.budgets import budget_pause
from rftd.workers.control.by_evaluation import decided_by_evaluation, demanded_pause
from rftd.workers.control.closing import is_explored, left_to_collect
from rftd.workers.control.hold import (
    REFUSALS,
    RETRIED_CAUSES,
    SIGNAL_LOST,
    Decided,
    NoStage,
    Obstacle,
    Paused,
    Trouble,
    ends_by_itself,
    retry_at_ns,
    trouble_of_refusal,
)
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


class Controller:
    """The deciding part of one experiment's controller; callers append its events, fold them, and call
    `decide` again.
    """

    def __init__(self, state: RunState, *, starts: frozenset[str] = ROLES) -> None:
        """Decides for the run in `state`. `starts` are the roles whose workers this daemon's fleet starts and judges;
        the controller itself judges refusals by workers of all other roles.
        """
        self._state = state
        self._starts = starts

    def decide(self, trouble: Trouble | None = None, *, now_ns: int = 0) -> Decided[ControllerHold]:
        """Returns the next event of the experiment's life, or the hold explaining why there is none.

        With `trouble` (an obstacle or a final error), only a pause, a failure or another event without new work is
        returned.
        """
        spine = self._state.spine
        if spine.status is Status.QUEUED:
            return Decided([experiment.ExperimentStarted()])
        if spine.status not in (Status.RUNNING, Status.PAUSED):
            return Decided((), NoStage())
        # Before the end of the stage: the last batches count, too.
        if declared := [*declarations(self._state), *decided_by_evaluation(self._state.spine)]:
            return Decided(declared)
        # Before the trouble: a permanent failure needs no pause first.
        if (failure := self._failure()) is not None:
            return Decided([failure])
        trouble = trouble or self._refusal_trouble()
        if isinstance(trouble, experiment.ExperimentFailed):
            return Decided([trouble])
        if spine.status is Status.PAUSED:
            return self._end_pause(trouble, now_ns)
        trouble = trouble or idle_trouble(self._state) or demanded_pause(self._state.spine)
        trouble = trouble or budget_pause(self._state, now_ns)
        due = self._next()
        # A complete experiment needs no worker, so a full disk or a refusing worker is no reason to pause before the
        # end.
        endings = (experiment.StageCompleted, experiment.ExperimentCompleted)
        if trouble is None or any(isinstance(event, endings) for event in due.events):
            return due
        paused = experiment.ExperimentPaused(reason=f"{trouble.reason}; fix: {trouble.fix}", cause=trouble.cause)
        return Decided([paused])

    def _end_pause(self, trouble: Trouble | None, now_ns: int) -> Decided[ControllerHold]:
        """Returns the event ending a pause whose obstacle is gone or whose retry is due; otherwise the hold of the
        pause.
        """
        spine = self._state.spine
        # A pause without a cause came from a command, and only a command ends it; the causes in `PERSONS` do not go
        # away by themselves either.
        if not ends_by_itself(spine) or trouble is not None:
            return Decided((), Paused(spine.cause))
        if spine.cause not in RETRIED_CAUSES:
            return Decided([experiment.ExperimentResumed(reason=f"{spine.cause} is over")])
        if now_ns < (again_ns := retry_at_ns(spine)):
            return Decided((), Paused(spine.cause, again_ns))
        return Decided([experiment.ExperimentResumed(reason=f"{spine.cause}: tried again")])

    def _next(self) -> Decided[ControllerHold]:
        """Returns the event completing the stage, beginning the next one, or completing the experiment; or the hold of
        the running stage.
        """
        spine = self._state.spine
        assert spine.spec is not None
        stages = spine.spec.stages
        if spine.stage < 0:
            return Decided([experiment.StageStarted(stage=0, name=stages[0].name, first_version=0)])
        if not spine.stage_completed:
            lacks = self._first_lack()
            completed = experiment.StageCompleted(stage=spine.stage, last_version=spine.last_version)
            return Decided([completed]) if lacks is None else Decided((), lacks)
        if spine.stage + 1 == len(stages):
            return Decided([experiment.ExperimentCompleted()])
        index = spine.stage + 1
        return Decided(
            [experiment.StageStarted(stage=index, name=stages[index].name, first_version=spine.last_version)]
        )

    def _first_lack(self) -> StageLacks | None:
        """Returns the first unmet condition for the completion of the stage, as a hold: steps, their checkpoint, closed
        groups, retired experiences, evaluations. None if all are met.
        """
        state = self._state
        spine = self._state.spine
        stage = spine.stage_spec()
        if stage.kind == "explore":
            if stage.serving is not None and left_to_collect(state, stage):
                return Serves()
            if not is_explored(state, stage):
                return GroupsLeft(left_to_collect(state, stage), stage.collect_groups)
        elif spine.version < spine.last_version or not is_explored(state, stage):
            return StepsLeft(spine.version if spine.generation >= 0 else spine.furthest, spine.last_version)
        # Before the stage completes: the next one begins on this checkpoint, and the last one is the experiment's
        # product.
        elif not any(step == spine.last_version for step, _ in state.checkpoints):
            return NoCheckpoint(spine.last_version)
        if state.groups.to_close:
            return GroupsOpen(state.groups.to_close)
        if unretired := len(state.replay_buffer.waiting) + len(state.replay_buffer.cooling):
            return BooksOpen(unretired)
        # Last, because evaluations need the last weights and free explorers; the first one due is named in the hold.
        oldest = next(due_evals(state, stage), None)
        return None if oldest is None else EvalDue(*oldest)

    def _failure(self) -> experiment.ExperimentFailed | None:
        """Returns the failure of the experiment if its rollouts can never make a batch; else None."""
        state = self._state
        if (barren := self._barren_reason()) is not None:
            code, reason = state.groups.last_error
            return experiment.ExperimentFailed(
                code=code or RolloutError.code, reason=f"{barren}; the last: {reason}", role="explorer"
            )
        return None

    def _refusal_trouble(self) -> Trouble | None:
        """Returns the trouble after a refusal by the last worker of a role without a local fleet; None without a
        refusal.

        While another worker of the role is alive there is no trouble: an error of one worker is its own.
        """
        roster = self._state.roster
        live_roles = {started.role for started in roster.live.values()}
        for role in sorted(ROLES - self._starts - live_roles):
            last = roster.last_of.get(role)
            if last is not None and last.code in REFUSALS:
                return trouble_of_refusal(last, ours=False)
        return None

    def _barren_reason(self) -> str | None:
        """Returns why the stage's rollouts will never fill a batch, after too many consecutive failed groups; None
        before that.
        """
        spine = self._state.spine
        groups = self._state.groups
        if spine.stage < 0 or (stage := spine.stage_spec()).kind == "train":
            return None
        if (
            stage.kind != "explore" and spine.planned >= spine.last_version
        ):  # the other groups are closed without their rollouts
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


_BARREN_GROUPS: Final = limits.FAILED_GROUPS_IN_A_ROW // 2
"""Number of consecutive groups without any successful rollout after which rollouts count as failing."""
_SHORT_BATCHES: Final = limits.INCOMPLETE_BATCHES_IN_A_ROW // 5
"""Number of batches' worth of consecutive groups with too few members to train after which rollouts count
as failing.
"""


class _Words(NamedTuple):
    """Texts of a cause, with the `change` and its `stage` in braces."""

    reason: str
    """Why the batch had no learning signal."""
    fix: str
    """Advice to the owner of the experiment."""


_WORDS: Final = {
    signal.NOT_FINITE: _Words(
        "the step was skipped: {change.detail}",
        "lower algorithm.optimizer.lr, or look at the batch's rewards (rftd experiences ls NAME --order=reward)",
    ),
    signal.ALL_PROMPTS_CUT: _Words(
        "every prompt is longer than max_prompt_tokens ({stage.model.max_prompt_tokens}) and was cut, so no token is "
        "trained",
        "raise model.max_prompt_tokens, or shorten the prompts",
    ),
    signal.ALL_ANSWERS_CUT: _Words(
        "every answer was cut at max_response_tokens ({stage.model.max_response_tokens}), before its end",
        "raise model.max_response_tokens, or let the prompt ask for shorter answers",
    ),
    signal.ALL_ANSWERS_EMPTY: _Words(
        "every answer is empty: the model ends it at once",
        "check the chat template and the stop settings of the taskset (format, rollout_args), and model_path",
    ),
    signal.NO_TOKENS: _Words(
        "no token of the batch is trained: each is masked",
        "look at an experience (rftd experiences show NAME ID --tokens), then at the workflow's masks, "
        "max_prompt_tokens and mask_truncated",
    ),
    signal.LEARNING_RATE_ZERO: _Words("the learning rate is zero", "set algorithm.optimizer.lr above 0"),
    signal.SOLVED: _Words(
        "every answer earns the full reward: {change.lowest:g}",
        "stop the run or use harder tasks; if this looks wrong, check the reward function",
    ),
    signal.REWARDS_EQUAL: _Words(
        "the rewards are equal within every group ({rewards}), so no answer is better than another",
        "compare answers with the truth (rftd experiences ls NAME), then check format.response_key and the reward "
        "function; or give easier tasks, a higher temperature, or a larger algorithm.repeat_times",
    ),
    signal.ADVANTAGE_ZERO: _Words(
        "rewards differ, and the advantage of every trained token is zero",
        "check algorithm.advantage_fn and its arguments (std_threshold), and the tokens that masks leave for training",
    ),
    signal.GRADIENT_ZERO: _Words(
        "tokens are trained, and their gradient is zero",
        "check what clips or masks every token: algorithm.policy_loss_fn_args, corrections",
    ),
    signal.FILTERED: _Words(
        "every group is left out as uninformative (rewards from {change.lowest:g} to {change.highest:g}), so no batch "
        "is formed",
        "check format.response_key and the reward function; or give easier or harder tasks, or lower "
        "advantage_fn_args.std_threshold, or the thresholds of data_processor.experience_pipeline",
    ),
}
"""Texts by cause of a batch without a learning signal."""


def declarations(state: RunState) -> list[SignalLost | SignalRegained]:
    """Returns the changes of the learning signal not yet in the log, in order; without any, the loss of the signal by
    failing rollouts if due.
    """
    spine = state.spine
    if spine.spec is None:
        return []
    due: list[SignalLost | SignalRegained] = [
        _event(change, spine.spec.stages[change.stage])
        for change in spine.signal.undeclared
        if change.stage < len(spine.spec.stages)
    ]
    failing = _loss_by_failed_rollouts(state)
    return due or ([] if failing is None else [failing])


def idle_trouble(state: RunState) -> Obstacle | None:
    """Returns the pause due after `max_idle_steps` consecutive batches without a learning signal; None before that.

    Also None if the signal is lost because every answer earns the full reward.
    """
    spine = state.spine
    if spine.stage < 0 or spine.stage_completed or spine.signal.cause not in _WORDS:
        return None
    max_idle = spine.stage_spec().trainer.max_idle_steps
    idle = spine.signal.idle_batches
    if not max_idle or idle < max_idle or spine.signal.lost is None:
        return None
    lost = spine.signal.lost
    return Obstacle(
        cause=SIGNAL_LOST,
        reason=f"{idle} batches in a row taught nothing: {lost.reason}",
        fix=f"{lost.fix} (rftd fork with the field changed); or continue unchanged: rftd resume",
    )


def _event(change: SignalChange, stage: StageSpec) -> SignalLost | SignalRegained:
    """Returns the event of a change of the signal, with the texts of its cause."""
    if not change.cause:
        return SignalRegained(number=change.number, stage=change.stage, step=change.step)
    words = _WORDS[change.cause]
    low = f"{change.lowest:g}"
    high = f"{change.highest:g}"
    rewards = f"all {low}" if low == high else f"group by group from {low} to {high}"
    return SignalLost(
        number=change.number,
        stage=change.stage,
        step=change.step,
        cause=change.cause,
        reason=words.reason.format(change=change, stage=stage, rewards=rewards),
        fix=words.fix,
    )


def _loss_by_failed_rollouts(state: RunState) -> SignalLost | None:
    """Returns the signal.lost due after many consecutive groups with too few successful rollouts to be trained; None
    before that.
    """
    spine = state.spine
    if spine.signal.cause or spine.stage < 0 or spine.stage_completed or spine.stage_spec().kind == "train":
        return None
    stage = spine.stage_spec()
    minimum = min(stage.policy.min_group_members, stage.algorithm.repeat_times)
    batch_groups = -(-stage.experiences_per_step // stage.algorithm.repeat_times)
    barren = state.groups.short_in_a_row(spine.stage, 1)
    short = state.groups.short_in_a_row(spine.stage, minimum)
    if barren < _BARREN_GROUPS and short < _SHORT_BATCHES * batch_groups:
        return None
    code, reason = state.groups.last_error
    return SignalLost(
        number=spine.signal.number + 1,
        stage=spine.stage,
        step=spine.planned + 1,
        cause=signal.ROLLOUTS_FAILED,
        reason=f"too few rollouts of {max(barren, short)} groups in a row succeeded; the last: {code}: {reason}",
        fix="see rftd events NAME --type rollout.failed; correct the workflow, the reward or the endpoint that fails",
    )
