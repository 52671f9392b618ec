"""`ConfinedReward`: a reward's source text of a submitter other than the owner, run in a sandbox for each response.

The function sees the response, the truth and the task, and neither the network, the machine's files, nor the explorer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any, Final

from rftd.ops.errors import RolloutError
from rftd.workers.datasets.task import Task
from rftd.workers.workflows.rewards.reward import RewardResult
from rftd.workers.workflows.sandbox.registry import open_sandbox
from rftd.workers.workflows.sandbox.run_folder import rollout_folder
from rftd.workers.workflows.sandbox.sandbox import Isolation, SandboxBounds, SandboxCommand
from rftd.workers.workflows.source import SourceName

BOUNDS: Final = SandboxBounds(wall_s=60.0, memory_mib=1024, disk_mib=64, processes=64, output_mib=4)
"""Bounds of one call."""
_RETURNED: Final = ".returned.json"
"""File with the returned value."""
_SOURCE: Final = ".source.py"
"""File with the source."""
# Runs in the sandbox, where nothing of rftd is: a RewardResult is known by its attributes.
_CALL: Final = """
import inspect, json, sys, types
request = json.load(sys.stdin)
module = types.ModuleType("rftd_source")
sys.modules["rftd_source"] = module
with open(".source.py", encoding="utf-8") as file:
    exec(compile(file.read(), request["file"], "exec"), module.__dict__)
target = getattr(module, request["name"])
arguments = request["arguments"]
if inspect.isclass(target):
    target = target(**arguments).score
    arguments = {}
parameters = inspect.signature(target).parameters.values()
offered = {"response": request["response"], "truth": request["truth"], "task": types.SimpleNamespace(**request["task"])}
takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
passed = {name: offered[name] for name in offered if takes_any or name in {parameter.name for parameter in parameters}}
returned = target(**passed, **arguments)
if inspect.isawaitable(returned):
    import asyncio
    async def awaited():
        return await returned
    returned = asyncio.run(awaited())
note = getattr(returned, "extracted", None)
if hasattr(returned, "parts") and hasattr(returned, "value"):
    answer = {"value": float(returned.value), "parts": {str(k): float(v) for k, v in returned.parts.items()}}
elif hasattr(returned, "items"):
    answer = {"value": None, "parts": {str(k): float(v) for k, v in returned.items()}}
else:
    answer = {"value": float(returned), "parts": {}}
with open(".returned.json", "w", encoding="utf-8") as file:
    json.dump({**answer, "extracted": None if note is None else str(note)[:1000]}, file)
"""
"""Program that calls the function."""


class ConfinedReward:
    """Scores by a function or class of a source in a sandbox, a process for each response."""

    def __init__(
        self, name: SourceName, text: str, arguments: Mapping[str, Any], *, isolation: Isolation = "namespaces"
    ) -> None:
        """`text` is the source, `arguments` those of the experiment file."""
        self._name = name
        self._text = text
        self._arguments = dict(arguments)
        """Arguments of the function."""
        self._sandbox = open_sandbox(isolation)
        """Sandbox of the calls."""

    async def score(self, response: str, truth: str, task: Task) -> RewardResult | dict[str, float]:
        """Returns what the function returned. Raises RolloutError if it fails, or reaches a bound."""
        request = {
            "file": self._name.file,
            "name": self._name.name,
            "arguments": self._arguments,
            "response": response,
            "truth": truth,
            "task": {
                "prompt": task.prompt,
                "truth": task.truth,
                "messages": [message.as_dict() for message in task.messages],
                "taskset": task.taskset,
                "row": task.row,
                "raw": task.raw,
            },
        }
        async with rollout_folder() as folder:
            folder.write(_SOURCE, self._text.encode())
            command = SandboxCommand(
                words=(sys.executable, "-Ic", _CALL),
                warm=True,
                folder=folder,
                bounds=BOUNDS,
                input=json.dumps(request, default=str).encode(),
            )
            report = await self._sandbox.run(command)
            report.check(f"reward {str(self._name)!r}", BOUNDS)
            written = await asyncio.to_thread(folder.read, _RETURNED)
        return _decode_result(written, str(self._name))


def _decode_result(written: bytes | None, name: str) -> RewardResult | dict[str, float]:
    """Decodes the returned value. Raises RolloutError for a missing or malformed one."""
    try:
        answer = json.loads(written or b"")
        value = answer["value"]
        parts = {str(part): float(number) for part, number in answer["parts"].items()}
        if value is None:
            return parts
        return RewardResult(value=float(value), parts=parts, extracted=answer["extracted"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # Its files are its own: a function may write there what it likes.
        raise RolloutError(f"reward {name!r} left no answer", fix="correct the reward") from error
