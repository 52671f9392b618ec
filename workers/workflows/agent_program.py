"""`AgentProgramWorkflow`: a rollout is a run of an agent program calling the model over OpenAI's API.

The program is a function of a third-party package, found by its name in the entry-point group `rftd.agents`, or of a
Python file submitted with the experiment, named as `FILE.py:NAME`:

    async def solve(task, *, base_url, api_key) -> float | Mapping[str, float] | RewardResult | None

Every answer received by the program becomes part of the rollout, whichever client it uses. The return value is the
reward; for None, the task's reward scores the last answer. A function with a parameter `auxiliary_models` receives the
address of each auxiliary model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from rftd.ops import limits
from rftd.ops.errors import ConfigError, RolloutError
from rftd.ops.plugins import Plugins
from rftd.workers.datasets.task import Task
from rftd.workers.generation.call_spans import agent_run
from rftd.workers.generation.model import CallBounds, HttpModel, Model
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.source import SourceName, source_name
from rftd.workers.workflows.threads import on_daemon_thread
from rftd.workers.workflows.workflow_source import open_agent_source

AGENTS: Final[Plugins[Any]] = Plugins("agent", group="rftd.agents", table={})
"""The agent programs by name; all are third-party."""

Most = Annotated[int, msgspec.Meta(ge=1)]
"""Type of a maximum, from 1."""


class AgentProgramWorkflow:
    """Runs an agent program with a base URL and a key for one rollout.

    An asynchronous function runs on the explorer's loop and must not block; any other function runs on a separate
    thread. A program still running after its time-out receives no more answers.
    """

    default_reward: ClassVar[str | None] = "exact_match_reward"
    """Name of the reward for tasksets that name no reward themselves."""

    def __init__(
        self,
        *,
        agent: str,
        sampling: Literal["request", "taskset"] = "request",
        max_calls: Most = limits.ENDPOINT_CALLS,
        max_concurrent_calls: Most = limits.ENDPOINT_CONCURRENT_CALLS,
        max_tokens: Most = limits.ENDPOINT_TOKENS,
    ) -> None:
        """With `sampling: taskset`, the program's sampling settings such as temperature are ignored."""
        self._name = agent
        self._agent: Callable[..., Any] = _unopened if source_name(agent) is not None else AGENTS.load(agent)
        self._bounds = CallBounds(calls=max_calls, concurrent=max_concurrent_calls, tokens=max_tokens)
        self._lengths_only = sampling == "taskset"
        self._wants_auxiliary = _has_parameter(self._agent, "auxiliary_models")

    @staticmethod
    def check_arguments(*, agent: str, **_: Any) -> None:
        """Raises ConfigError if the agent is neither registered nor in a submitted file."""
        if source_name(agent) is None:
            AGENTS.check(agent)

    def open_source(self, name: SourceName, sources: Mapping[str, str]) -> None:
        """Takes the program of a submitted Python file. Raises ConfigError if the file is missing or fails."""
        if name.file not in sources:
            raise ConfigError(f"{name.file} is not among the experiment's sources", fix="submit it with `rftd submit`")
        self._agent = open_agent_source(name, sources[name.file])
        self._wants_auxiliary = _has_parameter(self._agent, "auxiliary_models")

    async def run(self, task: Task, model: Model, reward: Scorer) -> list[RolloutResult]:
        """Returns all sequences drawn for the program, with the program's reward."""
        async with AsyncExitStack() as stack:
            further_arguments: dict[str, Any] = {}
            if self._wants_auxiliary:
                addresses = [
                    await stack.enter_async_context(auxiliary_model.served())
                    for auxiliary_model in model.auxiliary_models
                ]
                further_arguments["auxiliary_models"] = addresses
            opening = model.served(self._bounds, lengths_only=self._lengths_only)
            served = await stack.enter_async_context(opening)
            try:
                with agent_run(self._name):
                    returned = await self._run_agent(task, served, further_arguments)
            except Exception as error:
                # The program saw an HTTP error and raised its client's exception; the model's own failure is more
                # precise.
                if served.failure is not None:
                    raise served.failure from error
                if served.cut is None:
                    raise
                # As for overlong prompts in every workflow: earlier turns stay in the record, and none is trained.
                return served.results(RewardResult(value=0.0), cut=served.cut)
        if not served.turns:
            raise RolloutError(
                f"agent {self._name!r} received no answer from the model",
                fix="let it call the model at the base URL, with the key passed to it",
            )
        return served.results(await self._score_return(returned, served, task, reward))

    async def _run_agent(self, task: Task, served: HttpModel, further_arguments: dict[str, Any]) -> object:
        """Calls the program, on a thread unless the program is a coroutine function. Raises RolloutError if the program
        exits.
        """

        def call() -> object:
            try:
                return self._agent(task, base_url=served.base_url, api_key=served.api_key, **further_arguments)
            except SystemExit as leaving:
                raise self._exit_error(leaving) from leaving

        # For a callable object, the method decides.
        method = getattr(self._agent, "__call__", None)  # noqa: B004
        awaited = inspect.iscoroutinefunction(self._agent) or inspect.iscoroutinefunction(method)
        returned = call() if awaited else await on_daemon_thread(call)
        try:
            return await returned if inspect.isawaitable(returned) else returned
        except SystemExit as leaving:
            raise self._exit_error(leaving) from leaving

    def _exit_error(self, leaving: SystemExit) -> RolloutError:
        """Builds the error of a program that exited."""
        return RolloutError(f"agent {self._name!r} exited with {leaving.code!r}", fix="let it return")

    async def _score_return(self, returned: object, served: HttpModel, task: Task, reward: Scorer) -> RewardResult:
        """Returns the reward returned by the program, or the reward of the program's last answer."""
        if returned is not None:
            return reward.checked(returned, task)
        return await reward.score(served.turns[-1].text, task, turns=served.turns)


async def _unopened(task: Task, *, base_url: str, api_key: str) -> None:
    """Raises ConfigError: the program of a file runs after `open_source`."""
    raise ConfigError("the agent program of a file has not been opened")


def _has_parameter(agent: Callable[..., Any], parameter: str) -> bool:
    """True if the agent's signature has this parameter."""
    try:
        return parameter in inspect.signature(agent).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False
