"""The table of weight channels. Third parties add channels through the entry-point group `rftd.weight_channels`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from rftd.ops.plugins import Plugins
from rftd.workers.weights.channel import ChannelPlace, WeightChannel, WeightService, WeightsRef
from rftd.workers.weights.tensor_bytes import Weights

CHANNELS: Final = Plugins[WeightChannel](
    "weight channel",
    group="rftd.weight_channels",
    table={
        "checkpoint": "rftd.workers.weights.checkpoint:checkpoint_channel",
        "memory": "rftd.workers.weights.memory:memory_channel",
        "nccl": "rftd.workers.weights.device:device_channel",
        "service": "rftd.workers.weights.service:ServiceChannel",
    },
)
"""The channels by `sync_method`; each is created with one argument, the `place`."""


class Channels:
    """The channels of a process, each created on first use."""

    def __init__(
        self, job_dir: str = "", memory_dir: str = "", *, epoch: int = 0, service: WeightService | None = None
    ) -> None:
        """`epoch` numbers the lease under which weights are published. Processes only opening weights pass none."""
        self._place = ChannelPlace(job_dir=job_dir, memory_dir=memory_dir, epoch=epoch, service=service)
        self._opened: dict[str, WeightChannel] = {}

    def of(self, method: str) -> WeightChannel:
        """Returns the channel of this method. Raises ConfigError for an unknown method, or if the channel cannot be
        created.
        """
        if method not in self._opened:
            self._opened[method] = CHANNELS.open(method, {"place": self._place})
        return self._opened[method]


def open_weights(weights: WeightsRef) -> AbstractContextManager[Weights]:
    """Context of the announced weights, verified, in any process with access to the path; as a channel's `open`.

    To open many versions, keep a `Channels`, whose channels may cache verified weights.
    """
    return Channels().of(weights.method).open(weights)
