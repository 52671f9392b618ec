"""`AgentCommandWorkflow`: a rollout is a run of a command, in any language, calling the model over OpenAI's API.

The command runs in a sandbox: a folder with a copy of the agent's files and the task in `task.json`, an environment
with address and key of the model, and processes of its own. Every answer that it received becomes part of the rollout.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

import msgspec

from rftd.ops import limits
from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError, RolloutError
from rftd.workers.datasets.task import Task
from rftd.workers.generation.call_spans import agent_run
from rftd.workers.generation.model import CallBounds, HttpModel, Model
from rftd.workers.workflows.agent_program import Most
from rftd.workers.workflows.result import RolloutResult
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.rewards.scorer import Scorer
from rftd.workers.workflows.sandbox.registry import open_sandbox
from rftd.workers.workflows.sandbox.run_folder import RunFolder, on_thread, rollout_folder
from rftd.workers.workflows.sandbox.sandbox import Isolation, SandboxBounds, SandboxCommand, SandboxReport

Command = Annotated[list[str], msgspec.Meta(min_length=1, max_length=256)]
"""Words of a command line."""
_BOUNDS: Final = SandboxBounds()
"""Default bounds of a command."""
TASK_FILE: Final = "task.json"
"""Name of the file with prompt, messages and columns of the task as JSON, in the command's folder."""
PROMPT_FILE: Final = "prompt.txt"
"""Name of the file with the prompt alone, for programs that read no JSON."""


class AgentCommandWorkflow:
    """Runs an agent's command for each rollout, and scores its last answer, or a file that it wrote."""

    default_reward: ClassVar[str | None] = "exact_match_reward"
    """Name of the reward for tasksets that name no reward themselves."""

    def __init__(
        self,
        *,
        agent_command: Command,
        agent_folder: str | None = None,
        environ: dict[str, str] = {},  # noqa: B006 - read only
        columns: list[str] = [],  # noqa: B006
        files_column: str | None = None,
        answer_file: str | None = None,
        reward_file: str | None = None,
        isolation: Isolation = "auto",
        image: str = "",
        network: bool = False,
        readable: list[str] = [],  # noqa: B006
        bounds: SandboxBounds = _BOUNDS,
        sampling: Literal["request", "taskset"] = "request",
        max_calls: Most = limits.ENDPOINT_CALLS,
        max_concurrent_calls: Most = limits.ENDPOINT_CONCURRENT_CALLS,
        max_tokens: Most = limits.ENDPOINT_TOKENS,
    ) -> None:
        """`agent_folder` is copied for each rollout. `columns` of the row are in `task.json`; `files_column` maps names
        of further files to texts.

        The reward scores the text of `answer_file`, or `reward_file` has the reward as JSON: a number, or named parts.
        Without `network`, only the model can be reached. `readable` are paths besides the system's. `environ` has
        variables of the command besides the model's, `bounds` limits its resources, and `isolation` chooses the
        sandbox, with an `image` for Docker alone.

        With `sampling` `request`, a call may set sampling settings; with `taskset`, only the length of its answer.
        `max_calls`, `max_concurrent_calls` and `max_tokens` bound the answers of one rollout.
        """
        self._command = tuple(agent_command)
        self._folder = None if agent_folder is None else Path(agent_folder)
        self._environ = dict(environ)
        self._columns = tuple(columns)
        self._files_column = files_column
        self._answer_file = answer_file
        self._reward_file = reward_file
        self._sandbox = open_sandbox(isolation, image)
        self._network = network
        self._readable = tuple(readable)
        self._bounds = bounds if isinstance(bounds, SandboxBounds) else converted(bounds, SandboxBounds)
        self._calls = CallBounds(calls=max_calls, concurrent=max_concurrent_calls, tokens=max_tokens)
        self._lengths_only = sampling == "taskset"
        """True: calls decide where answers end, and the experiment decides the other sampling settings."""

    @staticmethod
    def check_arguments(
        *,
        agent_command: Sequence[str],
        agent_folder: str | None = None,
        answer_file: str | None = None,
        reward_file: str | None = None,
        isolation: Isolation = "auto",
        image: str = "",
        **_: Any,
    ) -> None:
        """Raises ConfigError for a command without a program, arguments excluding each other, an unusable sandbox, and
        a folder that is missing or too large.
        """
        if not agent_command[0] or any("\0" in word for word in agent_command):
            raise ConfigError("agent_command names no program", field="agent_command", fix="write [node, agent.mjs]")
        if answer_file and reward_file:
            problem = "answer_file and reward_file are both set, but a rollout has one reward"
            raise ConfigError(problem, field="reward_file", fix="leave one of them out")
        open_sandbox(isolation, image)
        if agent_folder is not None:
            check_folder(Path(agent_folder), "agent_folder")

    async def run(self, task: Task, model: Model, reward: Scorer) -> list[RolloutResult]:
        """Returns all sequences drawn for the command, with the reward; the last has figures of the run as metrics.

        The reward is 0 if the command fails after a prompt too long for the model. Raises RolloutError for any other
        failure of the command or of the model, for a command that received no answer, and for an unreadable reward.
        """
        opening = model.served(self._calls, lengths_only=self._lengths_only)
        async with opening as served, rollout_folder() as folder:
            await on_thread(self._prepare, folder, task)
            try:
                with agent_run(self._command[0]):
                    report = await self._sandbox.run(self._sandbox_command(folder, served))
                report.check(f"agent command {self._command[0]!r}", self._bounds)
            except RolloutError as error:
                # As with agent programs: the model's own failure is more precise than the command's.
                if served.failure is not None:
                    raise served.failure from error
                if served.cut is None:
                    raise
                return served.results(RewardResult(value=0.0), cut=served.cut)
            if not served.turns:
                raise RolloutError(
                    f"agent command {self._command[0]!r} received no answer from the model",
                    fix="let it call the model at OPENAI_BASE_URL with OPENAI_API_KEY",
                )
            scored = await self._score_run(folder, served, task, reward)
            return _with_figures(served.results(scored), report)

    def _prepare(self, folder: RunFolder, task: Task) -> None:
        """Writes the files of a rollout into its folder: the agent's, the task's, and those of `files_column`. Blocks.

        Raises RolloutError for a column missing in the row, or without a mapping of file names to texts.
        """
        if self._folder is not None:
            folder.copy(self._folder)
        missing = [name for name in (*self._columns, *filter(None, [self._files_column])) if name not in task.raw]
        if missing:
            raise RolloutError(f"the row has no column {missing[0]!r}", where=task.where)
        content = {
            "prompt": task.prompt,
            "messages": [message.as_dict() for message in task.messages],
            "columns": {name: task.raw[name] for name in self._columns},
        }
        folder.write(TASK_FILE, json.dumps(content, ensure_ascii=False, default=str).encode())
        folder.write(PROMPT_FILE, task.prompt.encode())
        if self._files_column is not None:
            for name, text in _files_of_column(task, self._files_column).items():
                folder.write(name, text.encode())

    def _sandbox_command(self, folder: RunFolder, served: HttpModel) -> SandboxCommand:
        """Returns the command with the variables naming the model's endpoint."""
        address = urlsplit(served.base_url)
        assert address.port is not None
        # For the clients of OpenAI and Anthropic, LiteLLM, and programs without a package.
        model = {
            "OPENAI_BASE_URL": served.base_url,
            "OPENAI_API_BASE": served.base_url,
            "OPENAI_API_KEY": served.api_key,
            "ANTHROPIC_BASE_URL": served.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": served.api_key,
            "NO_PROXY": "127.0.0.1",
            "RFTD_TASK": TASK_FILE,
        }
        return SandboxCommand(
            words=self._command,
            environ={**self._environ, **model},
            folder=folder,
            bounds=self._bounds,
            readable=self._readable,
            network=self._network,
            ports=(address.port,),
        )

    async def _score_run(self, folder: RunFolder, served: HttpModel, task: Task, reward: Scorer) -> RewardResult:
        """Returns the reward written by the command, or the reward of the command's answer file or last answer."""
        if self._reward_file is not None:
            written = await asyncio.to_thread(folder.read, self._reward_file)
            try:
                return reward.checked(json.loads(_written_text(written, self._reward_file)), task)
            except json.JSONDecodeError as error:
                raise RolloutError(f"the command's reward is no JSON: {error}", where=self._reward_file) from error
        answer = served.turns[-1].text
        if self._answer_file is not None:
            written = await asyncio.to_thread(folder.read, self._answer_file)
            answer = _written_text(written, self._answer_file)
        return await reward.score(answer, task, turns=served.turns)


def _written_text(written: bytes | None, name: str) -> str:
    """Returns the text of a written file. Raises RolloutError for a missing one."""
    if written is None:
        raise RolloutError("the command did not write its file", where=name, fix="let it write the file before it ends")
    return written.decode("utf-8", "replace")


def _files_of_column(task: Task, column: str) -> Mapping[str, str]:
    """Returns file names with texts from a column. Raises RolloutError for another content."""
    files = task.raw[column]
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise RolloutError(f"column {column!r} is not a mapping of file names to texts", where=task.where)
    return files


def check_folder(folder: Path, field: str) -> None:
    """Raises ConfigError for a folder that does not exist here, or is too large to be copied for each rollout."""
    if not folder.is_dir():
        raise ConfigError(f"{field} {str(folder)!r} is no folder", field=field, fix="name a folder")
    total_bytes = 0
    for path in folder.rglob("*"):
        total_bytes += path.lstat().st_size
        if total_bytes > limits.SANDBOX_TASK_SIZE_BYTES:
            problem = f"{field} has more than {limits.SANDBOX_TASK_SIZE_BYTES // limits.MIB} MiB"
            raise ConfigError(problem, field=field, fix="name large folders as `readable`")


def _with_figures(steps: list[RolloutResult], report: SandboxReport) -> list[RolloutResult]:
    """Returns the steps, the last one with the figures of the command's run."""
    last = steps[-1]
    return [*steps[:-1], msgspec.structs.replace(last, metrics={**last.metrics, **report.metrics})]
