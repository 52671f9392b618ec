"""The isolations that sandboxes of rollouts have on this machine."""

from __future__ import annotations

import asyncio
import shutil
from typing import Final

from rftd.ops.errors import RolloutError
from rftd.ops.health import Diagnosis
from rftd.workers.workflows.sandbox.processes import ProcessSandbox
from rftd.workers.workflows.sandbox.run_folder import rollout_folder
from rftd.workers.workflows.sandbox.sandbox import SandboxBounds, SandboxCommand

_BOUNDS: Final = SandboxBounds(wall_s=20.0)
"""Bounds of the tried command."""


def check_sandboxes() -> list[Diagnosis]:
    """Returns one finding per isolation: namespaces, tried with a command, and Docker. Blocks."""
    return [asyncio.run(_namespaces_finding()), _docker_finding()]


async def _namespaces_finding() -> Diagnosis:
    """Returns the finding about namespaces, tried with the command `true`."""
    check = "sandbox namespaces"
    try:
        async with rollout_folder() as folder:
            report = await ProcessSandbox("namespaces").run(
                SandboxCommand(words=("true",), folder=folder, bounds=_BOUNDS)
            )
    except RolloutError as error:
        problem = f"not possible, so sandboxes only limit their processes: {error.what}"
        return Diagnosis(check, "warn", problem, error.fix or "")
    except OSError as error:
        return Diagnosis(check, "warn", f"not tried: {error}", "give the folder of temporary files free space")
    if report.bound or report.exit != 0:
        end = f"at its bound of {_BOUNDS.words(report.bound)}" if report.bound else f"with exit code {report.exit}"
        return Diagnosis(
            check, "warn", f"the tried command `true` ended {end}", "run rftd doctor again on a quiet machine"
        )
    return Diagnosis(check, "ok", "own users, processes, files and network")


def _docker_finding() -> Diagnosis:
    """Returns the finding about the command line of Docker; only rollouts ask the server of Docker."""
    if shutil.which("docker") is None:
        return Diagnosis("sandbox docker", "ok", "not installed (only needed for isolation: docker)")
    return Diagnosis("sandbox docker", "ok", "the docker command is installed; its server was not asked")
