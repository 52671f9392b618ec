"""Announced weights as torch's tensors on an engine's device, with any channel."""

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
    """Opens the verified weights as torch's tensors, read-only, for the duration of the context; on the device if the
    channel transports tensors.

    Raises the errors of the channel's `open`.
    """
    if isinstance(channel, TensorChannel):
        with channel.open_tensors(weights, device) as tensors:
            yield tensors
    else:
        with channel.open(weights) as opened:
            yield tensors_of(opened)
