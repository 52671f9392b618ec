"""The table of weight channels. The trainer gives its folders; who only opens weights needs none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from rftd.ops.errors import ConfigError
from rftd.storage.shared_memory import shared_folder
from rftd.workers.weights.channel import WeightChannel
from rftd.workers.weights.checkpoint import CheckpointChannel
from rftd.workers.weights.memory import MemoryChannel

CHANNELS: Final[Mapping[str, Callable[[str, str, int], WeightChannel]]] = {
    "checkpoint": lambda job_dir, _, epoch: CheckpointChannel(Path(job_dir) / "weights", epoch),
    "memory": lambda job_dir, memory_dir, epoch: MemoryChannel(shared_folder(job_dir, memory_dir), epoch),
}
"""By `sync_method`: each made of the job's folder, the folder in memory that was asked for, and the writer's epoch."""


class Channels:
    """The channels of one process, each made when it is first asked for."""

    def __init__(self, job_dir: str = "", memory_dir: str = "", *, epoch: int = 0) -> None:
        """`epoch`: of the lease under which weights are published; their names hold it."""
        self._arguments = job_dir, memory_dir, epoch
        self._made: dict[str, WeightChannel] = {}

    def of(self, method: str) -> WeightChannel:
        """The channel of this method. Raises ConfigError if there is none."""
        if method not in CHANNELS:
            raise ConfigError(f"no weight channel {method!r}", fix=f"one of {', '.join(CHANNELS)}")
        if method not in self._made:
            self._made[method] = CHANNELS[method](*self._arguments)
        return self._made[method]
