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
    """The channels used by one process, each created on first use."""

    def __init__(
        self, job_dir: str = "", memory_dir: str = "", *, epoch: int = 0, service: WeightService | None = None
    ) -> None:
        """`epoch` is the fencing epoch under which weights are published. Processes that only open weights pass
        nothing.
        """
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
    """Opens the announced weights, verified, for the duration of the context, in any process with access to their path;
    raises the errors of a channel's `open`.

    To open many versions, use one `Channels` object, whose channels may cache verified weights.
    """
    return Channels().of(weights.method).open(weights)
