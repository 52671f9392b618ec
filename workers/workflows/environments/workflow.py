"""`EnvironmentWorkflow`: a rollout is an episode of an environment, with the environment's own reward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import msgspec

from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError, RolloutError
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.task import Task
from rftd.workers.generation.model import Model
from rftd.workers.workflows.agent_command import Command, check_folder
from rftd.workers.workflows.agent_program import Most
from rftd.workers.workflows.environments.address import environment_address
from rftd.workers.workflows.environments.server import EnvironmentServer, ServedProgram, checked_bounds
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.sandbox.sandbox import Isolation, SandboxBounds
from rftd.workers.workflows.simple import with_system_prompt
from rftd.workers.workflows.trajectory import Trajectory

_BOUNDS: Final = SandboxBounds()
"""Default bounds of a command."""
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
"""Type of a time limit."""


class EnvironmentWorkflow:
    """Plays an episode turn by turn: the environment answers each text of the model, and gives the reward."""

    default_reward: ClassVar[str | None] = "exact_match_reward"
    """Never called: the environment scores."""

    def __init__(
        self,
        *,
        environment: str,
        environment_command: Command | None = None,
        environment_folder: str | None = None,
        environ: dict[str, str] = {},  # noqa: B006 - read only
        isolation: Isolation = "auto",
        network: bool = False,
        readable: list[str] = [],  # noqa: B006
        bounds: SandboxBounds = _BOUNDS,
        max_steps: Most = 16,
        start_s: _Seconds = 180.0,
        step_s: _Seconds = 60.0,
    ) -> None:
        """`environment` is an address, set by a taskset whose `path` is one. `environment_command` is the server of an
        address of kind `command`, with a copy of `environment_folder`; other arguments are those of an agent's command.

        After `max_steps` answers the episode is scored as it is. A server has `start_s` seconds to listen, and `step_s`
        to answer each call.
        """
        sandbox_bounds = bounds if isinstance(bounds, SandboxBounds) else converted(bounds, SandboxBounds)
        self.program: Final = ServedProgram(
            address=environment_address(environment),
            command=tuple(environment_command or ()),
            folder=environment_folder,
            environ=dict(environ),
            isolation=isolation,
            network=network,
            readable=tuple(readable),
            bounds=checked_bounds(sandbox_bounds),
            start_s=start_s,
            step_s=step_s,
        )
        """Command of the environment's server, with everything given to it."""
        self._server = EnvironmentServer(self.program)
        """Server of the environment, shared by this worker's rollouts."""
        self._max_steps = max_steps

    @staticmethod
    def check_arguments(
        *,
        environment: str,
        environment_command: Sequence[str] | None = None,
        environment_folder: str | None = None,
        isolation: Isolation = "auto",
        **_: Any,
    ) -> None:
        """Raises ConfigError for an invalid address, and for arguments without a meaning together."""
        environment_address(environment).check(environment_command or ())
        if isolation == "docker":
            problem = "isolation docker has no way to the environment's socket"
            raise ConfigError(problem, field="isolation", fix="use namespaces, process or auto")
        if environment_folder is not None:
            check_folder(Path(environment_folder), "environment_folder")

    async def run(self, task: Task, model: Model, reward: Scorer) -> RolloutResult:
        """Returns the conversation, with the environment's reward and its figures as metrics."""
        trajectory = Trajectory()
        messages = list(with_system_prompt(task, task.system_prompt))
        async with self._server.session() as session:
            observation = await session.reset(task.raw, model.seed.int >> 97)
            if observation != task.prompt:
                problem = f"environment {self.program.address.name!r} changed its dataset: another prompt for this row"
                raise RolloutError(problem, where=task.where, fix="restore the environment, or submit a new experiment")
            for _ in range(self._max_steps):
                response = await model.chat(messages, reply_prefix=task.reply_prefix or "")
                trajectory.add(response)
                if response.truncated:
                    return trajectory.result(RewardResult(value=0.0))
                text = (task.reply_prefix or "") + response.text
                step = await session.step(text)
                if step.done:
                    break
                messages += [Message("assistant", text), Message("user", step.observation)]
            score = await session.score()
        return trajectory.result(RewardResult(value=score.reward, parts=score.parts))
