"""`DockerSandbox`: commands in containers of this machine's Docker daemon, each removed by the warden of its run."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Final

import msgspec

from rftd.ops import limits
from rftd.ops.decoding import converted
from rftd.ops.errors import ConfigError, RolloutError
from rftd.workers.workflows.sandbox.namespaces import INNER
from rftd.workers.workflows.sandbox.processes import job_of, watched
from rftd.workers.workflows.sandbox.run_folder import WORK, remove_left_folders
from rftd.workers.workflows.sandbox.sandbox import SandboxCommand, SandboxReport

_LABEL: Final = "rftd.sandbox"
"""Label of sandbox containers, with the folder of their runs as value."""
_CLIENT_VARIABLES: Final = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH")
"""Variables passed to Docker's command line."""
_DOCKER_S: Final = 60.0
"""Maximum seconds of a call of `docker` about containers left behind."""
_REFUSED: Final = 125
"""Exit code of `docker run` itself."""


class DockerSandbox:
    """Implements `Sandbox` by containers of an image: no capabilities, a read-only root, and no network by default."""

    def __init__(self, image: str, *, program: str = "docker") -> None:
        """`program` is the command line of Docker, or of Podman."""
        if not image or image.startswith("-"):
            raise ConfigError("isolation docker needs an image", field="image", fix="name one: image: node:22-slim")
        self._image = image
        self._program = program
        self._cleaned = False

    async def run(self, command: SandboxCommand) -> SandboxReport:
        """Runs a command; see `Sandbox.run`. The memory of containers is bounded, and not measured."""
        if command.ports and not command.network:
            raise RolloutError(
                "a container without a network cannot reach the model",
                field="network",
                fix="set network: true, or use isolation namespaces",
            )
        if not self._cleaned:
            self._cleaned = True
            await asyncio.to_thread(self._remove_left, command)
        name = command.folder.path.name
        client = {variable: os.environ[variable] for variable in _CLIENT_VARIABLES if variable in os.environ}
        inspect = (self._program, "inspect", "--format", "{{.State.OOMKilled}}", name)
        job = job_of(command, "process", environ={**command.environ, **client}) | {
            "command": (self._program, *self._arguments(command)),
            # The container has limits of its own; those of a process would be Docker's.
            "limits": False,
            "after": (inspect, (self._program, "rm", "--force", "--volumes", name)),
        }
        returned = await watched(job, command.folder)
        after = returned.pop("after", ["", ""])
        report = converted(returned | {"isolation": "docker"}, SandboxReport)
        if report.exit == _REFUSED and not report.bound:
            raise RolloutError(f"Docker cannot run the command: {report.stderr[-limits.SANDBOX_ERROR_CHARS :]}")
        oom = after[0].strip() == "true" and not report.bound
        return msgspec.structs.replace(report, bound="memory") if oom else report

    def _arguments(self, command: SandboxCommand) -> list[str]:
        bounds = command.bounds
        folder = command.folder
        memory = f"{bounds.memory_mib}m"
        disk_bytes = bounds.disk_mib * limits.MIB
        user = folder.uid if os.geteuid() == 0 else os.geteuid()
        words = ["run", "--name", folder.path.name, "--label", f"{_LABEL}={folder.path.parent}", "--init"]
        words += ["--network", "host" if command.network else "none", "--user", f"{user}:{user}"]
        words += ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(bounds.processes)]
        words += ["--ulimit", f"fsize={disk_bytes + 65536}", "--ulimit", "core=0"]
        if bounds.cpu_s is not None:
            words += ["--ulimit", f"cpu={max(1, round(bounds.cpu_s))}"]
        words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only"]
        words += ["--tmpfs", f"/tmp:size={bounds.disk_mib}m,mode=1777"]  # noqa: S108 - the container's
        words += ["--volume", f"{folder.path / WORK}:{INNER}", "--workdir", INNER, "--env", f"HOME={INNER}"]
        for path in command.readable:
            words += ["--volume", f"{path}:{path}:ro"]
        for variable in command.environ:
            # Without its value, which the client takes from its own environment: everybody sees command lines.
            words += ["--env", variable]
        if command.input:
            words.append("--interactive")
        return [*words, self._image, *command.words]

    def _remove_left(self, command: SandboxCommand) -> None:
        """Removes containers of processes that died."""
        home = command.folder.path.parent
        remove_left_folders(home)
        listing = ["ps", "--all", "--filter", f"label={_LABEL}={home}", "--format", "{{.Names}}"]
        try:
            names = subprocess.run(
                [self._program, *listing], capture_output=True, text=True, timeout=_DOCKER_S, check=True
            ).stdout.split()
            if left := [name for name in names if not (home / name).exists()]:
                subprocess.run([self._program, "rm", "--force", "--volumes", *left], timeout=_DOCKER_S, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise RolloutError(f"Docker does not answer: {error}", fix="start it, or use another isolation") from error
