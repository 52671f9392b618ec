"""Opens a reward by name, and turns whatever it does into a result or a RolloutError."""

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
from rftd.workers.workflows.rewards.reward import ProcessReward, Reward, RewardResult, RolloutView
from rftd.workers.workflows.threads import on_daemon_thread


class Scorer:
    """A reward as workflows use it: awaitable, checked, never silent."""

    def __init__(self, name: str, reward: Reward, *, on_thread: bool) -> None:
        self.name = name
        self._reward = reward
        self._on_thread = on_thread
        self._rollout = _parameter(reward, "rollout")
        self._asks = _parameter(reward, "auxiliary_models") is not None
        self._awaited = inspect.iscoroutinefunction(reward.score)
        self._models: Sequence[AuxiliaryModel] = ()

    def beside(self, models: Sequence[AuxiliaryModel]) -> Scorer:
        """The scorer for one rollout, which sees these auxiliary models; itself if its reward asks none."""
        if not self._asks:
            return self
        scorer = copy.copy(self)
        scorer._models = models
        return scorer

    @property
    def asks_models(self) -> bool:
        """True if the reward asks auxiliary models."""
        return self._asks

    @property
    def quick(self) -> bool:
        """True if `score` never waits: the reward is one of ours, and neither blocks nor asks."""
        return not self._on_thread and not self._awaited

    async def score(self, response: str, task: Task, *, turns: Sequence[Response] = ()) -> RewardResult:
        """The reward of a response to a task.

        `turns` are the model's answers so far, the scored one last, for rewards that look at the rollout. Raises
        RolloutError, with the reward's own words and the task's row, if it raised or gave no finite number, and if it
        looks at the rollout and no turn is given.
        """
        if self.quick:
            return self.score_now(response, task, turns=turns)
        parent = current()
        if parent is None:
            return await self._scored(response, task, turns)
        with reward_span(parent, self.name) as span:
            result = await self._scored(response, task, turns)
            span.attributes[REWARD_VALUE] = float(result.value)
        return result

    async def _scored(self, response: str, task: Task, turns: Sequence[Response]) -> RewardResult:
        seen = self._seen(task, turns)
        try:
            given: object
            if self._awaited:
                given = await self._reward.score(response, task.truth, task, **seen)  # type: ignore[misc]
            else:
                given = await on_daemon_thread(lambda: self._reward.score(response, task.truth, task, **seen))
        except BaseException as error:
            task_here = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task_here is not None and task_here.cancelling():
                raise  # whoever waits for the rollout gave it up
            if self._awaited and isinstance(error, RolloutError):
                raise  # that of an auxiliary model, which says by itself what is wrong
            # An exit, or a cancelled future that the reward asked, would else end more than this rollout.
            raise self._raised(error, task) from error
        return self.checked(given, task)

    def score_now(self, response: str, task: Task, *, turns: Sequence[Response] = ()) -> RewardResult:
        """The reward that `score` gives, at once: the reward must be quick."""
        assert self.quick, self.name
        parent = current()
        if parent is None:
            return self._scored_now(response, task, turns)
        with reward_span(parent, self.name) as span:
            result = self._scored_now(response, task, turns)
            span.attributes[REWARD_VALUE] = float(result.value)
        return result

    def _scored_now(self, response: str, task: Task, turns: Sequence[Response]) -> RewardResult:
        seen = self._seen(task, turns)
        try:
            given = self._reward.score(response, task.truth, task, **seen)
        except Exception as error:
            raise self._raised(error, task) from error
        return self.checked(given, task)

    def _seen(self, task: Task, turns: Sequence[Response]) -> dict[str, Any]:
        asked = {"auxiliary_models": self._models} if self._asks else {}
        if self._rollout is None or (not turns and self._rollout.default is not inspect.Parameter.empty):
            return asked
        if not turns:
            raise RolloutError(
                f"reward {self.name!r} looks at the rollout, and workflow {task.workflow!r} gave it the text alone",
                where=task.where,
                fix="let the workflow call reward.score(text, task, turns=trajectory.turns)",
            )
        return {"rollout": RolloutView(tuple(turns)), **asked}

    def checked(self, given: object, task: Task) -> RewardResult:
        """What a reward gave (a number, named parts, a RewardResult) as a result. Raises RolloutError as `score`."""
        if isinstance(given, RewardResult):
            value = given.value
            parts = given.parts
        elif isinstance(given, Mapping):
            parts = dict(given)
            if not parts:
                raise self._error("gave a mapping without parts, and no number", task)
            value = sum(self._number(part, task, name) for name, part in parts.items())
        else:
            value = self._number(given, task)
            parts = {}
        checked = {str(name): self._number(part, task, name) for name, part in parts.items()}
        total = self._number(value, task)
        if abs(total) > limits.REWARD_LARGEST:
            raise self._error(f"gave {total}, beyond {limits.REWARD_LARGEST:g}: no trainer computes with it", task)
        return RewardResult(value=total, parts=checked)

    def _number(self, value: object, task: Task, name: object = None) -> float:
        try:
            # Numpy's and torch's scalars convert; a text that looks like a number is a mistake.
            number = math.nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            shown = repr(value) if name is None else f"{name}={value!r}"
            raise self._error(f"gave {shown[:200]}, which is no finite number", task)
        return number

    def _raised(self, error: BaseException, task: Task) -> RolloutError:
        text = f"{type(error).__name__}: {error}"[: limits.ERROR_TEXT_CHARS]
        return self._error(f"raised {text}", task)

    def _error(self, what: str, task: Task) -> RolloutError:
        return RolloutError(
            f"reward {self.name!r} {what}",
            where=task.where,
            fix="correct the reward, or the row that it cannot score",
        )


def _parameter(reward: Reward, name: str) -> inspect.Parameter | None:
    try:
        return inspect.signature(reward.score).parameters.get(name)
    except (TypeError, ValueError):  # a callable that does not say
        return None


def open_scorer(
    name: str, arguments: Mapping[str, Any] | None = None, *, environ: Mapping[str, str] | None = None
) -> Scorer:
    """The scorer of a registered reward, whose processes have the environment `environ`; None: next to nothing.

    Raises ConfigError for the name or the arguments.
    """
    reward = REWARDS.open(name, arguments)
    if environ is not None and isinstance(reward, ProcessReward):
        reward.start_with(environ)
    return Scorer(name, reward, on_thread=not REWARDS.builtin(name) or getattr(reward, "blocks", False))
