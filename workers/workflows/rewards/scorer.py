"""Opens a reward by name, and turns each call into a result or a RolloutError."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.ops.tracing.conventions import REWARD_VALUE
from rftd.ops.tracing.tracer import current
from rftd.workers.datasets.task import Task
from rftd.workers.generation.auxiliary.auxiliary_model import AuxiliaryModel
from rftd.workers.generation.call_spans import reward_span
from rftd.workers.generation.response import Response
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.rewards.reward import ProcessReward, Reward, RewardResult, RolloutView, extracted_note
from rftd.workers.workflows.source import open_reward_source, source_name
from rftd.workers.workflows.threads import on_daemon_thread


class Scorer:
    """A reward as used by workflows: awaitable, with its return value checked and its errors turned into
    RolloutErrors.
    """

    def __init__(self, name: str, reward: Reward, *, on_thread: bool) -> None:
        """`on_thread`: the reward may block, and runs on a thread."""
        self.name = name
        self._reward = reward
        self._on_thread = on_thread
        self._rollout = _parameter(reward, "rollout")
        """The reward's parameter for the rollout; None without one."""
        self._uses_models = _parameter(reward, "auxiliary_models") is not None
        """True if the reward has a parameter for auxiliary models."""
        self._awaited = inspect.iscoroutinefunction(reward.score)
        """True if `score` is a coroutine function."""
        self._models: Sequence[AuxiliaryModel] = ()
        """Auxiliary models of the rollout."""

    def beside(self, models: Sequence[AuxiliaryModel]) -> Scorer:
        """Returns a scorer for one rollout with its auxiliary models; the same object if the reward uses none."""
        if not self._uses_models:
            return self
        scorer = copy.copy(self)
        scorer._models = models
        return scorer

    @property
    def asks_models(self) -> bool:
        """True if the reward calls auxiliary models."""
        return self._uses_models

    @property
    def quick(self) -> bool:
        """True if scoring never waits, so that `score_now` may be used: a built-in reward that neither blocks nor
        awaits.
        """
        return not self._on_thread and not self._awaited

    async def score(self, response: str, task: Task, *, turns: Sequence[Response] = ()) -> RewardResult:
        """Returns the reward of a response to a task.

        `turns` are the model's answers so far, the scored answer last, for rewards that use the rollout. Raises
        RolloutError, with the reward's own words and the task's row, if the reward raised or returned no finite number,
        or if it uses the rollout and no turn is passed.
        """
        if self.quick:
            return self.score_now(response, task, turns=turns)
        parent = current()
        if parent is None:
            return await self._score_awaiting(response, task, turns)
        with reward_span(parent, self.name) as span:
            scored = await self._score_awaiting(response, task, turns)
            span.attributes[REWARD_VALUE] = float(scored.value)
        return scored

    async def _score_awaiting(self, response: str, task: Task, turns: Sequence[Response]) -> RewardResult:
        """Scores on a thread or on the loop. Raises RolloutError."""
        arguments = self._rollout_arguments(task, turns)
        try:
            returned: object
            if self._awaited:
                returned = await self._reward.score(response, task.truth, task, **arguments)  # type: ignore[misc]
            else:
                returned = await on_daemon_thread(lambda: self._reward.score(response, task.truth, task, **arguments))
        except BaseException as error:
            running_task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and running_task is not None and running_task.cancelling():
                raise  # the caller gave up the rollout
            if self._awaited and isinstance(error, RolloutError):
                raise  # an auxiliary model's error explains itself
            # An exit, or a cancelled future awaited by the reward, would otherwise end more than this rollout.
            raise self._wrap_error(error, task) from error
        return self.checked(returned, task)

    def score_now(self, response: str, task: Task, *, turns: Sequence[Response] = ()) -> RewardResult:
        """Returns the reward as `score` does, without awaiting: the reward must be quick."""
        assert self.quick, self.name
        parent = current()
        if parent is None:
            return self._score_directly(response, task, turns)
        with reward_span(parent, self.name) as span:
            scored = self._score_directly(response, task, turns)
            span.attributes[REWARD_VALUE] = float(scored.value)
        return scored

    def _score_directly(self, response: str, task: Task, turns: Sequence[Response]) -> RewardResult:
        """Scores a response without awaiting anything. Raises RolloutError if the reward fails."""
        arguments = self._rollout_arguments(task, turns)
        try:
            returned = self._reward.score(response, task.truth, task, **arguments)
        except Exception as error:
            raise self._wrap_error(error, task) from error
        return self.checked(returned, task)

    def _rollout_arguments(self, task: Task, turns: Sequence[Response]) -> dict[str, Any]:
        """Returns the arguments for rollout and auxiliary models, as far as the reward has them."""
        arguments = {"auxiliary_models": self._models} if self._uses_models else {}
        if self._rollout is None or (not turns and self._rollout.default is not inspect.Parameter.empty):
            return arguments
        if not turns:
            raise RolloutError(
                f"reward {self.name!r} needs the rollout, but workflow {task.workflow!r} passed only the text",
                where=task.where,
                fix="let the workflow call reward.score(text, task, turns=trajectory.turns)",
            )
        return {"rollout": RolloutView(tuple(turns)), **arguments}

    def checked(self, returned: object, task: Task) -> RewardResult:
        """Converts a reward's return value (a number, named parts, a RewardResult) to a result. Raises RolloutError as
        `score`.
        """
        extracted: str | None = None
        if isinstance(returned, RewardResult):
            raw_total = returned.value
            parts = returned.parts
            extracted = extracted_note(returned.extracted)
        elif isinstance(returned, Mapping):
            parts = dict(returned)
            if not parts:
                raise self._reward_error("returned an empty mapping instead of a number", task)
            raw_total = sum(self._finite_number(summand, task, name) for name, summand in parts.items())
        else:
            raw_total = self._finite_number(returned, task)
            parts = {}
        checked = {str(name): self._finite_number(summand, task, name) for name, summand in parts.items()}
        total = self._finite_number(raw_total, task)
        if abs(total) > limits.REWARD_LARGEST:
            raise self._reward_error(
                f"returned {total}, beyond {limits.REWARD_LARGEST:g}: no trainer computes with it", task
            )
        return RewardResult(value=total, parts=checked, extracted=extracted)

    def _finite_number(self, returned: object, task: Task, name: object = None) -> float:
        """Returns a number returned by the reward. Raises RolloutError unless it is finite."""
        try:
            # Scalars of numpy and torch convert; a text in the form of a number is a mistake.
            number = math.nan if isinstance(returned, str | bytes) else float(returned)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            shown = repr(returned) if name is None else f"{name}={returned!r}"
            raise self._reward_error(f"returned {shown[:200]}, which is not a finite number", task)
        return number

    def _wrap_error(self, error: BaseException, task: Task) -> RolloutError:
        """Builds the error for an exception of the reward."""
        text = f"{type(error).__name__}: {error}"[: limits.ERROR_TEXT_CHARS]
        return self._reward_error(f"raised {text}", task)

    def _reward_error(self, problem: str, task: Task) -> RolloutError:
        """Builds an error with the reward's name and the task's row."""
        return RolloutError(
            f"reward {self.name!r} {problem}",
            where=task.where,
            fix="correct the reward, or the row that it cannot score",
        )


def _parameter(reward: Reward, name: str) -> inspect.Parameter | None:
    """Returns a parameter of the reward's `score`; None without one."""
    try:
        return inspect.signature(reward.score).parameters.get(name)
    except (TypeError, ValueError):  # a callable without a signature
        return None


def open_scorer(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    sources: Mapping[str, str] | None = None,
    confined: bool = False,
) -> Scorer:
    """Opens the scorer of a registered reward, or of one named `FILE.py:NAME` with the file's text in `sources`.

    `environ` is the environment of its processes, None: a minimal one. With `confined`, a source runs in a sandbox.
    Raises ConfigError for the name or the
    arguments.
    """
    source = source_name(name) if sources else None
    if source is not None and sources is not None and source.file in sources:
        if confined:
            from rftd.workers.workflows.rewards.confined import ConfinedReward

            return Scorer(name, ConfinedReward(source, sources[source.file], arguments or {}), on_thread=False)
        return Scorer(name, open_reward_source(source, sources[source.file], arguments or {}), on_thread=True)
    reward = REWARDS.open(name, arguments)
    if environ is not None and isinstance(reward, ProcessReward):
        reward.start_with(environ)
    return Scorer(name, reward, on_thread=not REWARDS.builtin(name) or getattr(reward, "blocks", False))
