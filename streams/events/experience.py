"""Experiences and scores. Written by explorers: of a rollout's records, the first one by the lease's holder counts."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.events.registry import NOBODY, Event, event
from rftd.streams.events.task import MemberVerdict
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.bounds import Count, Finite, Index, Integer, RoleName, Rollouts, Seconds, Temperature

_LARGEST: Final = 1e30
"""Maximum absolute score: the sum over a whole dataset stays finite in single precision."""


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Response tokens [start, end) drawn from one weight version; offsets count from the first response token."""

    version: Index
    """Weight version."""
    generation: Index
    """Generation of the trainer."""
    start: Count
    """First token of the span."""
    end: Count
    """Token after the span."""


class SamplingSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Response tokens [start, end) drawn with these settings; offsets count from the first response token."""

    start: Count
    """First token of the span."""
    end: Count
    """Token after the span."""
    temperature: Temperature
    """0: greedy decoding, with log-probabilities at temperature 1."""
    top_p: Finite = 1.0
    """Nucleus size; 1 keeps every token."""
    top_k: Integer = -1
    """Number of likeliest tokens kept; -1: all."""
    others: tuple[tuple[str, Finite], ...] = ()
    """Further settings with unusual values, by name, as (min_p, 0.1); a bias as (logit_bias/TOKEN, 2.0)."""


class RunStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step of a rollout with several steps: a prompt and a response."""

    tokens: Count
    """Tokens of prompt and response, stored after those of the earlier steps."""
    prompt_tokens: Count
    """Number of prompt tokens of the step."""
    reward: Finite
    """Reward of the step's sequence, for advantages."""
    step_reward: Finite | None = None
    """The reward of the step itself, if the workflow gives one."""
    state: str = ""
    """Equal for steps begun in one state of their environment; empty if unknown."""
    role: RoleName = ""
    """The agent behind the step's response; empty in a rollout of a single agent."""


class AuxiliaryTurn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An auxiliary model's answer in a rollout, kept to avoid asking the model again."""

    model: str
    """Name of the model."""
    asked: str
    """The xxh3-128 (hex) of the question: messages and sampling settings."""
    text: str
    """The answer, or its beginning."""
    chars: Count
    """The length of the whole answer in characters."""
    tokens: Count
    """Number of answer tokens."""
    prompt_tokens: Count = 0
    """Number of prompt tokens."""


class RowAnswers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answers of auxiliary models about a held-out row, in order of arrival: a judge's answers are its reasons."""

    row: Index
    """Row of the taskset."""
    turns: tuple[AuxiliaryTurn, ...]
    """The answers, in order of arrival."""


class CategoryScore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counts and rewards of the answers to held-out rows of one category."""

    answers: Count
    """Number of answers."""
    reward: Finite
    """The sum of the answers' rewards."""
    right: Count
    """Number of right answers; also 0 if correctness is unknown."""


@event("experience.produced", stream=topics.EXPERIENCES, owner=NOBODY)
class ExperienceProduced(Event, frozen=True, kw_only=True):
    """One finished rollout, the training data of a trainer. Key: the group. Consumed by dispatcher, planner and
    trainer.

    Id: derive(rollout, "experience"), the event's id too, so that a repeated rollout is a duplicate.
    """

    experience: UUID
    """Id of the experience."""
    group: UUID
    """Id of the group."""
    rollout: Rollouts
    """Number of the rollout in its group, from 0."""
    stage: Index
    """Index of the stage in the specification."""
    lease: UUID
    """Id of the lease."""
    tokens: Array
    """Prompt and response ids; with `steps`, step after step  # [T] u4"""
    prompt_tokens: Count
    """Length of the prompt, at the beginning of `tokens`; with `steps`, the sum over all steps."""
    loss_mask: Array
    """1 for a trained response token  # [T - prompt_tokens] u1"""
    logprobs: Array
    """Log-probability of each response token under the weights that drew it  # [T - prompt_tokens] f4"""
    spans: tuple[Span, ...]
    """Weight versions of the response tokens."""
    reward: Finite
    """Reward of the rollout."""
    priority: Finite = 0.0
    """Priority tag given by the workflow."""
    metrics: dict[str, float] = {}
    """Named parts of the reward and figures of the workflow."""
    finish: str = "stop"
    """`stop`, `length` or `prompt_truncated`."""
    duration_s: Seconds = 0.0
    """Duration in seconds."""
    steps: tuple[RunStep, ...] = ()
    """The rollout's steps, trained together; empty for a single sequence."""
    sampling: tuple[SamplingSpan, ...] = ()
    """The settings of drawn tokens, in order, without overlap. Tokens outside the spans were not drawn; without any
    span, the stage's taskset has the settings.
    """
    processed_logprobs: Array | None = None
    """Log-probability of each response token in the distribution it was drawn from: after biases, penalties, min-p,
    top-k and top-p, renormalised over the remaining tokens. None unless requested  # [T - prompt_tokens] f4
    """
    auxiliary: tuple[AuxiliaryTurn, ...] = ()
    """The answers of auxiliary models, in the order of arrival."""
    turns: Count = 0
    """Number of the model's answers in the rollout; 0 if not counted."""
    extracted: str | None = None
    """The answer read by the reward from the response, for people, or its beginning; None without a note."""

    @property
    def arrays(self) -> dict[str, Array]:
        """The event's arrays by field; all of them travel in the event, or all by reference."""
        by_field = {"tokens": self.tokens, "loss_mask": self.loss_mask, "logprobs": self.logprobs}
        if self.processed_logprobs is not None:
            by_field["processed_logprobs"] = self.processed_logprobs
        return by_field

    def __post_init__(self) -> None:
        processed = self.processed_logprobs
        if processed is not None and processed.shape != self.logprobs.shape:
            raise ValueError(f"processed_logprobs of shape {processed.shape} beside those of {self.logprobs.shape}")
        # Checked at decoding, by every reader alike: a record skipped by one reader and folded by another would make
        # their folds differ.
        previous_end = 0
        for span in self.sampling:
            if not previous_end <= span.start < span.end <= len(self.loss_mask):
                raise ValueError(f"sampling says [{span.start}, {span.end}) of {len(self.loss_mask)} response tokens")
            previous_end = span.end


@event("group.processed", stream=topics.EXPERIENCES, owner=NOBODY)
class GroupProcessed(Event, frozen=True, kw_only=True):
    """The experience pipeline's verdicts on the members of a finished group. Key: the group.

    Written by the explorer with the pipeline's lease; consumed by the dispatcher, which closes the group with them.
    """

    group: UUID
    """Id of the group."""
    lease: UUID
    """Id of the lease."""
    stage: Index
    """Index of the stage in the specification."""
    rollouts: tuple[Rollouts, ...]
    """The members' rollouts, ascending."""
    verdicts: tuple[MemberVerdict, ...] = ()
    """One for each rollout; empty after a failure."""
    metrics: dict[str, Finite] = {}
    """Figures of the operators, by name."""
    reason: str = ""
    """Reason of a failure, with the operator's name; empty if all operators succeeded."""
    auxiliary: tuple[AuxiliaryTurn, ...] = ()
    """Answers of auxiliary models to the operators, in the order of arrival."""

    def __post_init__(self) -> None:
        if not self.reason and len(self.verdicts) != len(self.rollouts):
            raise ValueError(f"{len(self.verdicts)} verdicts on {len(self.rollouts)} rollouts")


@event("rollout.failed", stream=topics.EXPERIENCES, owner=NOBODY)
class RolloutFailed(Event, frozen=True, kw_only=True):
    """A rollout ended without an experience, after its retries. Key: the group."""

    group: UUID
    """Id of the group."""
    rollout: Rollouts
    """Number of the rollout in its group, from 0."""
    stage: Index
    """Index of the stage in the specification."""
    lease: UUID
    """Id of the lease."""
    code: str
    """Code of the error of the rollout's last attempt."""
    reason: str
    """Text of the error of the rollout's last attempt."""


@event("eval.scored", stream=topics.EXPERIENCES, owner=NOBODY)
class EvalScored(Event, frozen=True, kw_only=True):
    """Scored answers of one eval lease. Key: the eval. The dispatcher folds them into `eval.completed`."""

    eval: UUID
    """Id of the evaluation."""
    lease: UUID
    """Id of the lease."""
    stage: Index
    """Index of the stage in the specification."""
    taskset: Index
    """Index in the stage's `evals`."""
    row_start: Index
    """First row of the range."""
    version: Index
    """Weight version of the answers."""
    generation: Index
    """Generation of the trainer."""
    rewards: Array
    """One score per answer; the answers to one row are adjacent  # [rows * tries] f4"""
    tokens: Array
    """Response length per answer  # [rows * tries] u4"""
    metrics: dict[str, float] = {}
    """Figures over the answers, by name."""
    reward_parts: dict[str, Finite] = {}
    """The sum of each named part of the rewards; an answer without a part counts 0."""
    auxiliary: tuple[RowAnswers, ...] = ()
    """Answers of auxiliary models, by their rows; long ones are truncated, as in an experience."""
    tries: Count = 1
    """Answers to each row."""
    right: Array | None = None
    """1 for a right answer, else 0; None if the reward does not report correctness  # [rows * tries] u1"""
    votes: Array | None = None
    """Equal for equivalent answers to one row; None with a single answer to each row  # [rows * tries] u4"""
    categories: dict[str, CategoryScore] = {}
    """The rows' categories, if the taskset has a column of them."""
    answers: Array | None = None
    """`EvalAnswers` as bytes: the texts of all answers, or of a sample; None without kept texts  # u1"""

    @property
    def rows(self) -> int:
        """The number of answered rows."""
        return len(self.rewards) // self.tries

    def __post_init__(self) -> None:
        # Scores are summed by the fold itself, so they travel in the event and are finite: NaN compares as less than
        # nothing.
        for name, array in (("rewards", self.rewards), ("tokens", self.tokens)):
            if array.artifact or len(array.shape) != 1 or not array.within(_LARGEST):
                raise ValueError(f"{name} of shape {array.shape} are no numbers with a mean, one for each answer")
        if self.tries < 1 or len(self.rewards) % self.tries:
            raise ValueError(f"{len(self.rewards)} rewards are not {self.tries} for each row")
        for name, flags in (("right", self.right), ("votes", self.votes)):
            if flags is not None and (flags.artifact or flags.shape != self.rewards.shape):
                raise ValueError(f"{name} of shape {flags.shape} beside rewards of {self.rewards.shape}")


def versions_of(spans: tuple[Span, ...]) -> tuple[int, int]:
    """Returns the oldest and the newest weight version of the spans; most rollouts have one span."""
    if len(spans) == 1:  # without a list: this is called for every experience
        return spans[0].version, spans[0].version
    versions = [span.version for span in spans] or (0,)
    return min(versions), max(versions)
