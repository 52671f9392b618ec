"""`AgentProgramWorkflow`: a rollout is a run of an agent program, which asks the model over OpenAI's API.

The program is a function of a third party's package, found by its name in the entry-point group `rftd.agents`:

    async def solve(task, *, base_url, api_key) -> float | Mapping[str, float] | RewardResult | None

Whatever it uses to ask, every answer that it was given becomes part of the rollout. What it returns is the reward; if
it returns nothing, the task's reward scores the last answer. A function with a parameter `auxiliary_models` is given
the address of each auxiliary model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.ops.plugins import Plugins
from rftd.workers.datasets.task import Task
from rftd.workers.generation.call_spans import agent_run
from rftd.workers.generation.model import CallBounds, HttpModel, Model
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.threads import on_daemon_thread

AGENTS: Final[Plugins[Any]] = Plugins("agent", group="rftd.agents", table={})
"""The agent programs by name; all of them are third parties'."""

Most = Annotated[int, msgspec.Meta(ge=1)]


class AgentProgramWorkflow:
    """Runs the program with a base URL and a key of the rollout's own.

    An asynchronous function runs on the explorer's loop and must not block; another one runs on a thread of its own. A
    program that goes on after its time-out gets no answer any more.
    """

    default_reward: ClassVar[str | None] = "exact_match_reward"

    def __init__(
        self,
        *,
        agent: str,
        sampling: Literal["request", "taskset"] = "request",
        max_calls: Most = limits.ENDPOINT_CALLS,
        max_concurrent_calls: Most = limits.ENDPOINT_CONCURRENT_CALLS,
        max_tokens: Most = limits.ENDPOINT_TOKENS,
    ) -> None:
        """The program's temperature and the like are passed over with `sampling: taskset`."""
        self._name = agent
        self._agent: Callable[..., Any] = AGENTS.load(agent)
        self._bounds = CallBounds(calls=max_calls, concurrent=max_concurrent_calls, tokens=max_tokens)
        self._lengths_only = sampling == "taskset"
        self._asks_others = _takes(self._agent, "auxiliary_models")

    @staticmethod
    def check_arguments(*, agent: str, **_: Any) -> None:
        """Raises ConfigError if nobody registered the agent."""
        AGENTS.check(agent)

    async def run(self, task: Task, model: Model, reward: Scorer) -> list[RolloutResult]:
        """All sequences that the program had drawn, with its reward."""
        async with AsyncExitStack() as stack:
            beside: dict[str, Any] = {}
            if self._asks_others:
                others = [await stack.enter_async_context(each.served()) for each in model.auxiliary_models]
                beside["auxiliary_models"] = others
            asked = model.served(self._bounds, lengths_only=self._lengths_only)
            served = await stack.enter_async_context(asked)
            try:
                with agent_run(self._name):
                    returned = await self._run_agent(task, served, beside)
            except Exception as error:
                # The program was told by an HTTP error, and raised one of its client's: this one says more.
                if served.failure is not None:
                    raise served.failure from error
                if served.cut is None:
                    raise
                # As for a prompt that does not fit in any workflow: what was said stays, and none of it is trained.
                return served.results(RewardResult(value=0.0), cut=served.cut)
        if not served.turns:
            raise RolloutError(
                f"agent {self._name!r} was given no answer of the model",
                fix="let it ask at the base URL and with the key that it is called with",
            )
        return served.results(await self._score(returned, served, task, reward))

    async def _run_agent(self, task: Task, served: HttpModel, beside: dict[str, Any]) -> object:
        def call() -> object:
            try:
                return self._agent(task, base_url=served.base_url, api_key=served.api_key, **beside)
            except SystemExit as leaving:
                raise self._left(leaving) from leaving

        # A callable object tells by its method.
        method = getattr(self._agent, "__call__", None)  # noqa: B004
        awaited = inspect.iscoroutinefunction(self._agent) or inspect.iscoroutinefunction(method)
        returned = call() if awaited else await on_daemon_thread(call)
        try:
            return await returned if inspect.isawaitable(returned) else returned
        except SystemExit as leaving:
            raise self._left(leaving) from leaving

    def _left(self, leaving: SystemExit) -> RolloutError:
        return RolloutError(f"agent {self._name!r} exited with {leaving.code!r}", fix="let it return")

    async def _score(self, returned: object, served: HttpModel, task: Task, reward: Scorer) -> RewardResult:
        if returned is not None:
            return reward.checked(returned, task)
        return await reward.score(served.turns[-1].text, task, turns=served.turns)


def _takes(agent: Callable[..., Any], parameter: str) -> bool:
    try:
        return parameter in inspect.signature(agent).parameters
    except (TypeError, ValueError):  # a callable that does not say
        return False
