"""Rule-based rewards: form, exact match, and agreement with the truth by value."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from rftd.ops.errors import ConfigError
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.answer import agree, judged_answer, last_boxed, truth_of, visible
from rftd.workers.workflows.rewards.reward import RewardResult, RolloutView, was_cut

FORMAT_REWARD: Final = 0.1
"""Reward for the right form."""
_TURN: Final = re.compile(r"</think>\s*<answer>")
"""The place between thought and answer."""


class ZeroReward:
    """0 for every response: for distillation, where the teacher's log-probabilities are all to learn from."""

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """Returns 0."""
        return RewardResult(value=0.0)


class FormatReward:
    """+0.1 if the response consists of think and answer tags on separate lines, else -0.1."""

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """Returns `format_score`: 0.1 or -0.1."""
        return RewardResult.of(format_score=FORMAT_REWARD if tags_on_lines(response) else -FORMAT_REWARD)


def tags_on_lines(response: str) -> bool:
    r"""True for `<think>\n...\n</think>\n<answer>\n...\n</answer>` with nothing around it."""
    head = "<think>\n"
    tail = "\n</answer>"
    turn = "\n</think>\n<answer>\n"
    if not (response.startswith(head) and response.endswith(tail)):
        return False
    return turn in response[len(head) : -len(tail)]


def tags_at_end(response: str) -> bool:
    """True if the response ends with `<think>...</think> <answer>...</answer>`; any text may come before."""
    response = response.rstrip()
    opened = response.find("<think>")
    if opened < 0 or not response.endswith("</answer>"):
        return False
    turn = _TURN.search(response, opened + len("<think>"))
    return turn is not None and turn.end() <= len(response) - len("</answer>")


class AccuracyReward:
    """Finds the answer in tags, a box, after `####` or in the closing words, and compares by value."""

    def score(self, response: str, truth: str, task: Task, rollout: RolloutView | None = None) -> RewardResult:
        """Returns `accuracy`: 0 or 1."""
        judged = judged_answer(response, truth, cut=was_cut(rollout))
        return RewardResult.of(judged.extracted, accuracy=judged.accuracy)


class MathBoxedReward:
    r"""0 or 1 for the last `\boxed{...}`; `with_think` subtracts `format_score_coef` without a tagged thought."""

    def __init__(self, *, with_think: bool = False, format_score_coef: float = 0.1) -> None:
        """`format_score_coef` is subtracted without a tagged thought, if `with_think`."""
        self._with_think = with_think
        self._format_score_coef = format_score_coef

    def score(self, response: str, truth: str, task: Task) -> RewardResult:
        """Returns `accuracy`: 0 or 1, and `format_score`: 0 or minus the coefficient."""
        boxed = last_boxed(response)
        right = boxed is not None and agree(boxed, truth_of(truth))
        missing = self._with_think and not _has_thought(response)
        format_score = -self._format_score_coef if missing else 0.0
        return RewardResult.of(boxed, accuracy=1.0 if right else 0.0, format_score=format_score)


def _has_thought(response: str) -> bool:
    """True if the response begins with a complete thought in tags."""
    response = response.strip()
    return response.startswith("<think>") and "</think>" in response


class MathReward:
    """-0.1 to 1.1: the reward of `math_workflow`. A right number without tags still counts."""

    def score(self, response: str, truth: str, task: Task, rollout: RolloutView | None = None) -> RewardResult:
        """Returns `accuracy`: 0 or 1, and `format_score`: 0.1 with tags, else -0.1."""
        judged = judged_answer(response, truth, cut=was_cut(rollout))
        return RewardResult.of(
            judged.extracted,
            accuracy=judged.accuracy,
            format_score=FORMAT_REWARD if tags_at_end(response) else -FORMAT_REWARD,
        )


class MathDapoReward:
    """DAPO's reward: the accuracy, less a penalty for the last `cache_length` tokens before `max_response_length`.

    The penalty rises evenly to `penalty_factor`; it is off unless `enable_overlong_penalty` is true. Source: Yu et al.
    2025, DAPO, arXiv 2503.14476, section 3.4.
    """

    def __init__(
        self,
        *,
        enable_overlong_penalty: bool | None = False,
        penalty_factor: float | None = None,
        max_response_length: Annotated[int, msgspec.Meta(ge=1)] | None = None,
        cache_length: Annotated[int, msgspec.Meta(ge=1)] | None = None,
    ) -> None:
        """The penalty grows over the last `cache_length` tokens up to `penalty_factor`. Raises ConfigError for missing
        lengths.
        """
        lengths = {
            "penalty_factor": penalty_factor,
            "max_response_length": max_response_length,
            "cache_length": cache_length,
        }
        for name, number in lengths.items():
            if enable_overlong_penalty and number is None:
                fix = "write it, or enable_overlong_penalty: false"
                raise ConfigError(f"{name} is not set, but the length penalty needs it", field=name, fix=fix)
        self._penalizes = bool(enable_overlong_penalty)
        self._penalty_factor = penalty_factor or 0.0
        self._max_response_length = max_response_length or 0
        self._cache_length = cache_length or 1
        if self._penalizes and self._cache_length >= self._max_response_length:
            problem = f"cache_length is {self._cache_length}, and max_response_length {self._max_response_length}"
            raise ConfigError(problem, field="cache_length", fix="write a cache_length below max_response_length")

    def score(self, response: str, truth: str, task: Task, rollout: RolloutView | None = None) -> RewardResult:
        """Returns `accuracy`: 0 or 1, and `format_score`: 0 to minus the penalty's factor."""
        judged = judged_answer(response, truth, cut=was_cut(rollout))
        tokens = rollout.response_tokens if self._penalizes and rollout is not None else 0
        over = tokens - (self._max_response_length - self._cache_length)
        return RewardResult.of(
            judged.extracted,
            accuracy=judged.accuracy,
            format_score=-self._penalty_factor * min(1.0, max(0.0, over / self._cache_length)),
        )


class ExactMatchReward:
    """Compares the texts without surrounding white space; the reward of `make demo`."""

    def score(self, response: str, truth: str, task: Task, rollout: RolloutView | None = None) -> RewardResult:
        """Returns `accuracy`: 0 or 1; 0 for a response cut at its limit, and therefore incomplete."""
        answer = visible(response).strip()
        same = answer == visible(truth).strip()
        return RewardResult.of(answer, accuracy=1.0 if same and not was_cut(rollout) else 0.0)
