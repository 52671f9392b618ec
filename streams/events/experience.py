"""Experiences and scores. Written by explorers: the first that the holder of a lease wrote of a rollout counts."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from rftd.streams.events.registry import NOBODY, Event, event
from rftd.streams.log import topics
from rftd.streams.log.arrays import Array
from rftd.streams.log.bounds import Count, Finite, Index, Integer, Rollouts, Seconds, Temperature

_LARGEST: Final = 1e30
"""The largest score: a sum of as many as there are rows is finite in single precision."""


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Response tokens [start, end) were drawn from these weights; offsets count from the first response token."""

    version: Index
    generation: Index
    start: Count
    end: Count


class SamplingSpan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Response tokens [start, end) were drawn with these settings; offsets count from the first response token."""

    start: Count
    end: Count
    temperature: Temperature
    """0: the likeliest token was taken, and its log-probability is that at temperature 1."""
    top_p: Finite = 1.0
    top_k: Integer = -1
    others: tuple[tuple[str, Finite], ...] = ()
    """Further settings that were not the usual ones, by name, as (min_p, 0.1); a bias as (logit_bias/TOKEN, 2.0)."""


class RunStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One step of a rollout that consists of several: a prompt of its own, and a response."""

    tokens: Count
    """Tokens of prompt and response, which follow those of the steps before."""
    prompt_tokens: Count
    reward: Finite
    step_reward: Finite | None = None
    """The reward of the step itself, if the workflow gives one."""
    state: str = ""
    """Equal where steps began in the same state of their environment; empty if unknown."""


class AuxiliaryTurn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An auxiliary model's answer in a rollout, kept so that nobody has to ask it again."""

    model: str
    asked: str
    """The xxh3-128 (hex) of the question: messages and sampling settings."""
    text: str
    """The answer, or its beginning."""
    chars: Count
    """The length of the whole answer."""
    tokens: Count
    prompt_tokens: Count = 0


class RowAnswers(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answers of auxiliary models to a held-out row, in the order in which they came: a judge's are its reasons."""

    row: Index
    turns: tuple[AuxiliaryTurn, ...]


class CategoryScore(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answers to held-out rows of one category."""

    answers: Count
    reward: Finite
    """The sum of their rewards."""
    right: Count
    """The answers among them that are right; 0 too where nobody knows which are."""


@event("experience.produced", stream=topics.EXPERIENCES, owner=NOBODY)
class ExperienceProduced(Event, frozen=True, kw_only=True):
    """One finished rollout: what a trainer learns from. Key: the group. Consumed by dispatcher, planner and trainer.

    Id: derive(rollout, "experience"), the event's id too, so that a repeated rollout is a duplicate.
    """

    experience: UUID
    group: UUID
    rollout: Rollouts
    stage: Index
    lease: UUID
    tokens: Array
    """Prompt and response ids; of each step after those of the step before  # [T] u4"""
    prompt_tokens: Count
    """The first so many of them are the prompt; with `steps`, so many of all steps together."""
    loss_mask: Array
    """1 where a response token is trained  # [T - prompt_tokens] u1"""
    logprobs: Array
    """Log-probability of each response token under the weights that drew it  # [T - prompt_tokens] f4"""
    spans: tuple[Span, ...]
    reward: Finite
    priority: Finite = 0.0
    metrics: dict[str, float] = {}
    finish: str = "stop"
    """`stop`, `length` or `prompt_truncated`."""
    duration_s: Seconds = 0.0
    steps: tuple[RunStep, ...] = ()
    """The rollout's steps, which are trained together; empty if it is one sequence."""
    sampling: tuple[SamplingSpan, ...] = ()
    """The settings of tokens that were drawn, in order, without overlap. A token of no span was not drawn, or, where
    there are no spans at all, as the stage's taskset says."""
    processed_logprobs: Array | None = None
    """Log-probability of each response token in the distribution that it was drawn from: after biases, penalties,
    min-p, top-k and top-p, renormalised over what they keep. None unless asked for  # [T - prompt_tokens] f4"""
    auxiliary: tuple[AuxiliaryTurn, ...] = ()
    """The answers of auxiliary models, in the order in which they came."""
    turns: Count = 0
    """The model's answers in it; 0: they were not counted."""

    @property
    def arrays(self) -> dict[str, Array]:
        """Its arrays by field; all of them travel in the event, or all by reference."""
        found = {"tokens": self.tokens, "loss_mask": self.loss_mask, "logprobs": self.logprobs}
        if self.processed_logprobs is not None:
            found["processed_logprobs"] = self.processed_logprobs
        return found

    def __post_init__(self) -> None:
        processed = self.processed_logprobs
        if processed is not None and processed.shape != self.logprobs.shape:
            raise ValueError(f"processed_logprobs of shape {processed.shape} beside those of {self.logprobs.shape}")
        # Checked where it is read, by every reader alike: what one left out and another took in would part their folds.
        place = 0
        for span in self.sampling:
            if not place <= span.start < span.end <= len(self.loss_mask):
                raise ValueError(f"sampling says [{span.start}, {span.end}) of {len(self.loss_mask)} response tokens")
            place = span.end


@event("rollout.failed", stream=topics.EXPERIENCES, owner=NOBODY)
class RolloutFailed(Event, frozen=True, kw_only=True):
    """A rollout ended without an experience, after its retries. Key: the group."""

    group: UUID
    rollout: Rollouts
    stage: Index
    lease: UUID
    code: str
    reason: str


@event("eval.scored", stream=topics.EXPERIENCES, owner=NOBODY)
class EvalScored(Event, frozen=True, kw_only=True):
    """Answers of one eval lease, scored. Key: the eval. The dispatcher folds them into `eval.completed`."""

    eval: UUID
    lease: UUID
    stage: Index
    taskset: Index
    row_start: Index
    version: Index
    generation: Index
    rewards: Array
    """One score per answer; the answers to a row lie together  # [rows * tries] f4"""
    tokens: Array
    """Response length per answer  # [rows * tries] u4"""
    metrics: dict[str, float] = {}
    reward_parts: dict[str, Finite] = {}
    """The sum of each named part of the rewards; an answer without a part counts 0."""
    auxiliary: tuple[RowAnswers, ...] = ()
    """Answers that auxiliary models were asked about, by their rows; what is too long is cut, as in an experience."""
    tries: Count = 1
    """Answers to each row."""
    right: Array | None = None
    """1 for an answer that is right, else 0; None where the reward does not say so  # [rows * tries] u1"""
    votes: Array | None = None
    """Equal for answers to a row that say the same; None of a single answer to each row  # [rows * tries] u4"""
    categories: dict[str, CategoryScore] = {}
    """The rows' categories, if the taskset has a column of them."""
    answers: Array | None = None
    """`EvalAnswers` as bytes: the texts of all answers, or of a sample; None if nothing was kept  # u1"""

    @property
    def rows(self) -> int:
        """The number of rows that were answered."""
        return len(self.rewards) // self.tries

    def __post_init__(self) -> None:
        # Scores are summed by the fold itself, so they travel in the event and are finite: NaN is not below anything.
        for name, array in (("rewards", self.rewards), ("tokens", self.tokens)):
            if array.artifact or len(array.shape) != 1 or not array.within(_LARGEST):
                raise ValueError(f"{name} of shape {array.shape} are no numbers with a mean, one for each answer")
        if self.tries < 1 or len(self.rewards) % self.tries:
            raise ValueError(f"{len(self.rewards)} rewards are not {self.tries} for each row")
        for name, flags in (("right", self.right), ("votes", self.votes)):
            if flags is not None and (flags.artifact or flags.shape != self.rewards.shape):
                raise ValueError(f"{name} of shape {flags.shape} beside rewards of {self.rewards.shape}")


def versions_of(spans: tuple[Span, ...]) -> tuple[int, int]:
    """The oldest and the newest weights that drew a token; most rollouts have one span."""
    if len(spans) == 1:  # without a list: this is asked for every experience
        return spans[0].version, spans[0].version
    versions = [span.version for span in spans] or (0,)
    return min(versions), max(versions)
