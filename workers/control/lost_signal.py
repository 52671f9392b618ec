"""The words of a lost learning signal, and when an experiment pauses for it. Pure; the fold says what is so.

Losses and returns are declared one by one, as the steps made them, so that the same log gives the same events. A
solved task is told too, and pauses nothing: later rows may be harder.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rftd.ops import limits
from rftd.streams.events.signal import SignalLost, SignalRegained
from rftd.streams.folds import signal
from rftd.streams.folds.run_state import RunState
from rftd.streams.folds.signal import SignalChange
from rftd.streams.spec import StageSpec
from rftd.workers.control.obstacle import SIGNAL_LOST, Obstacle

_BARREN_GROUPS: Final = limits.FAILED_GROUPS_IN_A_ROW // 2
"""Groups in a row without one member, after which rollouts count as failing."""
_SHORT_BATCHES: Final = limits.INCOMPLETE_BATCHES_IN_A_ROW // 5
"""Batches' worth of groups in a row with too few members, after which they do, too."""


class _Words(NamedTuple):
    """A cause in words. In braces are the `change` and the `stage` that it was seen in."""

    reason: str
    fix: str


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
        "every group is answered right: all rewards are {change.lowest:g}",
        "end the run, or give it harder tasks; if that cannot be, check the reward function",
    ),
    signal.REWARDS_EQUAL: _Words(
        "the rewards are equal within every group ({rewards}), so no answer is better than another",
        "compare answers with the truth (rftd experiences ls NAME), then check format.response_key and the reward "
        "function; or give easier tasks, a higher temperature, or a larger algorithm.repeat_times",
    ),
    signal.ADVANTAGE_ZERO: _Words(
        "rewards differ, and the advantage of every trained token is zero",
        "check algorithm.advantage_fn and its arguments (std_threshold), and what masks leave to be trained",
    ),
    signal.GRADIENT_ZERO: _Words(
        "tokens are trained, and their gradient is zero",
        "check what clips or masks every token: algorithm.policy_loss_fn_args, corrections",
    ),
    signal.FILTERED: _Words(
        "every group is left out as uninformative (rewards from {change.lowest:g} to {change.highest:g}), so no batch "
        "is formed",
        "check format.response_key and the reward function; or give easier or harder tasks, or lower "
        "advantage_fn_args.std_threshold",
    ),
}


def declarations(state: RunState) -> list[SignalLost | SignalRegained]:
    """The losses and returns of the signal that the log does not hold yet, in order; then rollouts that fail."""
    spine = state.spine
    if spine.spec is None:
        return []
    due: list[SignalLost | SignalRegained] = [
        _event(change, spine.spec.stages[change.stage])
        for change in spine.signal.undeclared
        if change.stage < len(spine.spec.stages)
    ]
    failing = _rollouts_failed(state)
    return due or ([] if failing is None else [failing])


def idle_trouble(state: RunState) -> Obstacle | None:
    """The reason to pause, once so many batches in a row taught nothing; None before that, or if it is solved."""
    spine = state.spine
    if spine.stage < 0 or spine.stage_completed or spine.signal.cause not in _WORDS:
        return None
    most = spine.stage_spec().trainer.max_idle_steps
    idle = spine.signal.idle_batches
    if not most or idle < most or spine.signal.lost is None:
        return None
    lost = spine.signal.lost
    return Obstacle(
        cause=SIGNAL_LOST,
        reason=f"{idle} batches in a row taught nothing: {lost.reason}",
        fix=f"{lost.fix} (rftd fork with the field changed); or go on as it is: rftd resume",
    )


def _event(change: SignalChange, stage: StageSpec) -> SignalLost | SignalRegained:
    if not change.cause:
        return SignalRegained(number=change.number, stage=change.stage, step=change.step)
    words = _WORDS[change.cause]
    low, high = f"{change.lowest:g}", f"{change.highest:g}"
    rewards = f"all {low}" if low == high else f"group by group from {low} to {high}"
    return SignalLost(
        number=change.number,
        stage=change.stage,
        step=change.step,
        cause=change.cause,
        reason=words.reason.format(change=change, stage=stage, rewards=rewards),
        fix=words.fix,
    )


def _rollouts_failed(state: RunState) -> SignalLost | None:
    """The loss of groups in a row that have too few members to be trained; None if there is none to declare."""
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
