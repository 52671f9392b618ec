"""AgentScope's agents as workflows: `AgentScopeWorkflow` and its relatives, under Trinity-RFT's names.

Each rollout is a run of `run_agent` in a sandbox, by rftd's own Python if AgentScope is installed there, else by the
Python named `python`. All answers drawn for the agent are trained; the closing call of the agent is scored.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from rftd.ops import limits
from rftd.ops.errors import ConfigError
from rftd.workers.datasets.task import Task
from rftd.workers.generation.model import Model
from rftd.workers.workflows.agent_command import AgentCommandWorkflow
from rftd.workers.workflows.agent_program import Most
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.sandbox.python_homes import python_homes
from rftd.workers.workflows.sandbox.run_folder import RunFolder
from rftd.workers.workflows.sandbox.sandbox import Isolation, SandboxBounds

_PROGRAM: Final = Path(__file__).with_name("run_agent.py")
"""The command's program."""
_BOUNDS: Final = SandboxBounds()
"""Default bounds of a command."""
_SEARCH_SERVERS: Final = {"searxng": ["npx", "-y", "mcp-searxng"], "tavily": ["npx", "-y", "tavily-mcp@latest"]}
"""Commands of the search servers known to Trinity-RFT."""


class AgentScopeWorkflow(AgentCommandWorkflow):
    """Runs a ReAct agent with AgentScope's meta tool on a problem of mathematics."""

    default_reward: ClassVar[str | None] = "math_boxed_reward"
    kind: ClassVar[str] = "react"
    """The agent's kind, a key of `run_agent`."""

    def __init__(
        self,
        *,
        python: str = "",
        type: Literal["gsm8k"] = "gsm8k",
        max_turns: Most = 10,
        environ: dict[str, str] = {},  # noqa: B006 - read only
        isolation: Isolation = "auto",
        network: bool = False,
        readable: list[str] = [],  # noqa: B006
        bounds: SandboxBounds = _BOUNDS,
        max_calls: Most = limits.ENDPOINT_CALLS,
    ) -> None:
        """`python` is the path of a Python with AgentScope, else rftd's own. `max_turns` bounds thoughts and calls of
        tools. The other arguments are those of an agent's command.
        """
        self._set_command(python, environ, isolation, network, readable, bounds, max_calls, answer_file="answer.txt")
        self._settings: dict[str, Any] = {"kind": self.kind, "max_turns": max_turns}

    def _set_command(
        self,
        python: str,
        environ: Mapping[str, str],
        isolation: Isolation,
        network: bool,
        readable: list[str],
        bounds: SandboxBounds,
        max_calls: int,
        **files: Any,
    ) -> None:
        """Sets the command run by that Python."""
        executable = Path(python or sys.executable)
        AgentCommandWorkflow.__init__(
            self,
            agent_command=[str(executable), _PROGRAM.name],
            environ={"PYTHONDONTWRITEBYTECODE": "1", "TERM": "dumb", **environ},
            isolation=isolation,
            network=network,
            readable=[*readable, *python_homes(executable)],
            bounds=bounds,
            sampling="taskset",
            max_calls=max_calls,
            **files,
        )

    @staticmethod
    def check_arguments(*, python: str = "", agent_folder: str | None = None, **arguments: Any) -> None:
        """Raises ConfigError for a missing Python, and for rftd's own without AgentScope."""
        if python and not (python.startswith("/") and Path(python).is_file()):
            raise ConfigError(f"python {python!r} is no program", field="python", fix="write its path from / on")
        if not python and importlib.util.find_spec("agentscope") is None:
            raise ConfigError(
                "the package agentscope is not installed here",
                field="python",
                fix="install requirements/agentscope.txt into an environment, and set workflow_args: "
                "{python: /PATH/bin/python} (docs/trinity.md)",
            )
        words = [python or sys.executable]
        AgentCommandWorkflow.check_arguments(agent_command=words, agent_folder=agent_folder, **arguments)

    def _prepare(self, folder: RunFolder, task: Task) -> None:
        """Writes the program and its settings besides the files of the task. Blocks."""
        super()._prepare(folder, task)
        folder.write(_PROGRAM.name, _PROGRAM.read_bytes())
        folder.write("agent.json", json.dumps(self._settings).encode())


class AgentScopeMathWorkflow(AgentScopeWorkflow):
    """Runs a ReAct agent with a tool for Python programs on a problem of mathematics."""

    kind: ClassVar[str] = "math"


class AgentScopeSearchWorkflow(AgentScopeWorkflow):
    """Runs a ReAct agent with the tools of a search server; the first auxiliary model judges the answer."""

    default_reward: ClassVar[str | None] = "llm_judge_reward"
    kind: ClassVar[str] = "search"

    def __init__(
        self,
        *,
        python: str = "",
        search_client_type: Literal["searxng", "tavily"] = "searxng",
        search_command: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None,
        max_turns: Most = 10,
        max_model_tokens: Most = 24000,
        environ: dict[str, str] = {},  # noqa: B006 - read only
        isolation: Isolation = "auto",
        network: bool = False,
        readable: list[str] = [],  # noqa: B006
        bounds: SandboxBounds = _BOUNDS,
        max_calls: Most = limits.ENDPOINT_CALLS,
    ) -> None:
        """`search_command` starts the search server, by default that of `search_client_type` by npx. Its address or
        key is given by `environ`, with `network`. Sequences of more than `max_model_tokens` are recorded, not trained.
        """
        self._set_command(python, environ, isolation, network, readable, bounds, max_calls, answer_file="answer.txt")
        command = search_command or _SEARCH_SERVERS[search_client_type]
        self._settings = {"kind": self.kind, "max_turns": max_turns, "search_command": command}
        self._max_model_tokens = max_model_tokens

    async def run(self, task: Task, model: Model, reward: Scorer) -> list[RolloutResult]:
        """Returns the sequences of the agent, those beyond the limit without a trained token."""
        return [
            step
            if len(step.tokens) <= self._max_model_tokens
            else msgspec.structs.replace(step, loss_mask=step.loss_mask * 0)
            for step in await super().run(task, model, reward)
        ]


class AgentScopeFunctionWorkflow(AgentScopeWorkflow):
    """Runs a function of a file with AgentScope's model; its result is the reward."""

    default_reward: ClassVar[str | None] = "zero_reward"
    """Never used: the function has the reward."""
    kind: ClassVar[str] = "function"
    tuner: ClassVar[bool] = False
    """True: the function and its judge have the signatures of AgentScope's tuner."""

    def __init__(
        self,
        *,
        workflow_func: str,
        agent_folder: str,
        judge_func: str = "",
        python: str = "",
        environ: dict[str, str] = {},  # noqa: B006 - read only
        isolation: Isolation = "auto",
        network: bool = False,
        readable: list[str] = [],  # noqa: B006
        bounds: SandboxBounds = _BOUNDS,
        max_calls: Most = limits.ENDPOINT_CALLS,
    ) -> None:
        """`workflow_func` and `judge_func` are `FILE.py:NAME` below `agent_folder`; the row is their task."""
        files = {"agent_folder": agent_folder, "reward_file": "reward.json"}
        self._set_command(python, environ, isolation, network, readable, bounds, max_calls, **files)
        functions = {"workflow_func": workflow_func, "judge_func": judge_func}
        self._settings = {"kind": self.kind, "tuner": self.tuner, **functions}

    def _prepare(self, folder: RunFolder, task: Task) -> None:
        """Writes the whole row, as the function computes the reward itself. Blocks."""
        super()._prepare(folder, task)
        folder.write("row.json", json.dumps(task.raw, ensure_ascii=False, default=str).encode())


class AgentScopeTunerWorkflow(AgentScopeFunctionWorkflow):
    """Runs a function and a judge written for AgentScope's tuner, without auxiliary models."""

    tuner: ClassVar[bool] = True
