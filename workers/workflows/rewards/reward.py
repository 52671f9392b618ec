"""`Reward`: the seam that scores responses; `RolloutView`: the scored rollout."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from rftd.ops import limits
from rftd.workers.datasets.task import Task
from rftd.workers.generation.response import Response


class RewardResult(msgspec.Struct, frozen=True, kw_only=True):
    """A reward, with named parts that become metrics of the rollout."""

    value: float
    """Reward of the response."""
    parts: dict[str, float] = {}
    """Named summands or remarks; become metrics of the rollout."""
    extracted: str | None = None
    """The answer read from the response, as compared with the truth, for people; cut at 1,000 characters."""

    @classmethod
    def of(cls, extracted: str | None = None, /, **parts: float) -> RewardResult:
        """Returns a reward equal to the sum of its parts, with the answer read from the response."""
        return cls(value=sum(parts.values()), parts=parts, extracted=extracted)


def extracted_note(extracted: object) -> str | None:
    """Returns a reward's note as text for a record: bounded, and without halves of surrogate pairs."""
    if extracted is None:
        return None
    return str(extracted)[: limits.EXTRACTED_CHARS].encode(errors="replace").decode()


@runtime_checkable
class ProcessReward(Protocol):
    """A reward that runs a process of its own, in an environment set before."""

    def start_with(self, environ: Mapping[str, str]) -> None:
        """Sets the environment of the reward's process, before the first response is scored."""
        ...


class Reward(Protocol):
    """Scores one response.

    Built-in rewards are quick and pure and run on the event loop, except classes with `blocks = True`; these and
    third-party rewards run on threads, so they may block, but two calls of one reward may run at once. Any exception
    fails the rollout. A reward with a fourth parameter `rollout` receives a `RolloutView` as a keyword; a reward with
    `auxiliary_models` receives the experiment's, and calls them in a coroutine `async def score`, which runs on an
    event loop and must never block.
    """

    def score(
        self, response: str, truth: str, task: Task
    ) -> RewardResult | Mapping[str, float] | float | Awaitable[RewardResult | Mapping[str, float] | float]:
        """Returns the reward of the complete response, including its `reply_prefix`; of a mapping, the sum counts."""
        ...


class RolloutView(msgspec.Struct, frozen=True):
    """The answers of one rollout up to and including the scored one."""

    turns: tuple[Response, ...]
    """The model's answers in order; the scored one is the last."""

    @property
    def response_tokens(self) -> int:
        """Number of tokens drawn by the model for the scored answer."""
        return len(self.turns[-1].tokens)

    @property
    def finish(self) -> str:
        """Finish reason of the scored answer: `stop`, or `length` if cut at its limit."""
        return self.turns[-1].finish

    @property
    def drawn_tokens(self) -> int:
        """Number of tokens drawn by the model in all turns."""
        return sum(len(turn.tokens) for turn in self.turns)


def was_cut(rollout: RolloutView | None) -> bool:
    """True if the scored answer ended at its length limit; False for a text alone."""
    return rollout is not None and rollout.finish == "length"
