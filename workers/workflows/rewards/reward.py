"""`Reward`: what a response is worth, given the truth; `RolloutView`: the rollout that it scores."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Protocol, runtime_checkable

import msgspec

from rftd.workers.datasets.task import Task
from rftd.workers.generation.response import Response


class RewardResult(msgspec.Struct, frozen=True, kw_only=True):
    """A reward and what it is made of."""

    value: float
    parts: dict[str, float] = {}
    """Named summands or remarks; they become metrics of the rollout."""

    @classmethod
    def of(cls, **parts: float) -> RewardResult:
        """The sum of the parts."""
        return cls(value=sum(parts.values()), parts=parts)


@runtime_checkable
class ProcessReward(Protocol):
    """A reward that starts a process."""

    def start_with(self, environ: Mapping[str, str]) -> None:
        """Takes the environment of its process, before the first response is scored."""
        ...


class Reward(Protocol):
    """Scores one response.

    Built-in ones are quick and pure and run on the event loop, but for those whose class says `blocks = True`; these
    and a third party's run on a thread, so they may block, but two calls of one may run at once. Whatever it raises
    fails the rollout. One that names a fourth parameter `rollout` is given a `RolloutView` by it, as a keyword; one
    that names `auxiliary_models` is given those of the experiment, asks them in a coroutine `async def score`, which
    runs on an event loop and never blocks.
    """

    def score(
        self, response: str, truth: str, task: Task
    ) -> RewardResult | Mapping[str, float] | float | Awaitable[RewardResult | Mapping[str, float] | float]:
        """The reward of a whole response, its `reply_prefix` included; of a mapping the sum counts."""
        ...


class RolloutView(msgspec.Struct, frozen=True):
    """The model's answers so far, the scored one last; at least one."""

    turns: tuple[Response, ...]

    @property
    def response_tokens(self) -> int:
        """The number of tokens that the model drew for the scored answer."""
        return len(self.turns[-1].tokens)

    @property
    def finish(self) -> str:
        """Why the scored answer ended: `stop`, or `length` where it was cut at its limit."""
        return self.turns[-1].finish

    @property
    def drawn_tokens(self) -> int:
        """The number of tokens that the model drew in all turns."""
        return sum(len(turn.tokens) for turn in self.turns)


def was_cut(rollout: RolloutView | None) -> bool:
    """True if the scored answer ended at its length limit; of a text alone nobody knows."""
    return rollout is not None and rollout.finish == "length"
