"""The sandbox by the name of its isolation."""

from __future__ import annotations

from rftd.ops.errors import ConfigError
from rftd.workers.workflows.sandbox.docker import DockerSandbox
from rftd.workers.workflows.sandbox.processes import ProcessSandbox
from rftd.workers.workflows.sandbox.sandbox import Isolation, Sandbox


def open_sandbox(isolation: Isolation, image: str = "") -> Sandbox:
    """Returns the sandbox of an isolation; `image` is for Docker alone. Raises ConfigError."""
    if isolation == "docker":
        return DockerSandbox(image)
    if image:
        raise ConfigError("image is set, but only Docker has images", field="image", fix="set isolation: docker")
    return ProcessSandbox(isolation)
