"""Announced weights as tensors of torch on an engine's device, whatever channel carries them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from rftd.workers.weights.channel import TensorChannel, WeightChannel, WeightsRef
from rftd.workers.weights.torch_bytes import tensors_of


@contextmanager
def opened_tensors(
    channel: WeightChannel, weights: WeightsRef, device: torch.device
) -> Iterator[Mapping[str, torch.Tensor]]:
    """The weights, verified, to be read until the context ends; of a channel of tensors they are on the device.

    Raises what the channel's `open` does.
    """
    if isinstance(channel, TensorChannel):
        with channel.open_tensors(weights, device) as tensors:
            yield tensors
    else:
        with channel.open(weights) as found:
            yield tensors_of(found)
