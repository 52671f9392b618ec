"""`RolloutResult`: one finished rollout, before becoming an experience."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from rftd.ops import limits
from rftd.ops.errors import RftdError, RolloutError
from rftd.streams.events.experience import AuxiliaryTurn, RunStep, SamplingSpan, Span
from rftd.workers.datasets.task import Task
from rftd.workers.generation.sampling import TRAINED_FIX, trainable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FINISHES = ("stop", "length", "prompt_truncated")
"""Finish reasons of a rollout."""


class RolloutResult(msgspec.Struct, frozen=True, kw_only=True):
    """One finished rollout: T tokens, the first P of them the prompt; R = T - P >= 1 response tokens."""

    tokens: NDArray[np.uint32]  # [T]
    """Token ids of prompt and response  # [T]"""
    prompt_tokens: int
    """Number of prompt tokens."""
    loss_mask: NDArray[np.uint8]
    """1 for tokens drawn by the model and trained, else 0  # [R]"""
    logprobs: NDArray[np.float32]
    """Log-probabilities of the tokens; 0 for tokens not drawn by the model  # [R]"""
    processed_logprobs: NDArray[np.float32] | None = None
    """Log-probabilities in the distributions behind the draws; None unless every turn has them  # [R]"""
    spans: tuple[Span, ...]
    """Weight versions behind the tokens; the spans cover [0, R) without gap."""
    reward: float
    """Reward of the rollout."""
    priority: float = 0.0
    """Priority of the experience: among waiting groups, a higher one is trained first."""
    metrics: dict[str, float] = {}
    """Named figures, among them the parts of the reward."""
    finish: str = "stop"
    """`stop`, `length` or `prompt_truncated`."""
    text: str = ""
    """Text of the last response, for logs and people."""
    extracted: str | None = None
    """The answer read by the reward, for people; cut at 1,000 characters."""
    step_reward: float | None = None
    """Reward of this step alone, in a rollout of several steps, for `gigpo`."""
    state: str = ""
    """State at the beginning of this step, for `gigpo`: equal texts are equal states of the environment."""
    role: str = ""
    """Agent behind this sequence, in a rollout of several agents: a name declared in the workflow's `roles`."""
    steps: tuple[RunStep, ...] = ()
    """Lengths and rewards of the joined steps, set by `joined`."""
    sampling: tuple[SamplingSpan, ...] = ()
    """Sampling settings of the tokens, in order; `Trajectory` takes them from the responses. Tokens outside every span
    count as drawn with the taskset's settings.
    """
    auxiliary: tuple[AuxiliaryTurn, ...] = ()
    """Answers of auxiliary models, added by the runner."""
    turns: int = 1
    """Number of the model's answers."""

    def check(self, max_model_len: int) -> None:
        """Raises RolloutError, worded for the workflow's author, if the fields contradict each other or exceed
        `max_model_len`.
        """
        total = len(self.tokens)
        prompt = self.prompt_tokens
        response = total - prompt
        if not 0 < prompt < total:
            raise _result_error(f"{prompt} prompt tokens of {total} tokens; both prompt and response need at least one")
        if total > max_model_len:
            raise _result_error(f"{total} tokens, more than max_model_len {max_model_len}")
        columns: list[tuple[str, NDArray[Any]]] = [("loss_mask", self.loss_mask), ("logprobs", self.logprobs)]
        if self.processed_logprobs is not None:
            columns.append(("processed_logprobs", self.processed_logprobs))
        for name, array in columns:
            if array.shape != (response,):
                raise _result_error(f"{name} of shape {array.shape} for {response} response tokens")
            # A sum is finite if every term is. Summed as a list, because numpy is slower for so few numbers.
            if name != "loss_mask" and not math.isfinite(sum(array.tolist())):
                raise _result_error("a log-probability that is not finite")
        offset = 0
        for span in self.spans:
            if span.start != offset or span.end <= span.start:
                raise _result_error(f"a span [{span.start}, {span.end}) where one from {offset} was expected")
            offset = span.end
        if offset != response:
            raise _result_error(f"spans up to {offset} for {response} response tokens")
        offset = 0
        for drawn in self.sampling:
            if not offset <= drawn.start < drawn.end <= response:
                raise _result_error(
                    f"sampling of [{drawn.start}, {drawn.end}) from {offset} on, of {response} response tokens"
                )
            offset = drawn.end
        for name, number in (("reward", self.reward), ("priority", self.priority), *self.metrics.items()):
            if not math.isfinite(number):
                raise _result_error(f"{name} {number}{_of_role(self.role)}, which is not finite")
        for name, number in (("reward", self.reward), ("step_reward", self.step_reward or 0.0)):
            if abs(number) > limits.REWARD_LARGEST:
                raise _result_error(f"{name} {number}, beyond {limits.REWARD_LARGEST:g}: no trainer computes with it")
        if self.step_reward is not None and not math.isfinite(self.step_reward):
            raise _result_error(f"step_reward {self.step_reward}, which is not finite")
        if len(self.state) > limits.STATE_CHARS:
            raise _result_error(
                f"a state of {len(self.state)} characters, more than {limits.STATE_CHARS}: give its hash"
            )
        if self.finish not in FINISHES:
            raise _result_error(f"finish {self.finish!r}; known: {', '.join(FINISHES)}")

    def check_trainable(self) -> None:
        """Raises RolloutError, worded for the workflow's author, if a trained token was drawn at an untrainable
        temperature.

        A greedy token has probability 1: there is no ratio of policies to learn from.
        """
        for span in self.sampling:
            # Greedy tokens of a masked turn are fine: a summary of the conversation, for example.
            if not trainable(span.temperature) and self.loss_mask[span.start : span.end].any():
                position = span.start + int(self.loss_mask[span.start : span.end].argmax())
                raise RolloutError(
                    f"response token {position}, which is trained, was drawn at temperature {span.temperature:g}",
                    field="temperature",
                    fix=f"{TRAINED_FIX} where it is trained, or set its loss_mask to 0",
                )


def named(error: BaseException, task: Task) -> RolloutError:
    """Returns the error as a RolloutError of this task; for a group of errors, the first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, RolloutError):
        error.where = error.where or task.where
        return error
    if isinstance(error, RftdError):
        where = f"{task.where}, {error.where}" if error.where else task.where
        return RolloutError(error.what, where=where, field=error.field, fix=error.fix)
    text = f"{type(error).__name__}: {error}"[: limits.ERROR_TEXT_CHARS]
    return RolloutError(
        f"workflow {task.workflow!r} raised {text}", where=task.where, fix="correct the workflow, or this row"
    )


def _of_role(role: str) -> str:
    """Returns the words naming the role in an error; empty without a role."""
    return f" of role {role!r}" if role else ""


def _result_error(problem: str) -> RolloutError:
    """Builds the error for an invalid result of a workflow."""
    return RolloutError(
        f"the workflow returned {problem}", fix="correct the workflow; Trajectory builds results that fit"
    )
